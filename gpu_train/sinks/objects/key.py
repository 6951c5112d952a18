"""The names of objects: which are allowed, and what they are called below a prefix."""

from __future__ import annotations

from gpu_train.errors import Refused
from gpu_train.sinks.objects.objectstore import MAX_KEY_BYTES


class Keys:
    """Turns the keys of a store into those of its bucket, all below one prefix, and back."""

    def __init__(self, prefix: str, address: str) -> None:
        prefix = prefix.strip("/")
        self._before = f"{prefix}/" if prefix else ""
        self._address = address

    def full(self, key: str) -> str:
        """What an object is called in the bucket.

        Raises:
            Refused: for a key that is no name, or too long.
        """
        full = self._before + key
        if any(name in ("", ".", "..") for name in key.split("/")) or "\0" in key:
            raise Refused(f"{self._address}: {key!r} is no name for an object")
        if len(full.encode()) > MAX_KEY_BYTES:
            raise Refused(f"{self._address}: {key[:60]}...: with its prefix this is longer than {MAX_KEY_BYTES} bytes")
        return full

    def full_prefix(self, prefix: str) -> str:
        """What those keys of the bucket begin with whose keys here begin so."""
        return self._before + prefix

    def own(self, full: str) -> str:
        """What an object of the bucket is called here."""
        return full[len(self._before) :]
