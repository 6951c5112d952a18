"""Blocks and objects read from a sink: one of the sources of a reader, behind the packs of the home itself."""

from __future__ import annotations

from gpu_train.errors import SinkFailed
from gpu_train.sinks.holdings import Holdings
from gpu_train.sinks.objects.objectstore import ObjectStore
from gpu_train_cas.codecs import Codec
from gpu_train_cas.digest import Digest, Kind
from gpu_train_cas.errors import Damaged, NotFound
from gpu_train_cas.frame import SIBLING_HEADER_BYTES, FrameHeader
from gpu_train_cas.registry import Registry


class SinkBlocks:
    """See `BlockSource`. Each frame is one ranged read; what a sink does not give in time counts as damaged there."""

    def __init__(self, registry: Registry, holdings: Holdings, objects: ObjectStore) -> None:
        self._registry = registry
        self._holdings = holdings
        self._objects = objects

    def fetch(self, digest: Digest) -> tuple[FrameHeader, memoryview] | None:
        """See `BlockSource`."""
        with self._registry.read() as txn:
            place = self._holdings.find(txn, digest)
        if place is None:
            return None
        location = place.location
        length = location.stored_bytes if place.is_plain else SIBLING_HEADER_BYTES + location.stored_bytes
        try:
            data = memoryview(self._objects.read(place.key, length, location.offset))
        except (NotFound, SinkFailed) as e:
            raise Damaged(f"{digest.hex()[:16]}: {e}") from e
        if place.is_plain:
            return FrameHeader(Kind.BLOCK, Codec.RAW, digest, location.length, len(data)), data
        header = FrameHeader.unpack(data)
        return header, data[header.size_bytes : header.size_bytes + header.stored_bytes]
