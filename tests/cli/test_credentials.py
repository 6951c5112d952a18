"""Secrets from the command line: stored, listed, tried and removed; shown by nothing."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hub import Hub, running

MARK = "s3cr3t-"
"""How every secret of these tests begins."""

NO_KEYRING = {"PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"}


def piped(program, text: str, *words: str, code: int = 0, **extra: str) -> tuple[str, str]:
    done = subprocess.run(
        [program.script, *words], env=program.environment(**NO_KEYRING, **extra), cwd=program.cwd,
        input=text.encode(), capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    out, err = os.fsdecode(done.stdout), os.fsdecode(done.stderr)
    assert done.returncode == code, f"exit {done.returncode}\n{out}\n{err}"
    assert MARK not in out + err
    return out, err


def typed(program, answers: list[str], *words: str) -> str:
    """What a terminal shows while somebody answers the questions."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(program.cwd)
        os.execve(program.script, [program.script, *words], program.environment(**NO_KEYRING))
    shown = b""
    left = list(answers)
    with open(terminal, "r+b", buffering=0) as file:
        while True:
            try:
                data = file.read(4096)
            except OSError:  # the program's side is closed
                break
            if not data:
                break
            shown += data
            if left and shown.rstrip().endswith(b":"):
                file.write(left.pop(0).encode() + b"\n")
                shown += b"|"
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, shown
    assert not left
    return shown.decode()


def test_they_are_added_listed_tried_and_removed(program) -> None:
    assert "credentials add NAME" in piped(program, "", "credentials")[1]
    out, _ = piped(program, f"{MARK}token\n", "credentials", "add", "hf")
    assert "credentials.json" in out
    keys = f"aws_access_key_id={MARK}id\naws_secret_access_key={MARK}key\n"
    piped(program, keys, "credentials", "add", "s3://bucket/x", "-o", "json")
    piped(program, "", "credentials", "add", "archive", "--type", "gcs", "--ref", "env://GOOGLE_TOKEN")
    rows = json.loads(piped(program, "", "credentials", "-o", "json")[0])["credentials"]
    assert [(row["name"], row["type"], row["from"]) for row in rows] == [
        ("archive", "gcs", "env://GOOGLE_TOKEN"),
        ("hf", "hf", "credentials.json"),
        ("s3://bucket/x", "s3", "credentials.json"),
    ]
    tried = json.loads(piped(program, "", "credentials", "test", "s3://bucket/x/y", "-o", "json")[0])
    assert (tried["from"], tried["fields"]) == ("s3://bucket/x: file", ["aws_access_key_id", "aws_secret_access_key"])
    assert "env://GOOGLE_TOKEN is not set" in piped(program, "", "credentials", "test", "archive", code=5)[1]
    assert "the backend's own" in piped(program, "", "credentials", "test", "s3://other")[0]
    assert "no credentials 'none'" in piped(program, "", "credentials", "test", "none", code=3)[1]
    piped(program, "", "credentials", "rm", "hf")
    assert piped(program, "", "credentials", "list", "-q")[0] == "archive\ns3://bucket/x\n"
    assert "no credentials 'hf'" in piped(program, "", "credentials", "rm", "hf", code=3)[1]
    assert MARK not in (program.home / "credentials.json").read_text().replace(f"{MARK}id", "").replace(
        f"{MARK}key", ""
    )


def test_what_is_typed_is_not_shown(program) -> None:
    shown = typed(program, [f"{MARK}id", f"{MARK}key", ""], "credentials", "add", "s3")
    assert "AWS access key id:" in shown
    assert "AWS session token" in shown
    assert MARK not in shown
    shown = typed(program, [f"{MARK}token"], "credentials", "add", "hf")
    assert "Token:" in shown
    assert MARK not in shown
    stored = json.loads((program.home / "credentials.json").read_text())["credentials"]
    assert [entry["value"] for entry in stored] == [
        f"aws_access_key_id={MARK}id\naws_secret_access_key={MARK}key", f"{MARK}token",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words", "code", "says"),
    [
        ("", ["add", "hf"], 2, "no secret was given"),
        (f"{MARK}x", ["add", "bucket"], 2, "say for which kind of sink with --type"),
        (f"{MARK}x", ["add", "s3://bucket"], 5, "what was given: S3 needs two values"),
        ("", ["add", "hf", "--ref", f"{MARK}x"], 2, "--ref: a reference to a secret is expected"),
        ("", ["add", "hf", f"{MARK}x"], 2, "a secret is not taken from the command line"),
    ],
)
def test_what_is_refused(program, text: str, words: list[str], code: int, says: str) -> None:
    assert says in piped(program, text, "credentials", *words, code=code)[1]
    assert not (program.home / "credentials.json").exists()


