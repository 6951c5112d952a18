"""A keyring that keeps what it is given in a file, for tests: PYTHON_KEYRING_BACKEND=file_keyring.FileKeyring."""

from __future__ import annotations

import json
import os
from pathlib import Path

from keyring.backend import KeyringBackend
from keyring.errors import KeyringLocked, PasswordDeleteError

PATH = "FILE_KEYRING"
"""The variable that says where the file is."""


class FileKeyring(KeyringBackend):
    """A backend of the package keyring; locked while the file's folder is not there."""

    priority = 5

    def _read(self) -> dict[str, str]:
        path = Path(os.environ[PATH])
        if not path.parent.is_dir():
            raise KeyringLocked("locked")
        return json.loads(path.read_text()) if path.exists() else {}

    def get_password(self, service: str, username: str) -> str | None:
        return self._read().get(f"{service}\n{username}")

    def set_password(self, service: str, username: str, password: str) -> None:
        Path(os.environ[PATH]).write_text(json.dumps(self._read() | {f"{service}\n{username}": password}))

    def delete_password(self, service: str, username: str) -> None:
        found = self._read()
        if found.pop(f"{service}\n{username}", None) is None:
            raise PasswordDeleteError("not there")
        Path(os.environ[PATH]).write_text(json.dumps(found))
