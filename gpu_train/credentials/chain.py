"""Whose credentials a sink gets: its own reference, what the settings say, the store in the home, the backend's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gpu_train.config import Config
from gpu_train.credentials.credential import Credential, Wanted
from gpu_train.credentials.fields import fields_of
from gpu_train.credentials.local import LocalCredentials
from gpu_train.credentials.reference import Reference
from gpu_train.credentials.secret import Secret, Secrets
from gpu_train.errors import Refused
from gpu_train.home import Home

Source = Callable[[], Mapping[str, str]]
"""Gives credentials as they are now; an object store calls it at each attempt. Empty: the backend's own chain."""


class Found(NamedTuple):
    """Credentials and where they came from, in words."""

    fields: Secrets
    origin: str


class Chain:
    """Finds the credentials of sinks. What is the same for all attempts is read once, the secrets at each."""

    def __init__(
        self, local: LocalCredentials, credentials: Sequence[Credential] = (), use: Sequence[str] = ()
    ) -> None:
        """`credentials` are those of the settings; when `use` names some of them, the others are left out."""
        self._local = local
        chosen = [one for one in credentials if one.name in use]
        self._credentials = chosen or list(credentials)
        self._use = tuple(use)

    @classmethod
    def load(cls, home: Home, *, cwd: Path | None = None) -> Chain:
        """That of a home, with the settings in force.

        Raises:
            UsageError: for settings that make no sense.
        """
        config = Config.load(home, cwd=cwd)
        return cls(LocalCredentials(home), config.credentials, config.use)

    def source(self, wanted: Wanted) -> Source:
        """What an object store calls at each attempt."""
        return lambda: self.resolve(wanted)

    def resolve(self, wanted: Wanted) -> Secrets:
        """The credentials of a sink as they are now; empty when the backend is to look for its own.

        Raises:
            Refused: when one that was named is not there, or does not fit; it names the reference and the way out.
            Unavailable: when it may be there in a while.
        """
        return self.find(wanted).fields

    def find(self, wanted: Wanted) -> Found:
        """As `resolve`, with where they came from."""
        if wanted.reference is not None:
            try:
                reference = Reference.parse(wanted.reference)
            except ValueError as e:
                raise Refused(f"{wanted.sink or wanted.address}: {e}") from None
            return _found(reference.read(), wanted, str(reference))
        best = max(self._credentials, key=lambda one: one.fit(wanted, self._use), default=None)
        if best is not None and best.fit(wanted, self._use):
            return _found(best.reference.read(), wanted, f"{best.name}: {best.reference}")
        entry = self._local.find(wanted)
        if entry is not None:
            return _found(self._local.secret(entry), wanted, f"{entry.name}: {entry.reference or entry.where}")
        return Found(Secrets({}), "the backend's own")


def _found(secret: Secret, wanted: Wanted, origin: str) -> Found:
    return Found(fields_of(secret, wanted.kind, origin), origin)
