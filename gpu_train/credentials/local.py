"""The credential store in the home (cas/spec/credentials.md): the system's keyring where there is one, else a file."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpu_train.credentials.credential import TYPES, Wanted, fit
from gpu_train.credentials.reference import Reference
from gpu_train.credentials.secret import Secret
from gpu_train.errors import Refused
from gpu_train.home import Home
from gpu_train_cas.errors import NotFound, TooNew, mapped_os_errors
from gpu_train_cas.filesystem import replacing

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

VERSION = 1
FILE, KEYRING, REFERENCE = "file", "keyring", "reference"

_LEAST_PRIORITY = 1.0
"""What the package keyring calls recommended; below are backends that keep nothing, or keep it in the open."""


class Entry(NamedTuple):
    """One credential of the store.

    Attributes:
        name: what it is for: a sink's name, an address or the beginning of one, or a type.
        type: "s3", "gcs" or "hf".
        where: "file", "keyring" or "reference".
        added_ns: when.
        value: the secret or the reference; empty for the keyring.
    """

    name: str
    type: str
    where: str
    added_ns: int
    value: Secret = Secret("")

    def fit(self, wanted: Wanted) -> int:
        """How well it fits a sink, 0 not at all; see `credential.fit`."""
        return fit(self.type, (self.name,), wanted)

    @property
    def reference(self) -> Reference | None:
        """Where the secret is, when that is all that is stored."""
        return Reference.parse(self.value.reveal()) if self.where == REFERENCE else None

    def _to_json(self) -> dict[str, str]:
        added = datetime.fromtimestamp(self.added_ns / 1e9, UTC).isoformat(timespec="seconds")
        fields = {"name": self.name, "type": self.type, "where": self.where, "added": added}
        return fields | ({"value": self.value.reveal()} if self.value else {})

    @classmethod
    def _of_json(cls, fields: Mapping[str, str]) -> Entry:
        added_ns = int(datetime.fromisoformat(fields["added"]).timestamp()) * 10**9
        return cls(fields["name"], fields["type"], fields["where"], added_ns, Secret(fields.get("value", "")))


class LocalCredentials:
    """The credentials of one home. Each call reads the file as it is now; processes may share it."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._path = home.credentials_file

    def entries(self) -> list[Entry]:
        """All of them, by name.

        Raises:
            Refused: when others may read the file, or it cannot be understood.
            TooNew: when a newer gpu-train wrote it.
        """
        return sorted(self._read(), key=lambda entry: entry.name)

    def find(self, wanted: Wanted) -> Entry | None:
        """The one that fits a sink best."""
        best = max(self._read(), key=lambda entry: entry.fit(wanted), default=None)
        return best if best is not None and best.fit(wanted) else None

    def get(self, name: str) -> Entry:
        """The one of that name.

        Raises:
            NotFound: when there is none.
        """
        for entry in self._read():
            if entry.name == name:
                return entry
        raise NotFound(f"no credentials {name!r}; `gpu-train credentials list` shows what there is")

    def secret(self, entry: Entry) -> Secret:
        """The secret of an entry, from wherever it is.

        Raises:
            Refused: when it is not there any more.
            Unavailable: when a command took too long.
        """
        if entry.where == KEYRING:
            return Reference("keyring", f"{self._service}/{entry.name}").read()
        reference = entry.reference
        return entry.value if reference is None else reference.read()

    def add(self, name: str, kind: str, secret: Secret | Reference) -> Entry:
        """Store a secret, or where it is, in place of what was stored under that name.

        Raises:
            GpuTrainError: when the file cannot be read or written.
        """
        assert kind in TYPES
        now_ns = time.time_ns()
        with self._changing() as entries:
            if isinstance(secret, Reference):
                self._forget(entries.get(name))
                entry = Entry(name, kind, REFERENCE, now_ns, Secret(secret.text))
            elif (backend := _keyring()) is not None:
                with _explained():
                    backend.set_password(self._service, name, secret.reveal())
                entry = Entry(name, kind, KEYRING, now_ns)
            else:
                entry = Entry(name, kind, FILE, now_ns, secret)
            entries[name] = entry
        return entry

    def remove(self, name: str) -> Entry:
        """Forget one.

        Raises:
            NotFound: when there is none of that name.
        """
        entry = self.get(name)
        with self._changing() as entries:
            self._forget(entries.pop(name, None))
        return entry

    @property
    def _service(self) -> str:
        return f"gpu-train {str(self._home.root).replace('/', ':')}"

    def _forget(self, entry: Entry | None) -> None:
        if entry is not None and entry.where == KEYRING and (backend := _keyring()) is not None:
            from keyring.errors import PasswordDeleteError  # noqa: PLC0415  an optional package

            with _explained(), suppress(PasswordDeleteError):  # somebody did that already
                backend.delete_password(self._service, entry.name)

    def _read(self) -> list[Entry]:
        with mapped_os_errors(f"reading {self._path}"):
            try:
                file = self._path.open("rb")
            except FileNotFoundError:
                return []
            with file:
                _check_private(self._path, os.fstat(file.fileno()))
                data = file.read()
        try:
            found: dict[str, Any] = json.loads(data)
            if found["version"] > VERSION:
                raise TooNew(f"{self._path}: written by a newer gpu-train; update this one")
            return [Entry._of_json(fields) for fields in found["credentials"]]
        except (ValueError, TypeError, KeyError, AttributeError):
            # Not even the place of the error: it is in the middle of secrets.
            raise Refused(f"{self._path}: cannot be understood; remove it and add the credentials again") from None

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Entry]]:
        """The entries by name, to be changed; written when the block ends."""
        with mapped_os_errors(f"writing {self._path}"):
            self._home.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                entries = {entry.name: entry for entry in self._read()}
                yield entries
                rows = [entry._to_json() for entry in entries.values()]
                with replacing(self._path, mode=0o600) as out:
                    out.write(json.dumps({"version": VERSION, "credentials": rows}, indent=1).encode() + b"\n")
            finally:
                os.close(lock)


def _check_private(path: Path, found: os.stat_result) -> None:
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise Refused(f"{path} holds secrets and others have rights to it; `chmod 600 {path}`, and replace the secrets")
    if found.st_uid not in (os.geteuid(), 0):
        raise Refused(f"{path} holds secrets and belongs to somebody else; `chown {os.geteuid()} {path}`")


def _keyring() -> KeyringBackend | None:
    """The system's keyring; None where there is none that really keeps secrets."""
    try:
        import keyring  # noqa: PLC0415  an optional package
    except ImportError:
        return None
    backend = keyring.get_keyring()
    return backend if backend.priority >= _LEAST_PRIORITY else None


@contextmanager
def _explained() -> Iterator[None]:
    """Says of the keyring's errors what to do."""
    from keyring.errors import KeyringError  # noqa: PLC0415  an optional package

    try:
        yield
    except KeyringError as e:
        raise Refused(f"the system's keyring refuses ({type(e).__name__}); unlock it and try again") from None
