"""References to secrets: `env://NAME`, `file:///PATH`, `keyring://SERVICE/USER`, `cmd://COMMAND`.

A reference may be shown and passed on, except for the words of a command behind its program: they may be anything.
What it leads to is read at each call, so that a token that is replaced while a job runs is used from then on.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from gpu_train import environment
from gpu_train.credentials.secret import Secret
from gpu_train.errors import Refused, Unavailable

FORMS = "env://NAME, file:///PATH, keyring://SERVICE/USER or cmd://COMMAND"
TIMEOUT_S = 30.0
"""How long a command may take."""

_MOST_BYTES = 1 << 20


class Reference(NamedTuple):
    """Where a secret is.

    Attributes:
        scheme: "env", "file", "keyring" or "cmd".
        rest: what stands behind `://`.
    """

    scheme: str
    rest: str

    @classmethod
    def parse(cls, text: object) -> Reference:
        """Take a reference apart.

        Raises:
            ValueError: for anything else; the message does not repeat it, since it may be a secret.
        """
        scheme, found, rest = text.partition("://") if isinstance(text, str) else ("", "", "")
        if not found or scheme not in _READERS:
            raise ValueError(f"a reference to a secret is expected, {FORMS}; a secret itself is never written there")
        if complaint := _complaint(scheme, rest):
            raise ValueError(f"{scheme}://: {complaint}")
        return cls(scheme, rest)

    @property
    def text(self) -> str:
        """All of it, for programs."""
        return f"{self.scheme}://{self.rest}"

    def __str__(self) -> str:
        """As it may be shown."""
        if self.scheme != "cmd":
            return self.text
        program, *others = _words(self.rest)
        return f"cmd://{program}{' ...' if others else ''}"

    def __repr__(self) -> str:
        return f"Reference({self})"

    def read(self) -> Secret:
        """The secret, as it is now; line ends around it are not part of it.

        Raises:
            Refused: when it is not there or cannot be read, naming the way out.
            Unavailable: when a command took too long.
        """
        text = _READERS[self.scheme](self).strip()
        if not text:
            raise Refused(f"{self}: it is empty")
        return Secret(text)


def _complaint(scheme: str, rest: str) -> str:
    """What is wrong with a reference, "" if nothing is."""
    if scheme == "env" and not (rest.isidentifier() and rest.isascii()):
        return "the name of an environment variable is expected, env://NAME"
    if scheme == "file" and not rest.startswith(("/", "~")):
        return "an absolute path is expected, file:///PATH or file://~/PATH"
    if scheme == "keyring" and not all(rest.partition("/")[::2]):
        return "a service and a user are expected, keyring://SERVICE/USER"
    if scheme == "cmd":
        try:
            return "" if _words(rest) else "a command is expected, cmd://PROGRAM WORD..."
        except ValueError:
            return "the command's quotes do not match"
    return ""


def _words(command: str) -> list[str]:
    import shlex  # noqa: PLC0415  few references are commands

    return shlex.split(command)


def _from_environment(reference: Reference) -> str:
    text = environment.current().get(reference.rest)
    if text is None:
        raise Refused(f"{reference} is not set; export {reference.rest} where this runs, or name another reference")
    return text


def _from_file(reference: Reference) -> str:
    path = Path(reference.rest).expanduser()
    try:
        with path.open("rb") as file:
            return _decoded(file.read(_MOST_BYTES + 1), reference)
    except OSError as e:
        raise Refused(f"{reference}: {e.strerror or 'cannot be read'}; put the secret there, readable by you") from None


def _from_keyring(reference: Reference) -> str:
    service, _, user = reference.rest.partition("/")
    try:
        import keyring  # noqa: PLC0415  an optional package
        import keyring.errors  # noqa: PLC0415
    except ImportError:
        raise Refused(f"{reference}: the package keyring is missing; `pip install 'gpu-train[keyring]'`") from None
    try:
        text = keyring.get_password(service, user)
    except keyring.errors.KeyringError as e:
        raise Refused(f"{reference}: the keyring refuses ({type(e).__name__}); unlock it and try again") from None
    if text is None:
        raise Refused(f"{reference}: nothing is stored there; `keyring set {service} {user}` stores it")
    return text


def _from_command(reference: Reference) -> str:
    """What a command prints. Neither its output nor its complaints are repeated: the secret may be in them."""
    import subprocess  # noqa: PLC0415  few references are commands

    try:
        process = subprocess.Popen(
            _words(reference.rest), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    except OSError as e:
        raise Refused(f"{reference}: cannot be run: {e.strerror}; give the program's whole path") from None
    with process:
        try:
            output, _ = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{reference}: no answer within {TIMEOUT_S:g} s; run it yourself to see why") from None
        finally:
            if process.returncode is None:
                # It leads its own session: with it goes what it started, which would hold the pipe open.
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise Refused(f"{reference}: exited with {process.returncode}; run it yourself to see why")
    return _decoded(output, reference)


def _decoded(data: bytes, reference: Reference) -> str:
    if len(data) > _MOST_BYTES:
        raise Refused(f"{reference}: that is no secret, it is larger than {_MOST_BYTES >> 20} MiB")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Refused(f"{reference}: that is no secret, it is not UTF-8 text") from None


_READERS: Mapping[str, Callable[[Reference], str]] = {
    "env": _from_environment, "file": _from_file, "keyring": _from_keyring, "cmd": _from_command,
}  # fmt: skip
