"""What a job printed: whole, its end, and as it comes."""

import os
from pathlib import Path

import pytest

import gpu_train
from gpu_train_cli.logs import printed


@pytest.mark.parametrize(
    ("content", "lines", "shown"),
    [
        (b"a\nb\nc\n", None, b"a\nb\nc\n"),
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\nc\n", 9, b"a\nb\nc\n"),
        (b"a\n\n\n", 2, b"\n\n"),
        (b"a\nb\n", 0, b""),
        (b"", 3, b""),
    ],
)
def test_the_last_lines(tmp_path: Path, content: bytes, lines: int | None, shown: bytes) -> None:
    path = tmp_path / "stdout.log"
    path.write_bytes(content)
    assert b"".join(printed(path, lambda: False, lines)) == shown


def test_the_last_lines_of_a_log_longer_than_one_read(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    path.write_bytes(b"x" * 3_000_000 + b"\n" + b"y" * 2_000_000 + b"\nz\n")
    assert b"".join(printed(path, lambda: False, 2)) == b"y" * 2_000_000 + b"\nz\n"


def test_following_takes_what_comes_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    states = iter([True, True, False])
    writes = iter([b"one\n", b"two\n", b"three\n"])

    def is_live() -> bool:
        with path.open("ab") as log:
            log.write(next(writes))
        return next(states)

    path.touch()
    assert b"".join(printed(path, is_live)) == b"one\ntwo\nthree\n"


def test_a_log_that_is_never_made_ends_with_its_job(tmp_path: Path) -> None:
    states = iter([True, False])
    assert list(printed(tmp_path / "absent", lambda: next(states))) == []


def test_logs_are_byte_for_byte(trained) -> None:
    program = trained.program
    assert program("logs", "demo").stderr == "demo-abcdef has printed nothing\n"
    logs = gpu_train.Home(program.home).logs(trained.job_id)
    logs.mkdir(parents=True)
    said = b"step 1\r\x1b[1mbold\x1b[0m \xff\nlast"
    (logs / "stdout.log").write_bytes(said)
    assert os.fsencode(program.spawned("logs", "demo").stdout) == said
    assert program("logs", "demo", "-n", "1", "-f").stdout == "last"
