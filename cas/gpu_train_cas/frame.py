"""A block or an object as stored: a self-describing header and an encoded payload (cas/spec/packs.md, Frames)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple, Self

from blake3 import blake3

from gpu_train_cas.codecs import Codec, decode
from gpu_train_cas.digest import DIGEST_BYTES, Digest, Kind, digest_of
from gpu_train_cas.errors import Damaged, NotFound, TooNew

MAGIC = b"\x89GTF"
VERSION = 1
HEADER_BYTES = 96
SIBLING_HEADER_BYTES = HEADER_BYTES + DIGEST_BYTES
"""The header of a frame that names a sibling."""

HAS_SIBLING = 1
"""The flag that says so."""

MAX_FRAME_BYTES = 1 << 30
"""Longest original or stored length that a reader accepts: manifests of tens of TB fit, a wild length does not."""

NO_DIGEST = bytes(DIGEST_BYTES)
"""Stands where a digest could and does not."""

FetchBlock = Callable[[Digest], bytes | memoryview]
"""Gives the original bytes of a block that a delta names."""

_REFERRING = (Codec.FLOAT, Codec.DELTA)
_FIELDS = struct.Struct("<4sBBBB32sII32s")
_CHECK_BYTES = 16


class FrameHeader(NamedTuple):
    """What a frame says of itself.

    Attributes:
        kind: block or kind of object.
        codec: how the payload is encoded.
        digest: the name of the original bytes.
        length: original bytes.
        stored_bytes: bytes of the payload, which follows the header.
        base: the block that a delta is taken against.
        sibling: the block beside it that helps to decode it.
    """

    kind: Kind
    codec: Codec
    digest: Digest
    length: int
    stored_bytes: int
    base: Digest | None = None
    sibling: Digest | None = None

    @property
    def size_bytes(self) -> int:
        """The header's own length."""
        return HEADER_BYTES if self.sibling is None else SIBLING_HEADER_BYTES

    @property
    def references(self) -> tuple[Digest, ...]:
        """The blocks that it takes to decode this one."""
        return tuple(d for d in (self.base, self.sibling) if d is not None)

    def pack(self) -> bytes:
        """The bytes of the header."""
        fields = _FIELDS.pack(
            MAGIC, VERSION, self.kind, self.codec, HAS_SIBLING if self.sibling else 0, self.digest, self.length,
            self.stored_bytes, self.base or NO_DIGEST,
        )  # fmt: skip
        fields += self.sibling or b""
        return fields + blake3(fields).digest(_CHECK_BYTES)

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> Self:
        """Read a header.

        Raises:
            Damaged: when magic, checksum or a field is wrong.
            TooNew: for a later version whose checksum is right.
        """
        data = bytes(data[:SIBLING_HEADER_BYTES])
        if len(data) < HEADER_BYTES or data[:4] != MAGIC:
            raise Damaged("no frame starts here")
        end = _FIELDS.size + (DIGEST_BYTES if data[7] & HAS_SIBLING else 0)
        if len(data) < end + _CHECK_BYTES or blake3(data[:end]).digest(_CHECK_BYTES) != data[end : end + _CHECK_BYTES]:
            raise Damaged("a frame's header fails its checksum")
        _, version, kind, codec, flags, digest, length, stored, base = _FIELDS.unpack_from(data)
        if version != VERSION or flags & ~HAS_SIBLING:
            raise TooNew(
                f"a frame of version {version}, flags {flags:#x}: this gpu-train reads {VERSION}; install a newer one"
            )
        sibling = Digest(data[_FIELDS.size : end]) if flags & HAS_SIBLING else None
        try:
            header = cls(
                Kind(kind), Codec(codec), Digest(digest), length, stored,
                None if base == NO_DIGEST else Digest(base), sibling,
            )  # fmt: skip
        except ValueError as e:
            raise TooNew(f"a frame of a kind or codec not known here ({e}); install a newer gpu-train") from e
        if max(length, stored) > MAX_FRAME_BYTES:
            raise Damaged(f"a frame claims {max(length, stored)} bytes, over the limit of {MAX_FRAME_BYTES}")
        return header


def no_blocks(digest: Digest) -> bytes:
    """Of frames that stand alone: there is nothing to decode a delta with.

    Raises:
        Damaged: always.
    """
    raise Damaged(f"it is a delta that needs block {digest.hex()[:16]}, which is not at hand here")


def open_frame(
    header: FrameHeader, payload: bytes | memoryview, blocks: FetchBlock = no_blocks, *, prove: bool = True
) -> bytes | memoryview:
    """Decode a payload and prove that it is what the header names; `blocks` gives what a delta needs.

    What `blocks` gives need not be proven: if it is wrong, so is what is decoded with it. Without `prove` only the
    length is checked, for a block that serves to decode another.

    Raises:
        Damaged: when it does not decode, decodes to other bytes, or needs a block that is not there.
    """
    if len(payload) != header.stored_bytes:
        raise Damaged(f"{header.digest.hex()[:16]}: {len(payload)} of {header.stored_bytes} bytes are there")
    if header.references and (header.kind is not Kind.BLOCK or header.codec not in _REFERRING):
        raise Damaged(f"{header.digest.hex()[:16]}: a frame of codec {header.codec.name} that names another block")
    base, sibling = (None if d is None else _fetched(header, d, blocks) for d in (header.base, header.sibling))
    data = decode(header.codec, payload, header.length, base=base, sibling=sibling)
    if len(data) != header.length or (prove and digest_of(data, header.kind) != header.digest):
        raise Damaged(f"{header.digest.hex()[:16]}: the stored bytes are not the ones that were stored")
    return data


def _fetched(header: FrameHeader, reference: Digest, blocks: FetchBlock) -> bytes | memoryview:
    try:
        return blocks(reference)
    except (NotFound, Damaged) as e:
        raise Damaged(f"{header.digest.hex()[:16]} is a delta that needs block {reference.hex()[:16]}: {e}") from e
