"""Reading ahead: the same bytes whoever reads how; blocks decoded once, in the background, within the cache."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from gpu_train_cas import Digest, Entry, ReadAhead, Reader, Store
from gpu_train_cas.access import Span
from gpu_train_cas.errors import Damaged
from gpu_train_cas.frame import FrameHeader

MIB = 1 << 20


class Watched:
    """The store's packs; counts what is asked for, and can hold it up or break it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.fetched: Counter[Digest] = Counter()
        self.broken: set[Digest] = set()
        self.open = threading.Event()
        self.open.set()
        self._lock = threading.Lock()

    def fetch(self, digest: Digest) -> tuple[FrameHeader, memoryview] | None:
        self.open.wait(60)
        with self._lock:
            self.fetched[digest] += 1
        if digest in self.broken:
            raise Damaged("broken on purpose")
        return self._store.packs.fetch(digest)


@pytest.fixture
def data() -> bytes:
    return os.urandom(12 * MIB + 77)


@pytest.fixture
def entry(store: Store, tmp_path: Path, commit: Callable[..., Digest], data: bytes) -> Entry:
    folder = tmp_path / "source"
    folder.mkdir()
    np.save(folder / "w.npy", np.frombuffer(data, np.uint8))
    return store.reader.lookup(store.record(commit(store, folder)).root, b"w.npy")


@pytest.fixture
def watched(store: Store) -> Watched:
    return Watched(store)


@pytest.fixture
def ahead(watched: Watched) -> Iterator[ReadAhead]:
    found = ReadAhead(Reader([watched], 32 * MIB), threads=2)
    yield found
    watched.open.set()
    found.close()


def pread(file: object, length: int, offset: int) -> bytes:
    buffer = bytearray(length)
    return bytes(buffer[: file.readinto(memoryview(buffer), offset)])  # type: ignore[attr-defined]


def test_every_way_of_reading_gives_the_file(ahead: ReadAhead, entry: Entry, data: bytes, store: Store) -> None:
    whole = store.reader.open(entry).pread(entry.size_bytes, 0)
    assert whole.endswith(data)
    file = ahead.open(entry)
    for step in (131_072, MIB, 3 * MIB):
        assert b"".join(pread(file, step, at) for at in range(0, len(whole), step)) == whole
    for _ in range(200):
        at, length = random.randrange(len(whole) + 10), random.randrange(1, 200_000)
        assert pread(file, length, at) == whole[at : at + length]


def test_a_block_is_decoded_once_however_many_read(ahead: ReadAhead, watched: Watched, entry: Entry) -> None:
    def read(_: int) -> int:
        file = ahead.open(entry)
        return sum(len(pread(file, 131_072, at)) for at in range(0, entry.size_bytes, 131_072))

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(read, range(8))) == {entry.size_bytes}
    assert set(watched.fetched.values()) == {1}


def test_a_run_is_decoded_before_it_is_asked_for(ahead: ReadAhead, watched: Watched, entry: Entry) -> None:
    file = ahead.open(entry)
    pread(file, 65536, 0)
    pread(file, 65536, 65536)
    digests = [ref.digest for ref in file.manifest.blocks()]
    deadline = time.monotonic() + 20
    while not all(watched.fetched[d] for d in digests[:3]):
        assert time.monotonic() < deadline, "nothing was read ahead"
        time.sleep(0.01)
    assert not watched.fetched[digests[-1]], "not everything at once"


def test_a_lone_read_decodes_what_it_needs_alone(ahead: ReadAhead, watched: Watched, entry: Entry) -> None:
    file = ahead.open(entry)
    watched.fetched.clear()
    for at in range(9 * MIB, 9 * MIB + 65_536, 4096):
        pread(file, 4096, at)
    ahead.close()
    assert watched.fetched.total() <= 2


def test_many_runs_in_a_small_cache_decode_nothing_twice(
    watched: Watched, store: Store, tmp_path: Path, commit: Callable[..., Digest]
) -> None:
    folder = tmp_path / "four"
    folder.mkdir()
    for i in range(4):
        np.save(folder / f"{i}.npy", np.frombuffer(os.urandom(4 * MIB), np.uint8))
    root = store.record(commit(store, folder)).root
    ahead = ReadAhead(Reader([watched], 16 * MIB), threads=4)
    files = [ahead.open(store.reader.lookup(root, b"%d.npy" % i)) for i in range(4)]
    for at in range(0, 4 * MIB, 131_072):
        for file in files:
            pread(file, 131_072, at)
    ahead.close()
    assert set(watched.fetched.values()) == {1}


def test_what_nobody_comes_to_read_makes_room_after_a_while(watched: Watched, entry: Entry) -> None:
    now = [0.0]
    ahead = ReadAhead(Reader([watched], 8 * MIB), threads=4, clock=lambda: now[0])
    file = ahead.open(entry)
    assert ahead.want(file.manifest, [Span(0, 6 * MIB)]) is not None, "more than a fourth of the cache"
    while ahead._reader.decoding:
        time.sleep(0.001)
    assert ahead.want(file.manifest, [Span(8 * MIB, 9 * MIB)]) is not None
    now[0] += 3
    assert ahead.want(file.manifest, [Span(8 * MIB, 9 * MIB)]) is None
    ahead.close()


def test_while_the_cores_are_busy_nothing_is_read_ahead(ahead: ReadAhead, watched: Watched, entry: Entry) -> None:
    file = ahead.open(entry)
    refs = list(file.manifest.blocks())
    watched.fetched.clear()
    watched.open.clear()
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(pread, file, 4096, ref.start + 9000) for ref in refs[5:9]]
        while ahead._reader.decoding < 4:
            time.sleep(0.001)
        assert ahead.want(file.manifest, [Span(0, 4 * MIB)]) == 0
        watched.open.set()
        assert all(waiter.result(60) for waiter in waiting)
    assert not watched.fetched[refs[1].digest]
    assert ahead.want(file.manifest, [Span(0, MIB)]) is None


def test_a_broken_block_ahead_is_an_error_only_where_it_is_read(
    ahead: ReadAhead, watched: Watched, entry: Entry, store: Store
) -> None:
    file = ahead.open(entry)
    bad = list(file.manifest.blocks())[3]
    watched.broken.add(bad.digest)
    assert len(pread(file, 2 * MIB, 0)) == 2 * MIB
    with pytest.raises(Damaged, match="on purpose"):
        pread(file, 10, bad.start)
    assert pread(file, 100, bad.end) == store.reader.open(entry).pread(100, bad.end)


def test_a_source_that_stands_still_holds_up_no_more_than_what_waits_for_it(
    ahead: ReadAhead, watched: Watched, entry: Entry
) -> None:
    file = ahead.open(entry)
    first = pread(file, MIB, 0)
    watched.open.clear()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(pread, file, 4096, 11 * MIB)
        assert pread(file, MIB, 0) == first, "what is in the cache is read while others wait"
        assert not waiting.done()
        watched.open.set()
        assert len(waiting.result(60)) == 4096


def test_closed_it_reads_on_without_looking_ahead(ahead: ReadAhead, entry: Entry, store: Store) -> None:
    file = ahead.open(entry)
    ahead.close()
    assert pread(file, 3 * MIB, 0) == store.reader.open(entry).pread(3 * MIB, 0)
    assert pread(file, 3 * MIB, 3 * MIB) == store.reader.open(entry).pread(3 * MIB, 3 * MIB)
