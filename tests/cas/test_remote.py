"""Blocks that lie elsewhere: few and bounded reads, an error instead of a wait, and nothing that is not proven."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from gpu_train_cas import Digest, Entry, ReadAhead, Reader, Store
from gpu_train_cas.codecs import Codec, Encoded
from gpu_train_cas.digest import Kind, digest_of
from gpu_train_cas.errors import Damaged, NotFound, Unreachable
from gpu_train_cas.frame import FrameHeader
from gpu_train_cas.framecache import FolderFrames, FrameCache, MemoryFrames
from gpu_train_cas.pack import PackWriter
from gpu_train_cas.packindexes import TAIL_BYTES, PackIndexes
from gpu_train_cas.patience import Patience, PatientRanges
from gpu_train_cas.remote import JOIN_BYTES, JOIN_GAP_BYTES, Place, RemoteBlocks

MIB = 1 << 20
SHORT = Patience(attempt_s=0.2, attempts=2, pause_s=0.01, all_s=2.0, rest_s=0.0)


@dataclass
class FarAway:
    """Objects in memory, as slow and as broken as a test wants them. `trouble` is what happens to the next reads."""

    objects: dict[str, bytes] = field(default_factory=dict)
    reads: list[tuple[str, int, int]] = field(default_factory=list)
    trouble: list[BaseException | None] = field(default_factory=list)
    open: threading.Event = field(default_factory=threading.Event)
    at_once: int = 0
    most_at_once: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.open.set()

    def read(self, key: str, length: int, offset: int = 0) -> bytes:
        with self.lock:
            self.reads.append((key, length, offset))
            trouble = self.trouble.pop(0) if self.trouble else None
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            self.open.wait(60)
            if trouble is not None:
                raise trouble
            if key not in self.objects:
                raise NotFound(f"{key} is not there")
            return self.objects[key][offset : offset + length]
        finally:
            with self.lock:
                self.at_once -= 1


@pytest.fixture
def far(store: Store) -> Iterator[FarAway]:
    found = FarAway()
    yield found
    found.open.set()


@pytest.fixture
def data() -> bytes:
    return os.urandom(6 * MIB + 77)


@pytest.fixture
def entry(store: Store, tmp_path: Path, commit: Callable[..., Digest], data: bytes, far: FarAway) -> Entry:
    """A stored file; its packs are far away as well."""
    folder = tmp_path / "source"
    folder.mkdir()
    np.save(folder / "w.npy", np.frombuffer(data, np.uint8))
    found = store.reader.lookup(store.record(commit(store, folder)).root, b"w.npy")
    far.objects = {path.name: path.read_bytes() for path in store.folders.packs.glob("??/*.pack")}
    return found


def names(far: FarAway) -> dict[Digest, int]:
    return {Digest(bytes.fromhex(key.partition(".")[0])): len(pack) for key, pack in far.objects.items()}


def remote(far: FarAway, patience: Patience = SHORT, frames: FrameCache | None = None) -> RemoteBlocks:
    ranges = PatientRanges(far, patience)
    return RemoteBlocks(PackIndexes(ranges, names(far), lambda name: name.hex() + ".pack"), ranges, frames)


def whole(reader: Reader, entry: Entry) -> bytes:
    return reader.open(entry).pread(entry.size_bytes, 0)


# ---- reading


def test_a_file_is_read_from_packs_elsewhere_by_their_own_indexes(far: FarAway, entry: Entry, data: bytes) -> None:
    assert whole(Reader([remote(far)]), entry).endswith(data)
    indexes = [read for read in far.reads if read[2] + read[1] == len(far.objects[read[0]])]
    assert len(indexes) == len(far.objects), "the index of each pack is one range"
    assert all(length <= max(TAIL_BYTES, 2 * MIB) for _, length, _ in far.reads)


def test_local_packs_are_asked_first_and_what_they_have_is_not_fetched(
    store: Store, far: FarAway, entry: Entry, data: bytes
) -> None:
    reader = Reader([store.packs, remote(far)])
    ahead = ReadAhead(reader, threads=2)
    file = ahead.open(entry)
    buffer = memoryview(bytearray(entry.size_bytes))
    for at in range(0, entry.size_bytes, MIB):
        file.readinto(buffer[at : at + MIB], at)
    ahead.close()
    assert bytes(buffer).endswith(data)
    assert far.reads == []


def test_a_pack_that_is_gone_here_is_read_there(store: Store, far: FarAway, entry: Entry, data: bytes) -> None:
    store.packs.close()
    for path in store.folders.packs.glob("??/*.pack"):
        path.unlink()
    with pytest.raises(Damaged, match="pack is missing"):
        whole(Reader([store.packs]), entry)
    assert whole(Reader([store.packs, remote(far)]), entry).endswith(data)


def test_what_is_expected_is_read_in_few_joined_ranges(far: FarAway, entry: Entry, data: bytes) -> None:
    source = remote(far)
    reader = Reader([source])
    manifest = reader.manifest(entry)
    far.reads.clear()
    source.expect([ref.digest for ref in manifest.blocks()])
    assert whole(reader, entry).endswith(data)
    assert len(far.reads) == 1
    assert far.reads[0][1] <= JOIN_BYTES


def test_reading_ahead_joins_ranges_of_what_lies_elsewhere(far: FarAway, entry: Entry, data: bytes) -> None:
    ahead = ReadAhead(Reader([remote(far)]), threads=2)
    file = ahead.open(entry)
    far.reads.clear()
    buffer = memoryview(bytearray(entry.size_bytes))
    for at in range(0, entry.size_bytes, 131_072):
        file.readinto(buffer[at : at + 131_072], at)
    ahead.close()
    assert bytes(buffer).endswith(data)
    assert len(far.reads) < len(file.manifest)


def test_joined_are_places_near_each_other_up_to_a_length(far: FarAway) -> None:
    parts = [os.urandom(100) for _ in range(6)]
    gap = JOIN_GAP_BYTES
    at = [0, 100 + gap, 201 + 2 * gap + 1, JOIN_BYTES * 2, JOIN_BYTES * 3 - 50, JOIN_BYTES * 3 + 50]
    blob = bytearray(JOIN_BYTES * 4)
    places = {}
    for start, part in zip(at, parts, strict=True):
        blob[start : start + 100] = part
        header = FrameHeader(Kind.BLOCK, Codec.RAW, digest_of(part), 100, 100)
        places[digest_of(part)] = Place("plain/file", start, 100, bare=header)
    far.objects["plain/file"] = bytes(blob)

    class Places:
        def find(self, digest: Digest) -> Place | None:
            return places.get(digest)

    source = RemoteBlocks(Places(), PatientRanges(far, SHORT))
    source.expect(list(places))
    reader = Reader([source])
    assert [bytes(reader.block(digest)) for digest in places] == parts
    assert sorted(read[2] for read in far.reads) == [at[0], at[2], at[3], at[4]]
    assert source.fetch(digest_of(b"nowhere")) is None


def test_of_many_readers_of_one_block_one_fetches_it(far: FarAway, entry: Entry) -> None:
    source = remote(far)
    digest = next(Reader([source]).manifest(entry).blocks()).digest
    far.reads.clear()
    far.open.clear()
    readers = [Reader([source]) for _ in range(4)]
    with ThreadPoolExecutor(16) as pool:
        found = [pool.submit(readers[i % 4].block, digest) for i in range(16)]
        while not far.reads:
            time.sleep(0.001)
        far.open.set()
        assert len({bytes(f.result(60)) for f in found}) == 1
    assert len(far.reads) == 1


# ---- trouble


@pytest.mark.parametrize("trouble", [ConnectionResetError("reset"), Unreachable("busy"), TimeoutError("slow")])
def test_what_fails_once_is_tried_again(far: FarAway, entry: Entry, data: bytes, trouble: BaseException) -> None:
    far.trouble = [trouble, None, trouble]
    assert whole(Reader([remote(far)]), entry).endswith(data)


def test_what_never_answers_is_an_error_and_not_a_wait(far: FarAway, entry: Entry, data: bytes) -> None:
    reader = Reader([remote(far)])
    file = reader.open(entry)
    first = file.pread(1000, 0)
    far.open.clear()
    with pytest.raises(Unreachable, match="after 2 attempts: no answer within"):
        file.pread(10, 3 * MIB)
    assert file.pread(1000, 0) == first, "what was read before still is"
    far.open.set()
    assert file.pread(entry.size_bytes, 0).endswith(data)


def test_indexes_that_cannot_be_read_now_are_read_later(far: FarAway, entry: Entry, data: bytes) -> None:
    far.open.clear()
    reader = Reader([remote(far)])
    with pytest.raises(Unreachable):
        reader.open(entry)
    far.open.set()
    assert whole(reader, entry).endswith(data)


def test_reads_that_hang_never_are_more_than_allowed(far: FarAway, entry: Entry) -> None:
    source = remote(far, SHORT._replace(at_once=3, attempt_s=0.05))
    refs = list(Reader([source]).manifest(entry).blocks())
    far.open.clear()
    far.most_at_once = 0

    def fails(digest: Digest) -> bool:
        with pytest.raises(Unreachable):
            Reader([source]).block(digest)
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(fails, [ref.digest for ref in refs] * 2, timeout=60))
    assert far.most_at_once <= 3


def test_after_failing_there_is_a_rest_in_which_nothing_is_tried() -> None:
    far, now = FarAway({"k": b"data"}), [100.0]
    far.trouble = [OSError("no route")] * 2
    ranges = PatientRanges(far, SHORT._replace(rest_s=5.0), clock=lambda: now[0])
    with pytest.raises(Unreachable, match="no route"):
        ranges.read("k", 4)
    assert len(far.reads) == 2
    with pytest.raises(Unreachable, match="no route"):
        ranges.read("k", 4)
    assert len(far.reads) == 2
    now[0] += 5.1
    assert ranges.read("k", 4) == b"data"


def test_an_object_that_is_not_there_is_not_asked_for_again() -> None:
    far = FarAway()
    with pytest.raises(NotFound):
        PatientRanges(far, SHORT).read("gone", 4)
    assert len(far.reads) == 1


def test_what_is_broken_here_and_cannot_be_asked_for_there_may_come_later(
    store: Store, far: FarAway, entry: Entry, data: bytes
) -> None:
    reader = Reader([store.packs, remote(far)], 1)
    file = reader.open(entry)
    store.packs.close()
    for path in store.folders.packs.glob("??/*.pack"):
        path.unlink()
    far.open.clear()
    with pytest.raises(Unreachable):
        file.pread(10, 3 * MIB)
    far.open.set()
    assert file.pread(entry.size_bytes, 0).endswith(data)


def test_the_next_source_is_asked_when_one_cannot_be(store: Store, far: FarAway, entry: Entry, data: bytes) -> None:
    far.open.clear()
    assert whole(Reader([remote(far, SHORT._replace(rest_s=60.0)), store.packs]), entry).endswith(data)


# ---- lies


def test_bytes_that_were_broken_on_the_way_are_fetched_once_more(far: FarAway, entry: Entry, data: bytes) -> None:
    source = remote(far)
    manifest = Reader([source]).manifest(entry)
    sound = dict(far.objects)
    middle = next(manifest.covering(3 * MIB, 3 * MIB + 1))
    place = source._locator.find(middle.digest)
    assert place is not None
    spoiled = bytearray(sound[place.key])
    spoiled[place.end - 10] ^= 1
    far.objects[place.key] = bytes(spoiled)
    source.expect([middle.digest])
    assert source.fetch(middle.digest) is not None, "a source proves nothing"
    far.objects = sound
    assert whole(Reader([source]), entry).endswith(data), "the reader does, and has it fetched again"


def test_a_block_that_is_broken_there_is_damage(far: FarAway, entry: Entry) -> None:
    source = remote(far)
    middle = next(Reader([source]).manifest(entry).covering(3 * MIB, 3 * MIB + 1))
    place = source._locator.find(middle.digest)
    assert place is not None
    spoiled = bytearray(far.objects[place.key])
    spoiled[place.end - 10] ^= 1
    far.objects[place.key] = bytes(spoiled)
    with pytest.raises(Damaged, match=middle.digest.hex()[:16]):
        Reader([source]).block(middle.digest)


@pytest.mark.parametrize("cut", [1, 40, 100, 5000])
def test_a_pack_that_ends_too_early_is_damage(far: FarAway, entry: Entry, cut: int) -> None:
    sizes = names(far)
    far.objects = {key: pack[:-cut] for key, pack in far.objects.items()}
    ranges = PatientRanges(far, SHORT)
    source = RemoteBlocks(PackIndexes(ranges, sizes, lambda name: name.hex() + ".pack"), ranges)
    with pytest.raises(Damaged):
        Reader([source]).open(entry)


def test_a_pack_that_is_gone_there_is_damage(far: FarAway, entry: Entry) -> None:
    source = remote(far)
    file = Reader([source], 1).open(entry)
    far.objects = {}
    with pytest.raises(Damaged, match="is not there"):
        file.pread(10, 3 * MIB)


def test_an_index_longer_than_the_tail_takes_one_range_more(tmp_path: Path) -> None:
    writer = PackWriter(tmp_path / "pack")
    blocks = [b"%d" % i for i in range(900)]
    for block in blocks:
        writer.add(Kind.BLOCK, digest_of(block), len(block), Encoded(Codec.RAW, block))
    sealed = writer.seal()
    far = FarAway({sealed.name.hex() + ".pack": sealed.path.read_bytes()})
    reader = Reader([remote(far)])
    assert bytes(reader.block(digest_of(b"0"))) == b"0"
    assert bytes(reader.block(digest_of(b"899"))) == b"899"
    assert len(far.reads) == 4
    with pytest.raises(NotFound):
        reader.block(digest_of(b"900"))
    assert len(far.reads) == 4


# ---- keeping


@pytest.fixture(params=["memory", "folder"])
def frames(request: pytest.FixtureRequest, tmp_path: Path) -> FrameCache:
    return MemoryFrames(3000) if request.param == "memory" else FolderFrames(tmp_path / "cache", 3000)


def test_kept_frames_stay_within_the_bound_and_the_idle_ones_go_first(frames: FrameCache) -> None:
    digests = [digest_of(b"%d" % i) for i in range(5)]
    for digest in digests[:3]:
        frames.put(digest, bytes(1000))
    assert frames.get(digests[0]) == bytes(1000)
    frames.put(digests[3], bytes(900))
    assert [frames.has(d) for d in digests] == [True, False, True, True, False]
    assert [frames.get(d) is not None for d in digests] == [True, False, True, True, False]
    frames.put(digests[3], bytes(1000))
    frames.drop(digests[3])
    frames.drop(digests[3])
    assert frames.get(digests[3]) is None
    frames.put(digests[4], bytes(5000))
    assert frames.get(digests[4]) is None, "larger than all that may be kept"


def test_a_folder_of_frames_serves_the_next_process(far: FarAway, entry: Entry, data: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    assert whole(Reader([remote(far, frames=FolderFrames(folder, 100 * MIB))]), entry).endswith(data)
    far.open.clear()
    again = FolderFrames(folder, 100 * MIB)
    assert whole(Reader([remote(far, frames=again)]), entry).endswith(data)
    small = FolderFrames(folder, 2 * MIB)
    small.put(digest_of(b"x"), b"x")
    assert sum(path.stat().st_size for path in folder.glob("??/*")) <= 2 * MIB


def test_a_spoiled_cache_is_noticed_and_fetched_anew(far: FarAway, entry: Entry, data: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    whole(Reader([remote(far, frames=FolderFrames(folder, 100 * MIB))]), entry)
    for path in folder.glob("??/*"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert whole(Reader([remote(far, frames=FolderFrames(folder, 100 * MIB))]), entry).endswith(data)
