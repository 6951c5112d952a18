"""What every object store must do: a class of tests, to be run over each kind by a subclass with a fixture `store`."""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpu_train.errors import Taken
from gpu_train.sinks.objects.content import Content, Held, Lazy
from gpu_train.sinks.objects.objectstore import ObjectStore, Put
from gpu_train_cas.errors import Damaged, NotFound

LARGE_BYTES = 18 << 20
"""More than two parts of an upload in parts."""

NAMES = [
    "plain.txt",
    "deep/er/and/deeper/file",
    "with space and + and = and & and # and ? and ;,:@$",
    "percent %41 %2F %%",
    "unicode-ä-€-𝄞-日本",
    "quotes \"double\" and 'single' and `back`",
    "brackets [x] {y} (z) <w> |v| ^u^ ~t~ !s!",
    ".hidden/.dots..inside",
    "x" * 200,
]


def pattern(size: int, seed: int = 0) -> bytes:
    """Bytes that do not repeat within a part."""
    return hashlib.shake_128(seed.to_bytes(8, "big")).digest(size)


class Counter:
    """Counts bytes from any thread."""

    def __init__(self) -> None:
        self.total = 0
        self._lock = threading.Lock()

    def __call__(self, count: int) -> None:
        with self._lock:
            self.total += count


class ObjectStoreSuite:
    """Each test has a store of its own; nothing but its own objects is in it."""

    large_bytes = LARGE_BYTES
    names = NAMES

    @pytest.fixture
    def store(self) -> ObjectStore:
        """The store to be tested."""
        raise NotImplementedError

    def test_what_is_put_is_there(self, store: ObjectStore) -> None:
        counter = Counter()
        objects = {name: pattern(100 + at, at) for at, name in enumerate(self.names)}
        store.put([Put(key, Held(data)) for key, data in objects.items()], counter)
        assert counter.total == sum(map(len, objects.values()))
        for key, data in objects.items():
            assert store.size(key) == len(data)
            assert store.read(key, 1000) == data
            assert store.holds(key, Held(data))
            assert not store.holds(key, Held(data[:-1] + bytes([data[-1] ^ 1])))
            assert not store.holds(key, Held(data + b"x"))
        assert {found.key: found.size_bytes for found in store.list()} == {k: len(d) for k, d in objects.items()}

    def test_empty_and_large_objects(self, store: ObjectStore) -> None:
        large = pattern(self.large_bytes)
        reads: list[tuple[int, int]] = []

        def read(length: int, offset: int) -> bytes:
            reads.append((length, offset))
            return large[offset : offset + length]

        store.put([Put("empty", Held(b"")), Put("large", Lazy(len(large), read))])
        assert store.size("empty") == 0
        assert store.read("empty", 10) == b""
        assert store.holds("empty", Held(b""))
        assert store.size("large") == len(large)
        assert max(length for length, _ in reads) < len(large), "it was read into memory whole"
        assert b"".join(store.read("large", 5 << 20, at) for at in range(0, len(large), 5 << 20)) == large
        assert store.holds("large", Held(large))
        assert not store.holds("large", Held(large[:-1] + b"!"))

    def test_ranges(self, store: ObjectStore) -> None:
        data = pattern(300_000)
        store.put([Put("x", Held(data))])
        for length, offset in ((1, 0), (1, 299_999), (10, 299_995), (70_000, 1_000), (300_000, 0), (1_000_000, 0)):
            assert store.read("x", length, offset) == data[offset : offset + length]
        assert store.read("x", 10, 300_000) == b""
        assert store.read("x", 0, 5) == b""

    def test_what_is_not_there(self, store: ObjectStore) -> None:
        store.put([Put("a/b", Held(b"x"))])
        for key in ("nothing", "a", "a/b/c", "A/B"):
            assert store.size(key) is None
            assert not store.holds(key, Held(b"x"))
        with pytest.raises(NotFound, match="nothing"):
            store.read("nothing", 10)
        assert list(store.list("nothing")) == []

    def test_putting_again_replaces(self, store: ObjectStore) -> None:
        store.put([Put("x", Held(b"first"))])
        store.put([Put("x", Held(b"second, longer"))])
        assert store.read("x", 100) == b"second, longer"
        store.put([Put("x", Held(b"third"), again=True), Put("y", Held(b"new"), again=True)])
        assert (store.read("x", 100), store.read("y", 100)) == (b"third", b"new")

    def test_an_object_that_is_there_is_not_sent_again(self, store: ObjectStore) -> None:
        data = pattern(self.large_bytes)
        store.put([Put("x", Held(data))])
        counter = Counter()
        store.put([Put("x", Held(data), again=True)], counter)
        assert counter.total == 0
        assert store.read("x", len(data)) == data

    def test_only_new(self, store: ObjectStore) -> None:
        store.put([Put("x", Held(b"mine"), only_new=True)])
        store.put([Put("x", Held(b"mine"), only_new=True)])
        with pytest.raises(Taken, match="x"):
            store.put([Put("x", Held(b"other"), only_new=True)])
        assert store.read("x", 100) == b"mine"

    def test_one_of_many_gets_a_new_name(self, store: ObjectStore) -> None:
        def claim(who: int) -> bool:
            try:
                store.put([Put("claim", Held(b"%d" % who), only_new=True)])
            except Taken:
                return False
            return True

        with ThreadPoolExecutor(6) as pool:
            won = [who for who, has in enumerate(pool.map(claim, range(6))) if has]
        assert store.read("claim", 10) in {b"%d" % who for who in won}
        assert len(won) == 1 or not self.claims_are_exclusive

    claims_are_exclusive = True
    """Whether the backend lets exactly one of several writers have a new name."""

    def test_lists(self, store: ObjectStore) -> None:
        keys = [f"d{folder}/f{at:04}" for folder in range(3) for at in range(40)]
        store.put([Put(key, Held(key.encode())) for key in keys])
        assert sorted(found.key for found in store.list()) == keys
        assert sorted(found.key for found in store.list("d1/")) == [key for key in keys if key.startswith("d1/")]
        assert sorted(found.key for found in store.list("d2/f000")) == [f"d2/f{at:04}" for at in range(10)]

    def test_delete(self, store: ObjectStore) -> None:
        store.put([Put(key, Held(b"x")) for key in ("a/b", "a/c", "d")])
        store.delete(["a/b", "d", "never/there"])
        assert [found.key for found in store.list()] == ["a/c"]
        assert store.size("a/b") is None
        store.delete(["a/c"])
        assert list(store.list()) == []
        store.put([Put("a/b", Held(b"again"))])
        assert store.read("a/b", 10) == b"again"

    def test_a_content_that_cannot_be_read_leaves_nothing_half(self, store: ObjectStore) -> None:
        def read(length: int, offset: int) -> bytes:
            if offset >= self.large_bytes // 2:
                raise Damaged("the block is broken")
            return bytes(min(length, self.large_bytes - offset))

        broken: Content = Lazy(self.large_bytes, read)
        with pytest.raises(Damaged, match="the block is broken"):
            store.put([Put("x", broken)])
        assert store.size("x") is None
        store.put([Put("x", Held(b"whole"))])
        assert store.read("x", 10) == b"whole"

    def test_threads_share_it(self, store: ObjectStore) -> None:
        def work(at: int) -> bool:
            data = pattern(50_000 + at, at)
            store.put([Put(f"t/{at}", Held(data))])
            return store.read(f"t/{at}", 100_000) == data

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(work, range(40)))
        assert len(list(store.list("t/"))) == 40
