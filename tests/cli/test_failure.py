"""Every error is one line and a code."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import gpu_train_cas.errors as errors
from gpu_train_cli.failure import report


def all_errors(parent: type[errors.GpuTrainError]) -> Iterator[type[errors.GpuTrainError]]:
    yield parent
    for child in parent.__subclasses__():
        yield from all_errors(child)


OURS = [kind for kind in all_errors(errors.GpuTrainError) if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
def test_an_error_of_ours_gives_its_class_code(
    kind: type[errors.GpuTrainError], capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(kind("thing x: y; do z"), debug=False) == kind.exit_code
    assert capsys.readouterr().err == "gpu-train: error: thing x: y; do z\n"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OSError(errno.EACCES, "Permission denied", "/x"), 1, "/x: Permission denied"),
        (OSError(errno.EXDEV, "Cross-device link", "/a", None, "/b"), 1, "/a -> /b: Cross-device link"),
        (OSError("only words"), 1, "unexpected OSError: only words; this is a bug"),
        (MemoryError(), 1, "out of memory"),
        (click.UsageError("No such option."), 2, "No such option; see `gpu-train --help`"),
        (click.BadParameter("'x' is not y"), 2, "Invalid value: 'x' is not y; see"),
        (click.ClickException("plain"), 1, "plain"),
        (KeyError("k"), 1, "unexpected KeyError: 'k'; this is a bug, please report it with what --debug shows"),
    ],
)
def test_foreign_errors(error: Exception, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(error, debug=False) == code
    err = capsys.readouterr().err
    assert err.startswith(f"gpu-train: error: {said}")
    assert err.count("\n") == 1


def test_names_in_messages_cannot_act_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    name = os.fsdecode(b"evil\x1b]0;x\x07\n\xff")
    report(errors.NotFound(f"{name}: no such checkpoint"), debug=False)
    assert capsys.readouterr().err == ("gpu-train: error: evil\\x1b]0;x\\x07\\n\\xff: no such checkpoint\n")


def test_debug_shows_where_it_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise errors.NotFound("job x")
    except errors.NotFound as error:
        assert report(error, debug=True) == 3
    err = capsys.readouterr().err
    assert err.startswith("Traceback (most recent call last):")
    assert err.endswith("gpu-train: error: job x\n")


@pytest.mark.parametrize("kind", ["device", "file", "inside a file", "dangling link"])
@pytest.mark.parametrize("command", [["jobs"], ["config"], ["doctor"], ["run", "--", "true"]])
def test_a_home_that_is_no_folder(program, tmp_path: Path, kind: str, command: list[str]) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    program.home = {
        "device": Path("/dev/null"), "file": tmp_path / "file", "inside a file": tmp_path / "file" / "home",
        "dangling link": tmp_path / "link",
    }[kind]  # fmt: skip
    said = program(*command, code=2).stderr
    reason = "is not a folder"
    if kind == "dangling link":
        reason = f"is a link to {tmp_path / 'nowhere'}, which is not there"
    assert reason in said and "set GPU_TRAIN_HOME to a folder" in said
