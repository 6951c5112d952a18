"""References to secrets: what is one, what it leads to, and what is said when it leads nowhere."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import keyring
import pytest

from gpu_train.credentials import reference
from gpu_train.credentials.reference import Reference
from gpu_train.errors import Refused, Unavailable


def read(text: str) -> str:
    return Reference.parse(text).read().reveal()


def command(code: str) -> str:
    return f"cmd://{shlex.join([sys.executable, '-c', code])}"


def test_the_environment_is_read_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Reference.parse("env://MY_TOKEN")
    with pytest.raises(Refused, match=r"env://MY_TOKEN is not set; export MY_TOKEN"):
        one.read()
    for value in ("first", "second"):
        monkeypatch.setenv("MY_TOKEN", value)
        assert one.read().reveal() == value
    monkeypatch.setenv("MY_TOKEN", " \n")
    with pytest.raises(Refused, match=r"env://MY_TOKEN: it is empty"):
        one.read()


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "my token"
    with pytest.raises(Refused, match="my token: No such file"):
        read(f"file://{path}")
    path.write_text("s3cret\r\n\n")
    assert read(f"file://{path}") == "s3cret"
    assert read("file://~/my token") == "s3cret"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(Refused, match="not UTF-8"):
        read(f"file://{path}")
    path.write_bytes(b"x" * ((1 << 20) + 1))
    with pytest.raises(Refused, match="larger than 1 MiB"):
        read(f"file://{path}")
    with pytest.raises(Refused, match="Is a directory"):
        read(f"file://{tmp_path}")


def test_keyrings(keyring_file: Path) -> None:
    keyring.set_password("svc", "me/and/you", "s3cret")
    assert read("keyring://svc/me/and/you") == "s3cret"
    with pytest.raises(Refused, match="nothing is stored there; `keyring set svc other`"):
        read("keyring://svc/other")
    keyring_file.unlink()
    keyring_file.parent.rmdir()
    with pytest.raises(Refused, match=r"the keyring refuses \(KeyringLocked\); unlock it"):
        read("keyring://svc/me")


def test_no_keyring() -> None:
    with pytest.raises(Refused, match="NoKeyringError"):
        read("keyring://svc/me")


def test_commands_run_without_a_shell(tmp_path: Path) -> None:
    count = tmp_path / "count"
    count.write_text("")
    one = Reference.parse(
        command(f"p = {str(count)!r}; open(p, 'a').write('x'); print('token', len(open(p).read()), '$HOME;`id`', '')")
    )
    assert [one.read().reveal() for _ in range(2)] == ["token 1 $HOME;`id`", "token 2 $HOME;`id`"]


def test_a_command_that_fails_does_not_get_its_words_repeated() -> None:
    text = command("import sys; print('s3cret'); print('s3cret', file=sys.stderr); sys.exit(7)")
    with pytest.raises(Refused, match=r"^cmd://\S+ \.\.\.: exited with 7; run it yourself") as caught:
        read(text)
    assert "s3cret" not in str(caught.value)
    assert "s3cret" not in repr(Reference.parse(text)) + str(Reference.parse(text))
    with pytest.raises(Refused, match=r"cmd:///no/such \.\.\.: cannot be run: No such file"):
        read("cmd:///no/such program")


def test_a_command_that_hangs_is_ended_with_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "TIMEOUT_S", 1.0)
    script = tmp_path / "slow.sh"
    script.write_text("#!/bin/sh\nsleep 1000 &\nwait\n")
    script.chmod(0o700)
    with pytest.raises(Unavailable, match="no answer within 1 s"):
        read(f"cmd://{script}")


@pytest.mark.parametrize(
    "text",
    ["hf_s3cret", "", None, 5, "http://s3cret", "env://", "env://s3cret-", "env://s3cr%t", "file://s3cret", "file://",
     "keyring://s3cret", "keyring:///s3cret", "cmd://", "cmd://a 's3cret"],
)  # fmt: skip
def test_what_is_no_reference_is_not_repeated(text: object) -> None:
    with pytest.raises(ValueError) as caught:
        Reference.parse(text)
    assert "s3cr" not in str(caught.value)
