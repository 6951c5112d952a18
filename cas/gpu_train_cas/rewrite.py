"""A stored directory once more, without some of its files and with others cut: what stays is not read again."""

from __future__ import annotations

from collections.abc import Mapping

from gpu_train_cas.added import Added
from gpu_train_cas.chunking import WHOLE_FILE_BYTES
from gpu_train_cas.digest import Digest
from gpu_train_cas.errors import Damaged
from gpu_train_cas.formats import Cut, Layout
from gpu_train_cas.pairing import Pairing
from gpu_train_cas.progress import Meter
from gpu_train_cas.reader import File, Reader
from gpu_train_cas.tree import Entry, EntryKind
from gpu_train_cas.walk import Receiver, directory_entry

_NOT_NAMED = Cut((), (), 0)


class Spliced:
    """The bytes of a stored file as a cut makes them: zeros in its holes, another end. A `Source`."""

    def __init__(self, file: File, cut: Cut) -> None:
        self._file = file
        self._cut = cut
        self.size_bytes = cut.kept_bytes + len(cut.tail)

    def pread(self, length: int, offset: int) -> bytes:
        """The bytes [offset, offset + length); fewer only where the file ends."""
        end = min(offset + length, self.size_bytes)
        parts, at = [], offset
        for start, stop in [*self._cut.holes, (self._cut.kept_bytes, self.size_bytes)]:
            if stop <= at or start >= end:
                continue
            if at < start:
                parts.append(self._file.pread(start - at, at))
                at = start
            upto = min(stop, end)
            tail = self._cut.tail[at - self._cut.kept_bytes : upto - self._cut.kept_bytes]
            parts.append(tail if start == self._cut.kept_bytes else bytes(upto - at))
            at = upto
        if at < end:
            parts.append(self._file.pread(end - at, at))
        return b"".join(parts)


def left_by(reader: Reader, root: Entry, edits: Mapping[bytes, Cut | None]) -> tuple[list[Entry], bytes]:
    """What a rewrite would still need of the old directory: files, and blocks of files that are cut.

    Raises:
        Damaged, NotFound: when a directory or a manifest cannot be read.
    """
    files: list[Entry] = []
    blocks = bytearray()
    for path, entry in reader.walk(root):
        above = path
        while above and edits.get(above, _NOT_NAMED) is not None:
            above = above.rpartition(b"/")[0]
        if above or entry.kind is not EntryKind.FILE:
            continue  # it is left out, or a folder that is
        cut = edits.get(path)
        if cut is None:
            files.append(entry)
            continue
        for block in reader.manifest(entry).blocks():
            if not any(start <= block.start and block.end <= end for start, end in cut.holes):
                blocks += block.digest
    return files, bytes(blocks)


class Rewrite:
    """One directory being rewritten."""

    def __init__(self, receiver: Receiver, reader: Reader, edits: Mapping[bytes, Cut | None], meter: Meter) -> None:
        self._receiver = receiver
        self._reader = reader
        self._edits = edits
        self._meter = meter
        self._added = Added()

    def tree(self, root: Entry) -> Added:
        """Rewrite a directory with all below it.

        Raises:
            NotFound, Damaged: when something that stays is not there or cannot be read.
        """
        self._added.root = self._directory(root, b"")
        self._added.files, self._added.size_bytes = self._added.root.files, self._added.root.size_bytes
        self._meter.tick(last=True)
        return self._added

    def _directory(self, folder: Entry, path: bytes) -> Entry:
        entries = []
        for entry in self._reader.tree(folder.digest).entries:
            below = path + b"/" + entry.name if path else entry.name
            if below in self._edits and self._edits[below] is None:
                continue
            match entry.kind:
                case EntryKind.DIRECTORY:
                    entries.append(self._directory(entry, below))
                case EntryKind.FILE:
                    entries.append(self._file(entry, below))
                case _:
                    entries.append(entry)
        return directory_entry(self._receiver, self._added, folder.name, entries, folder.mode, folder.mtime_ns)

    def _file(self, entry: Entry, path: bytes) -> Entry:
        cut = self._edits.get(path)
        if cut is not None:
            return self._cut(entry, cut)
        if entry.size_bytes and not self._receiver.recall(entry.digest, entry.manifest):
            raise Damaged(f"{path!r} cannot be taken over: a part of it is damaged or missing; run `gpu-train verify`")
        return entry

    def _cut(self, entry: Entry, cut: Cut) -> Entry:
        """Store a file as it is with a cut; it is cut into blocks like the old one, so that these are found again."""
        file = self._reader.open(entry)
        source, old = Spliced(file, cut), file.manifest
        digest: Digest
        manifest: Digest | None = None
        if source.size_bytes <= WHOLE_FILE_BYTES:
            digest = self._receiver.put_bytes(source.pread(source.size_bytes, 0), self._added, self._meter)
        else:
            layout = Layout(old.format, old.tensors)
            left = [t for t in old.tensors if not any(a < t.offset + t.length and t.offset < b for a, b in cut.holes)]
            pairing = Pairing(layout, source.size_bytes, (), {})
            digest, manifest = self._receiver.put_source(
                source, cut.holes, layout, left, pairing, self._added, self._meter
            )  # fmt: skip
        self._meter.progress.files_done += 1
        return entry._replace(size_bytes=source.size_bytes, digest=digest, manifest=manifest)
