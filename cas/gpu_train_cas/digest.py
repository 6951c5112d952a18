"""Names of content: 32-byte BLAKE3 digests, plain for bytes of files, keyed by kind for objects.

A block and a file are named by plain BLAKE3, so `b3sum` prints the same name. Manifests, trees,
records and rows are named in BLAKE3's derive-key mode with a context per kind: no file content, however
crafted, can then collide with an object (cas/spec/blocks.md).
"""

from __future__ import annotations

from enum import IntEnum
from typing import NewType

from blake3 import blake3

Digest = NewType("Digest", bytes)
"""32 bytes; hex only at the edge."""

DIGEST_BYTES = 32
HOLE = Digest(bytes(DIGEST_BYTES))
"""Stands in a manifest for a run of bytes that the source file never allocated."""


class Kind(IntEnum):
    """What a frame holds."""

    BLOCK = 0
    MANIFEST = 1
    TREE = 2
    RECORD = 3
    ROW = 4


_CONTEXT = {
    Kind.MANIFEST: "gpu-train 2026-11 manifest",
    Kind.TREE: "gpu-train 2026-11 tree",
    Kind.RECORD: "gpu-train 2026-11 record",
    Kind.ROW: "gpu-train 2026-11 row",
}
_CONTENT_CONTEXT = "gpu-train 2026-11 content"


def digest_of(data: bytes | bytearray | memoryview, kind: Kind = Kind.BLOCK) -> Digest:
    """The name of `data` as an object of `kind`."""
    if kind is Kind.BLOCK:
        return Digest(blake3(data).digest())
    return Digest(blake3(data, derive_key_context=_CONTEXT[kind]).digest())


def content_digest(data: bytes) -> Digest:
    """The name of a directory's content without its times (cas/spec/blocks.md, Trees)."""
    return Digest(blake3(data, derive_key_context=_CONTENT_CONTEXT).digest())


class FileHasher:
    """Plain BLAKE3 over a file's bytes fed in order."""

    def __init__(self) -> None:
        self._state = blake3()

    def update(self, data: bytes | bytearray | memoryview) -> None:
        """Take the next bytes; releases the GIL while it hashes."""
        self._state.update(data)

    def digest(self) -> Digest:
        """The digest of all bytes so far."""
        return Digest(self._state.digest())
