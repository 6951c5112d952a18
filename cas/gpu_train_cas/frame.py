"""A block or an object as stored: a self-describing header and an encoded payload (cas/spec/packs.md, Frames)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Self

from blake3 import blake3

from gpu_train_cas.codecs import Codec, decode
from gpu_train_cas.digest import DIGEST_BYTES, Digest, Kind, digest_of
from gpu_train_cas.errors import Damaged, TooNew

MAGIC = b"\x89GTF"
VERSION = 1
HEADER_BYTES = 96
MAX_FRAME_BYTES = 1 << 30
"""Longest original or stored length that a reader accepts: manifests of tens of TB fit, a wild length does not."""

_FIELDS = struct.Struct("<4sBBBx32sII32s")
_CHECK_BYTES = 16
_NO_BASE = bytes(DIGEST_BYTES)


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """What a frame says of itself.

    Attributes:
        kind: block or kind of object.
        codec: how the payload is encoded.
        digest: the name of the original bytes.
        length: original bytes.
        stored_bytes: bytes of the payload, which follows the header.
        base: the block that a delta is taken against.
    """

    kind: Kind
    codec: Codec
    digest: Digest
    length: int
    stored_bytes: int
    base: Digest | None = None

    def pack(self) -> bytes:
        """The 96 bytes of the header."""
        fields = _FIELDS.pack(
            MAGIC, VERSION, self.kind, self.codec, self.digest, self.length, self.stored_bytes,
            self.base or _NO_BASE,
        )  # fmt: skip
        return fields + blake3(fields).digest(_CHECK_BYTES)

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> Self:
        """Read a header.

        Raises:
            Damaged: when magic, checksum or a field is wrong.
            TooNew: for a later version whose checksum is right.
        """
        data = bytes(data[:HEADER_BYTES])
        if len(data) < HEADER_BYTES or data[:4] != MAGIC:
            raise Damaged("no frame starts here")
        fields = data[: _FIELDS.size]
        if blake3(fields).digest(_CHECK_BYTES) != data[_FIELDS.size :]:
            raise Damaged("a frame's header fails its checksum")
        _, version, kind, codec, digest, length, stored, base = _FIELDS.unpack(fields)
        if version != VERSION:
            raise TooNew(f"a frame of version {version}: this gpu-train reads {VERSION}; install a newer one")
        try:
            header = cls(Kind(kind), Codec(codec), digest, length, stored, None if base == _NO_BASE else base)
        except ValueError as e:
            raise TooNew(f"a frame of a kind or codec not known here ({e}); install a newer gpu-train") from e
        if max(length, stored) > MAX_FRAME_BYTES:
            raise Damaged(f"a frame claims {max(length, stored)} bytes, over the limit of {MAX_FRAME_BYTES}")
        return header


def open_frame(header: FrameHeader, payload: bytes | memoryview) -> bytes | memoryview:
    """Decode a payload and prove that it is what the header names.

    Raises:
        Damaged: when it does not decode, or decodes to other bytes.
    """
    if len(payload) != header.stored_bytes:
        raise Damaged(f"{header.digest.hex()[:16]}: {len(payload)} of {header.stored_bytes} bytes are there")
    data = decode(header.codec, payload, header.length)
    if len(data) != header.length or digest_of(data, header.kind) != header.digest:
        raise Damaged(f"{header.digest.hex()[:16]}: the stored bytes are not the ones that were stored")
    return data