def test_doctor_sees_a_file_that_others_can_read(program) -> None:
    piped(program, f"{MARK}token\n", "credentials", "add", "hf")
    (program.home / "credentials.json").chmod(0o644)
    found = json.loads(piped(program, "", "doctor", "-o", "json", code=1)[0])["findings"]
    [finding] = [one for one in found if one["check"] == "credentials"]
    assert finding["state"] == "failed"
    assert "chmod 600" in finding["next_step"]
    assert "chmod 600" in piped(program, "", "credentials", "list", code=5)[1]


WORD = "w0rd-"
"""How words of commands begin that give credentials: they stand in references, and are shown by nothing."""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """One that knows none of the tokens; what speaks S3 is told there that nothing is there."""
    with running(tmp_path) as one:
        yield one


@pytest.fixture
def planted(program, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Secrets wherever there can be some."""
    token, fails, prints = (tmp_path / name for name in ("token", "fails.sh", "prints.sh"))
    token.write_text(f"{MARK}file")
    fails.write_text(f"echo {MARK}output; echo {MARK}error >&2; exit 3")
    prints.write_text(f"echo aws_access_key_id={MARK}id; echo aws_secret_access_key={MARK}key")
    program.home.mkdir()
    (program.home / "config.toml").write_text(
        f"""
        [[credentials]]
        name = "by-variable"
        type = "hf"
        token_ref = "env://PLANTED"
        sinks = ["hf://variable"]
        [[credentials]]
        name = "by-file"
        type = "s3"
        secret_ref = "file://{token}"
        sinks = ["s3://file"]
        [[credentials]]
        name = "by-command"
        type = "hf"
        token_ref = "cmd://sh {fails} {WORD}1"
        sinks = ["hf://command"]
        [sinks]
        drain_s = 2
        [[sinks.checkpoints]]
        type = "hf"
        name = "hub"
        repo_id = "you/ckpts"
        endpoint = "{hub.url}"
        token_ref = "env://PLANTED"
        [[sinks.checkpoints]]
        type = "s3"
        name = "archive"
        bucket = "archive"
        endpoint = "{hub.url}"
        secret_ref = "cmd://sh {prints} {WORD}2"
        [[sinks.logs]]
        type = "gcs"
        bucket = "logs"
        secret_ref = "cmd://sh {fails} {WORD}3"
        """
    )
    piped(program, f"{MARK}stored\n", "credentials", "add", "hf")
    for name in ("PLANTED", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, f"{MARK}{name}")
    yield
    end_pusher(program.home)


def end_pusher(home: Path) -> None:
    """It would try again for an hour."""
    with suppress(FileNotFoundError), (home / "store" / "sinks" / "pusher.lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.kill(int(lock.read()), signal.SIGKILL)


def test_no_secret_is_shown_or_written_anywhere(program, planted: None) -> None:
    save = "import os, pathlib; p = pathlib.Path(os.environ['GPU_TRAIN_CHECKPOINT_DIR'], 'checkpoint-1'); p.mkdir(); "
    save += "(p / 'trainer_state.json').write_text('{}'); print('trained')"
    commands: list[tuple[int, list[str]]] = [
        (0, ["run", "--name", "demo", "--", "python", "-c", save]),
        (0, ["run", "--name", "detached", "--detach", "--", "python", "-c", "pass"]),
        (0, ["config", "show", "--origin"]),
        (0, ["config", "show", "-o", "json"]),
        (0, ["doctor"]),
        (0, ["jobs", "show", "demo", "-o", "json"]),
        (0, ["logs", "demo"]),
        (0, ["checkpoints", "show", "demo", "-o", "json"]),
        (0, ["credentials", "list"]),
        (0, ["credentials", "list", "-o", "json"]),
        (0, ["credentials", "test", "hf://variable/x", "-o", "json"]),
        (0, ["credentials", "test", "hf"]),
        (5, ["credentials", "test", "s3://file/x", "--debug"]),
        (5, ["credentials", "test", "hf://command/x", "--debug"]),
        (0, ["credentials", "add", "hf://again", "--ref", "env://PLANTED"]),
        (0, ["credentials", "test", "hub"]),
        (0, ["credentials", "test", "archive", "-o", "json"]),
        (0, ["stop", "detached"]),
        (0, ["sinks", "list"]),
        (5, ["sinks", "push", "demo", "--debug"]),
        (5, ["checkpoints", "push", "demo", "--sink", "archive", "--debug"]),
        (5, ["checkpoints", "push", "demo", "--sink", "hf://command/x", "--debug"]),
        (5, ["pull", "hub", "--debug"]),
        (5, ["sinks", "status"]),
        (0, ["status"]),
    ]
    for code, words in commands:
        done = program.spawned(*words) if words[0] == "run" else program(*words, code=code)
        assert MARK not in done.stdout + done.stderr
        assert WORD not in done.stdout + done.stderr
    files = [path for path in program.home.rglob("*") if path.is_file()]
    assert len(files) > 10
    with_secrets = [path.name for path in files if MARK.encode() in path.read_bytes()]
    assert with_secrets == ["credentials.json"], "that is where it was put"
