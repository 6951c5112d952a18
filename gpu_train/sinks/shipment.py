"""Frames on their way to a sink: packed, and each pack sent while the next one fills."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import NamedTuple, Self

from gpu_train.sinks.key import pack_key
from gpu_train.sinks.objects.content import Content, FileContent
from gpu_train.sinks.objects.objectstore import ObjectStore, OnBytes, Put
from gpu_train.sinks.objects.paced import Pace, PacedContent
from gpu_train_cas.closure import Frame
from gpu_train_cas.codecs import Encoded
from gpu_train_cas.digest import Digest
from gpu_train_cas.folders import Folders
from gpu_train_cas.lease import Lease
from gpu_train_cas.pack import PACK_BYTES, PackEntry, PackWriter
from gpu_train_cas.packer import TEMPORARY

FEW_FILES_PACK_BYTES = 1 << 30
"""How large packs become where a sink is made for few files."""


class Shipped(NamedTuple):
    """A pack that is in the sink now."""

    name: Digest
    size_bytes: int
    entries: tuple[PackEntry, ...]


class Shipment:
    """Sends frames in packs. One thread at a time; leave it as a context manager, and nothing of it stays on the disk.

    What a killed one leaves lies among the temporary files of a writer that is dead, which gc removes.
    """

    def __init__(
        self, folders: Folders, objects: ObjectStore, pace: Pace | None = None,
        on_bytes: OnBytes = lambda count: None,
    ) -> None:  # fmt: skip
        self._folders = folders
        self._objects = objects
        self._pace = pace
        self._on_bytes = on_bytes
        self._limit = FEW_FILES_PACK_BYTES if objects.few_files else PACK_BYTES
        self._current: PackWriter | None = None
        self._sending: Future[Shipped] | None = None
        self._sent: list[Shipped] = []
        self._on_board: set[Digest] = set()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._lease = Lease(self._folders.leases, "push")
        self._stack.callback(self._lease.release)
        self._pool = self._stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="send"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._current is not None:
            self._current.discard()
        self._stack.close()

    def add(self, frame: Frame) -> None:
        """Send a frame.

        Raises:
            StorageFull: when there is no room for a pack in the home.
            SinkFailed: when an earlier pack could not be sent.
        """
        if self._current is None:
            number = len(self._sent) + (self._sending is not None) + 1
            self._current = PackWriter(self._folders.tmp / f"{self._lease.id}.{number}{TEMPORARY}")
        header = frame.header
        self._on_board.add(header.digest)
        self._current.add(
            header.kind, header.digest, header.length, Encoded(header.codec, frame.payload), header.base, header.sibling
        )
        if self._current.size_bytes >= self._limit:
            self._send()

    def holds(self, digest: Digest) -> bool:
        """Whether a frame was added."""
        return digest in self._on_board

    def finish(self) -> list[Shipped]:
        """Send what is left; all packs that were sent, when they are there."""
        if self._current is not None:
            self._send()
        self._settle()
        return self._sent

    def paced(self, content: Content) -> Content:
        """A content that is sent no faster than the sink's limit."""
        return content if self._pace is None else PacedContent(content, self._pace)

    def _send(self) -> None:
        assert self._current is not None
        self._settle()
        writer, self._current = self._current, None
        self._sending = self._pool.submit(self._send_one, writer)

    def _settle(self) -> None:
        if self._sending is not None:
            sending, self._sending = self._sending, None
            self._sent.append(sending.result())

    def _send_one(self, writer: PackWriter) -> Shipped:
        try:
            sealed = writer.seal()
            with FileContent(sealed.path) as content:
                # One of that name may be there: its bytes are the same, and an attempt may have been broken off.
                self._objects.put([Put(pack_key(sealed.name), self.paced(content), again=True)], self._on_bytes)
            return Shipped(sealed.name, sealed.size_bytes, tuple(sealed.entries))
        finally:
            writer.discard()
