"""A keyring for tests that need one; all others have none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import keyring
import pytest
from file_keyring import PATH, FileKeyring
from keyring.backends.fail import Keyring as NoKeyring


@pytest.fixture(autouse=True)
def no_keyring() -> Iterator[None]:
    """As on a machine without one, whatever the one that runs the tests has."""
    before = keyring.get_keyring()
    keyring.set_keyring(NoKeyring())
    yield
    keyring.set_keyring(before)


@pytest.fixture
def keyring_file(no_keyring: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A keyring that works, and the file in which it keeps what it is given."""
    path = tmp_path / "keyring" / "keys.json"
    path.parent.mkdir()
    monkeypatch.setenv(PATH, str(path))
    keyring.set_keyring(FileKeyring())
    return path
