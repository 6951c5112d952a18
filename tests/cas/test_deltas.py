"""Deltas: which base and sibling a block gets, how deep chains go, and that reading and care know them."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from gpu_train_cas import Added, Bases, Codec, Entry, Record, Store, TensorClass
from gpu_train_cas.chunking import Span
from gpu_train_cas.codecs import Encoded, Grid
from gpu_train_cas.deltas import MAX_DEPTH, Base, base_within
from gpu_train_cas.digest import Digest, Kind, digest_of
from gpu_train_cas.errors import Damaged, NotFound, SourceChanged
from gpu_train_cas.formats import Layout, Tensor
from gpu_train_cas.frame import FrameHeader, open_frame
from gpu_train_cas.index import Location
from gpu_train_cas.pack import PackReader, pack_path
from gpu_train_cas.pairing import Pairing
from gpu_train_cas.reader import MAX_CHAIN, Reader
from gpu_train_cas.repair import rebuild_registry

MIB = 1 << 20
Arrays = dict[str, np.ndarray]
DTYPES = {"float32": "F32", "uint16": "BF16", "float16": "F16", "int64": "I64"}


def safetensors(path: Path, arrays: Arrays, note: str = "") -> None:
    """A safetensors file; uint16 stands for BF16."""
    header: dict[str, object] = {"__metadata__": {"note": note}}
    at = 0
    for name, array in arrays.items():
        end = at + array.nbytes
        header[name] = {
            "dtype": DTYPES[str(array.dtype)], "shape": list(array.shape), "data_offsets": [at, end],
        }  # fmt: skip
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(a.tobytes() for a in arrays.values()))


def bf16(values: np.ndarray) -> np.ndarray:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def weights(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count, dtype=np.float32) * np.float32(0.02)


def nudged(values: np.ndarray, seed: int = 1, by: float = 1e-4) -> np.ndarray:
    """The values after a few steps of training."""
    noise = np.random.default_rng(seed).standard_normal(values.shape, dtype=np.float32)
    return values * (1 + np.float32(by) * noise)


def moments(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two moments of widely different sizes: the second tells how large the first is."""
    rng = np.random.default_rng(seed)
    second = np.exp(rng.uniform(-40, 0, count)).astype(np.float32)
    first = second * (1 + np.float32(1e-3) * rng.standard_normal(count, dtype=np.float32))
    return first, second


def put(store: Store, path: Path, bases: Bases | None = None, name: str = "c") -> tuple[Digest, Added]:
    with store.writer("test") as writer:
        added = writer.add_tree(path, bases=bases)
        with writer.commit() as txn:
            return txn.put_record(Record("checkpoint", "job", name, time.time_ns(), added.root)), added


def blocks_of(store: Store, root: Entry, path: bytes) -> list[Location]:
    entry = store.reader.lookup(root, path)
    found = []
    for ref in store.reader.manifest(entry).blocks():
        location = store.packs.locate(ref.digest)
        assert location is not None
        found.append(location)
    return found


def deltas_of(store: Store, root: Entry, path: bytes) -> list[Location]:
    return [location for location in blocks_of(store, root, path) if location.base is not None]


def check_content(store: Store, root: Entry, source: Path) -> None:
    """Every file comes back, through a reader that has nothing in its cache."""
    reader = Reader([store.packs], 1)
    for path, entry in reader.walk(root):
        file = source / os.fsdecode(path)
        if file.is_file():
            assert reader.open(entry).pread(entry.size_bytes, 0) == file.read_bytes(), path


def chain(store: Store, tmp_path: Path, length: int, depth: int) -> list[tuple[Digest, Added, Path]]:
    """So many checkpoints of one tensor, each with the one before it as base."""
    values = weights(MIB // 4)
    done: list[tuple[Digest, Added, Path]] = []
    for step in range(length):
        path = tmp_path / f"step-{step}"
        safetensors(path / "model.safetensors", {"w": values})
        roots = [added.root for _, added, _ in reversed(done)]
        depths = dict.fromkeys(TensorClass, depth)
        done.append((*put(store, path, Bases(roots, depths), f"s{step}"), path))
        values = nudged(values, step + 10)
    return done


# Pairing


def test_the_same_tensor_becomes_a_delta_and_comes_back(tmp_path: Path, store: Store) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    values = weights(MIB)
    safetensors(first / "model.safetensors", {"w": values})
    safetensors(
        second / "model.safetensors", {"w": nudged(values)}, note="a header of quite another length than before"
    )
    _, base = put(store, first)
    _, added = put(store, second, Bases([base.root]))
    deltas = deltas_of(store, added.root, b"model.safetensors")
    assert len(deltas) == 4
    assert {d.codec for d in deltas} == {Codec.DELTA}
    assert added.stored_bytes < 0.8 * base.stored_bytes
    cost = added.classes[TensorClass.WEIGHTS]
    assert (cost.original_bytes, cost.new_bytes, cost.depth) == (4 * MIB, 4 * MIB, 1)
    check_content(store, added.root, second)
    stats = store.stats([added.root])
    assert stats.codecs[Codec.DELTA].blocks == 4
    assert stats.classes[TensorClass.WEIGHTS].codecs[Codec.DELTA].original_bytes == 4 * MIB


def test_without_bases_nothing_is_a_delta(tmp_path: Path, store: Store) -> None:
    for name in "ab":
        safetensors(tmp_path / name / "m.safetensors", {"w": nudged(weights(MIB), ord(name))})
        _, added = put(store, tmp_path / name)
        assert not deltas_of(store, added.root, b"m.safetensors")


def test_a_file_of_another_name_with_the_same_tensors_is_found(tmp_path: Path, store: Store) -> None:
    values = weights(MIB // 2)
    safetensors(tmp_path / "a" / "lora-000100.safetensors", {"w": values})
    safetensors(tmp_path / "b" / "lora-000200.safetensors", {"w": nudged(values)})
    _, base = put(store, tmp_path / "a")
    _, added = put(store, tmp_path / "b", Bases([base.root]))
    assert deltas_of(store, added.root, b"lora-000200.safetensors")


@pytest.mark.parametrize("change", ["name", "shape", "dtype"])
def test_another_tensor_is_no_base(tmp_path: Path, store: Store, change: str) -> None:
    values = weights(MIB // 2).reshape(512, -1)
    other = nudged(values)
    arrays = {"name": {"v": other}, "shape": {"w": other.reshape(-1)}, "dtype": {"w": bf16(other)}}[change]
    safetensors(tmp_path / "a" / "m.safetensors", {"w": values, "x": values[:256] + 1})
    safetensors(tmp_path / "b" / "m.safetensors", {**arrays, "y": values[:256] + 2})
    _, base = put(store, tmp_path / "a")
    _, added = put(store, tmp_path / "b", Bases([base.root]))
    assert not deltas_of(store, added.root, b"m.safetensors")


def test_leading_parts_of_a_name_may_be_missing_on_one_side(tmp_path: Path, store: Store) -> None:
    values = weights(MIB // 2)
    safetensors(tmp_path / "base" / "m.safetensors", {"encoder.layer.0.w": values, "encoder.layer.1.w": values + 1})
    tuned = {
        "bert.encoder.layer.1.w": nudged(values + 1),
        "bert.encoder.layer.0.w": nudged(values),
        "head.w": values + 2,
    }
    safetensors(tmp_path / "tuned" / "m.safetensors", tuned)
    _, base = put(store, tmp_path / "base")
    _, added = put(store, tmp_path / "tuned", Bases([base.root]))
    assert len(deltas_of(store, added.root, b"m.safetensors")) == 4


def test_tensors_are_found_in_shards_of_other_names(tmp_path: Path, store: Store) -> None:
    values = {f"w{i}": weights(MIB // 4, i) for i in range(4)}
    for shard, names in ((1, ("w0", "w1")), (2, ("w2", "w3"))):
        safetensors(tmp_path / "a" / f"model-0000{shard}-of-00002.safetensors", {n: values[n] for n in names})
    safetensors(tmp_path / "b" / "model.safetensors", {n: nudged(v) for n, v in values.items()})
    _, base = put(store, tmp_path / "a")
    _, added = put(store, tmp_path / "b", Bases([base.root]))
    assert len(deltas_of(store, added.root, b"model.safetensors")) == 4


def test_each_tensor_takes_the_first_directory_that_has_it(tmp_path: Path, store: Store) -> None:
    one, other = weights(MIB // 2, 1), weights(MIB // 2, 2)
    safetensors(tmp_path / "one" / "m.safetensors", {"one": one})
    safetensors(tmp_path / "other" / "m.safetensors", {"other": other, "third": other + 1})
    roots = [put(store, tmp_path / name)[1].root for name in ("one", "other")]
    safetensors(tmp_path / "both" / "m.safetensors", {"one": nudged(one), "other": nudged(other)})
    _, added = put(store, tmp_path / "both", Bases(roots))
    assert len(deltas_of(store, added.root, b"m.safetensors")) == 4


def test_runs_of_small_tensors_are_paired_when_the_run_is_the_same(tmp_path: Path, store: Store) -> None:
    adapters = {f"lora_{i}": weights(6000, i) for i in range(60)}
    safetensors(tmp_path / "a" / "adapter.safetensors", adapters)
    safetensors(tmp_path / "b" / "adapter.safetensors", {k: nudged(v) for k, v in adapters.items()})
    renamed = {k.replace("_7", "_x"): nudged(v, 5) for k, v in adapters.items()}
    safetensors(tmp_path / "c" / "adapter.safetensors", renamed)
    _, base = put(store, tmp_path / "a")
    _, added = put(store, tmp_path / "b", Bases([base.root]))
    deltas = deltas_of(store, added.root, b"adapter.safetensors")
    assert sum(d.length for d in deltas) > 0.99 * 60 * 24_000
    check_content(store, added.root, tmp_path / "b")
    _, unlike = put(store, tmp_path / "c", Bases([base.root]))
    assert not deltas_of(store, unlike.root, b"adapter.safetensors")


def test_a_file_of_one_block_is_paired_too(tmp_path: Path, store: Store) -> None:
    adapters = {f"lora_{i}": weights(6000, i) for i in range(10)}
    safetensors(tmp_path / "a" / "adapter.safetensors", adapters)
    safetensors(tmp_path / "b" / "adapter.safetensors", {k: nudged(v) for k, v in adapters.items()})
    _, base = put(store, tmp_path / "a")
    _, added = put(store, tmp_path / "b", Bases([base.root]))
    assert len(deltas_of(store, added.root, b"adapter.safetensors")) == 1


def test_what_is_unchanged_is_found_and_not_encoded(tmp_path: Path, store: Store) -> None:
    values = weights(MIB)
    safetensors(tmp_path / "a" / "m.safetensors", {"frozen": values, "w": values + 1})
    safetensors(tmp_path / "b" / "m.safetensors", {"frozen": values, "w": nudged(values + 1)})
    _, base = put(store, tmp_path / "a")
    _, added = put(store, tmp_path / "b", Bases([base.root]))
    assert added.new_bytes == 4 * MIB
    assert added.classes[TensorClass.WEIGHTS].original_bytes == 8 * MIB


def test_a_base_directory_that_is_gone_only_costs_space(tmp_path: Path, store: Store) -> None:
    safetensors(tmp_path / "a" / "m.safetensors", {"w": weights(MIB)})
    safetensors(tmp_path / "b" / "m.safetensors", {"w": nudged(weights(MIB))})
    dropped, base = put(store, tmp_path / "a")
    store.trash(dropped)
    store.gc(trash_days=0)
    _, added = put(store, tmp_path / "b", Bases([base.root]))
    assert not deltas_of(store, added.root, b"m.safetensors")
    check_content(store, added.root, tmp_path / "b")


# Siblings


def adam(tmp_path: Path, name: str, arrays: Arrays) -> Path:
    safetensors(tmp_path / name / "optimizer.safetensors", arrays)
    return tmp_path / name


def siblings_of(store: Store, root: Entry) -> dict[Digest, Digest]:
    entry = store.reader.lookup(root, b"optimizer.safetensors")
    found = {}
    for ref in store.reader.manifest(entry).blocks():
        location = store.packs.locate(ref.digest)
        assert location is not None
        if location.sibling is not None:
            found[ref.digest] = location.sibling
    return found


@pytest.mark.parametrize("second_first", [False, True])
def test_a_first_moment_leans_on_the_second(tmp_path: Path, store: Store, second_first: bool) -> None:
    first, second = map(bf16, moments(MIB))
    arrays = {"state.0.exp_avg": first, "state.0.exp_avg_sq": second}
    if second_first:
        arrays = dict(reversed(arrays.items()))
    path = adam(tmp_path, "a", arrays)
    record, added = put(store, path)
    leaning = siblings_of(store, added.root)
    blocks = {digest_of(second.tobytes()[i : i + MIB]) for i in (0, MIB)}
    assert set(leaning.values()) == blocks
    assert {digest_of(first.tobytes()[i : i + MIB]) for i in (0, MIB)} == set(leaning)
    check_content(store, added.root, path)
    store.gc(trash_days=0)
    check_content(store, added.root, path)
    store.trash(record)
    store.gc(trash_days=0)
    assert all(store.packs.locate(d) is None for d in [*leaning, *leaning.values()])


def test_moments_take_base_and_sibling_over_several_checkpoints(tmp_path: Path, store: Store) -> None:
    first, second = moments(MIB)
    roots: list[Entry] = []
    for step in range(3):
        path = adam(tmp_path, f"s{step}", {"o.exp_avg": bf16(first), "o.exp_avg_sq": bf16(second)})
        _, added = put(store, path, Bases(roots[::-1]))
        roots.append(added.root)
        check_content(store, added.root, path)
        first, second = nudged(first, step), nudged(second, step + 50)
    assert siblings_of(store, roots[0])
    assert deltas_of(store, roots[-1], b"optimizer.safetensors")


def adam_run(store: Store, tmp_path: Path, length: int) -> list[tuple[Digest, Added, Path]]:
    """Checkpoints of a tensor in F32 that Adam trains, each with those before it as bases."""
    rng = np.random.default_rng(3)
    scale = np.exp(rng.standard_normal((512, 512))).astype(np.float32) * np.float32(1e-3)
    weight, second = weights(512 * 512).reshape(512, 512), (scale**2).astype(np.float32)
    first = scale * rng.standard_normal((512, 512), dtype=np.float32)
    done: list[tuple[Digest, Added, Path]] = []
    for step in range(length):
        first = np.float32(0.8) * first + np.float32(0.1) * scale * rng.standard_normal((512, 512), dtype=np.float32)
        second = np.float32(0.98) * second + np.float32(0.02) * first * first
        weight = weight - np.float32(1e-4) * first / np.sqrt(second)
        path = adam(tmp_path, f"step-{step}", {"o.exp_avg": first, "o.exp_avg_sq": second, "w": weight})
        done.append((*put(store, path, Bases([added.root for _, added, _ in reversed(done)]), f"s{step}"), path))
    return done


def test_training_in_f32_is_predicted_and_survives_gc_and_rebuild(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with Store.open(home) as store:
        done = adam_run(store, tmp_path, 4)
        names = ("first", "second", "weight")
        digests, blocks = [], []
        for _, added, _ in done:
            entry = store.reader.lookup(added.root, b"optimizer.safetensors")
            tensors = [ref.digest for ref in store.reader.manifest(entry).blocks()][1:]
            digests.append(dict(zip(names, tensors, strict=True)))
            blocks.append(dict(zip(names, blocks_of(store, added.root, b"optimizer.safetensors")[1:], strict=True)))
        for step in (1, 2, 3):
            assert blocks[step]["second"].base == digests[step - 1]["second"]
            assert blocks[step]["second"].sibling == digests[step]["first"]
        assert blocks[1]["weight"].sibling is None  # its base stands alone
        for step in (2, 3):
            assert blocks[step]["weight"].base == digests[step - 1]["weight"]
            assert blocks[step]["weight"].sibling == digests[step - 2]["weight"]
        for record, _, _ in done[:3]:
            store.trash(record)
        store.gc(trash_days=0)
        check_content(store, done[3][1].root, done[3][2])
    assert not rebuild_registry(home).problems
    with Store.open(home) as store:
        check_content(store, done[3][1].root, done[3][2])
        assert not store.verify().damaged


def test_two_moments_with_each_others_bytes_never_need_each_other(tmp_path: Path, store: Store) -> None:
    first, second = map(bf16, moments(MIB // 2))
    path = adam(
        tmp_path, "a",
        {"a.exp_avg": first, "b.exp_avg": second, "a.exp_avg_sq": second, "b.exp_avg_sq": first,
         "c.exp_avg": first, "c.exp_avg_sq": first},
    )  # fmt: skip
    _, added = put(store, path)
    leaning = siblings_of(store, added.root)
    assert not set(leaning) & set(leaning.values())
    check_content(store, added.root, path)


def test_a_sibling_that_changes_while_it_is_read_is_noticed(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = map(bf16, moments(MIB // 2))
    path = adam(tmp_path, "a", {"o.exp_avg": first, "o.exp_avg_sq": second})
    file = path / "optimizer.safetensors"
    found = file.stat()

    def change_quietly() -> None:
        """As a program with the file mapped does: neither size nor time tells."""
        with file.open("r+b") as f:
            f.seek(found.st_size - 8)
            f.write(b"\xff" * 8)
        os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))

    from gpu_train_cas import namer

    class AfterTheFirst:
        """Encodes as ever, and has the file change once the first block was encoded with its sibling."""

        done = False

        def __call__(self, *args: object, **words: object) -> Encoded:
            encoded = real(*args, **words)  # type: ignore[arg-type]
            if encoded.sibling and not self.done:
                self.done = True
                change_quietly()
            return encoded

    real = namer.encode
    monkeypatch.setattr(namer, "encode", AfterTheFirst())
    monkeypatch.setattr(namer, "IN_FLIGHT_BYTES", 1)
    with store.writer("test", threads=1) as writer, pytest.raises(SourceChanged):
        writer.add_tree(path)


# Depth


def depth_of(store: Store, root: Entry) -> int:
    location = deltas_of(store, root, b"model.safetensors")
    depth = 0
    while location:
        base = store.packs.locate(location[0].base)  # type: ignore[arg-type]
        depth += 1
        location = [base] if base is not None and base.base is not None else []
    return depth


@pytest.mark.parametrize("depth", [-1, 0, 1, MAX_DEPTH + 5])
def test_a_chain_is_never_deeper_than_asked_for_and_allowed(tmp_path: Path, store: Store, depth: int) -> None:
    done = chain(store, tmp_path, MAX_DEPTH + 3, depth)
    most = min(depth + 1, MAX_DEPTH)
    assert [depth_of(store, added.root) for _, added, _ in done] == [min(i, most) for i in range(MAX_DEPTH + 3)]
    assert [a.classes[TensorClass.WEIGHTS].depth for _, a, _ in done] == [min(i, most) for i in range(MAX_DEPTH + 3)]
    for _, added, path in done:
        check_content(store, added.root, path)


def test_a_base_too_deep_is_replaced_by_one_down_its_chain(tmp_path: Path, store: Store) -> None:
    done = chain(store, tmp_path, MAX_DEPTH + 1, MAX_DEPTH)
    digests = [
        store.reader.manifest(store.reader.lookup(added.root, b"model.safetensors")).block(1).digest
        for _, added, _ in done
    ]
    with store.registry.read() as txn:
        index = store.tables.index
        assert base_within(txn, index, digests[-1], MAX_DEPTH) == Base(digests[-1], MAX_DEPTH, digests[-2])
        for depth in range(MAX_DEPTH):
            earlier = digests[depth - 1] if depth else None
            assert base_within(txn, index, digests[-1], depth) == Base(digests[depth], depth, earlier)
        assert base_within(txn, index, digests[-1], -1) is None
        assert base_within(txn, index, Digest(bytes(31) + b"x"), 3) is None


# Reading


def test_many_threads_decode_a_shared_base_once(tmp_path: Path, store: Store) -> None:
    done = chain(store, tmp_path, 4, 0)
    fetched: list[Digest] = []

    class Counting:
        def fetch(self, digest: Digest) -> tuple[FrameHeader, memoryview] | None:
            fetched.append(digest)
            return store.packs.fetch(digest)

    reader = Reader([Counting()])
    with ThreadPoolExecutor(8) as pool:
        files = [reader.open(reader.lookup(added.root, b"model.safetensors")) for _, added, _ in done]
        data = list(pool.map(lambda f: f.pread(f.size_bytes, 0), files))
    assert data == [(path / "model.safetensors").read_bytes() for _, _, path in done]
    base = {d.base for _, added, _ in done for d in deltas_of(store, added.root, b"model.safetensors")}
    assert all(fetched.count(digest) == 1 for digest in base if digest is not None)


class Hostile:
    """A source that says what it is told to."""

    def __init__(self) -> None:
        self.frames: dict[Digest, tuple[FrameHeader, bytes]] = {}

    def add(self, data: bytes, base: Digest, sibling: Digest | None = None) -> None:
        digest = digest_of(data)
        self.frames[digest] = (FrameHeader(Kind.BLOCK, Codec.DELTA, digest, len(data), 2, base, sibling), b"\1\1")

    def fetch(self, digest: Digest) -> tuple[FrameHeader, memoryview] | None:
        found = self.frames.get(digest)
        return None if found is None else (found[0], memoryview(found[1]))


def test_a_circle_of_deltas_is_damage_however_many_threads_meet_it() -> None:
    hostile = Hostile()
    names = [b"%d" % i * 100 for i in range(5)]
    for at, name in enumerate(names):
        hostile.add(name, digest_of(names[(at + 1) % 5]), digest_of(names[(at + 2) % 5]))
    hostile.add(b"self" * 9, base=digest_of(b"self" * 9))
    reader = Reader([hostile])
    with pytest.raises(Damaged, match="itself"):
        reader.block(digest_of(b"self" * 9))

    def tried(name: bytes) -> bool:
        with pytest.raises(Damaged):
            reader.block(digest_of(name))
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(tried, names * 40, timeout=60))


def test_a_chain_without_end_is_damage() -> None:
    hostile = Hostile()
    names = [b"%04d" % i * 100 for i in range(MAX_CHAIN * 4)]
    for name, base in pairwise(names):
        hostile.add(name, base=digest_of(base))
    with pytest.raises(Damaged, match=f"more than {MAX_CHAIN} deltas"):
        Reader([hostile]).block(digest_of(names[0]))


def test_a_missing_base_is_named() -> None:
    hostile = Hostile()
    hostile.add(b"data" * 100, base=digest_of(b"gone"))
    with pytest.raises(Damaged, match=digest_of(b"gone").hex()[:16]):
        Reader([hostile]).block(digest_of(b"data" * 100))


@pytest.mark.parametrize("codec", [Codec.RAW, Codec.ZSTD])
def test_a_frame_of_another_codec_must_name_no_block(codec: Codec) -> None:
    data = b"abc" * 10
    header = FrameHeader(Kind.BLOCK, codec, digest_of(data), 30, 30, digest_of(b"x"))
    with pytest.raises(Damaged, match="names another block"):
        open_frame(header, data, lambda _: b"")


# Care


def test_gc_keeps_what_deltas_need_and_moves_them_whole(tmp_path: Path, store: Store) -> None:
    done = chain(store, tmp_path, 4, MAX_DEPTH)
    bases = [at for _, one, _ in done for at in blocks_of(store, one.root, b"model.safetensors")[1:]]
    waste = tmp_path / "waste"
    waste.mkdir()
    (waste / "f").write_bytes(os.urandom(8 * MIB))
    with store.writer("test") as writer:  # a pack with the last delta and much that will not be needed
        values = nudged(np.frombuffer((done[-1][2] / "model.safetensors").read_bytes()[-MIB:], np.float32), 99)
        safetensors(waste / "model.safetensors", {"w": values})
        added = writer.add_tree(waste, bases=Bases([done[-1][1].root]))
        only = writer.add_file(waste / "model.safetensors", bases=Bases([done[-1][1].root]))
        with writer.commit() as txn:
            dropped = txn.put_record(Record("checkpoint", "job", "waste", time.time_ns(), added.root))
            txn.put_record(Record("checkpoint", "job", "last", time.time_ns(), only.root))
    for record in [record for record, _, _ in done] + [dropped]:
        store.trash(record)
    planned = store.gc(trash_days=0, dry_run=True)
    report = store.gc(trash_days=0)
    assert report.packs > 0
    assert not report.kept
    assert planned.held_bytes == report.held_bytes == sum(location.stored_bytes for location in bases)
    (location,) = deltas_of(store, only.root, b"model.safetensors")
    assert location.base is not None
    got = Reader([store.packs]).open(store.reader.lookup(only.root, b"model.safetensors")).pread(1 << 30, 0)
    assert got == (waste / "model.safetensors").read_bytes()
    assert not store.verify().damaged


def first_frame_of(store: Store, digest: Digest) -> tuple[Path, int]:
    location = store.packs.locate(digest)
    assert location is not None
    with store.registry.read() as txn:
        name = store.tables.index.pack_name(txn, location.pack)
    assert name is not None
    return pack_path(store.folders.packs, name), location.offset


def test_verify_tells_what_a_broken_base_hits_and_a_writer_mends_it(tmp_path: Path, store: Store) -> None:
    done = chain(store, tmp_path, 3, 0)
    (location,) = deltas_of(store, done[1][1].root, b"model.safetensors")
    assert location.base is not None
    pack, offset = first_frame_of(store, location.base)
    data = bytearray(pack.read_bytes())
    data[offset + 200] ^= 1
    pack.write_bytes(data)
    report = store.verify()
    assert {hit.name for hit in report.hits} == {"s0", "s1", "s2"}
    with pytest.raises(Damaged, match=location.base.hex()[:16]):
        Reader([store.packs]).open(store.reader.lookup(done[1][1].root, b"model.safetensors")).pread(1 << 30, 0)
    with store.registry.read() as txn:
        assert not store.tables.index.usable(txn, location.base)
    put(store, done[0][2])
    assert not store.verify().damaged
    for _, added, path in done:
        check_content(store, added.root, path)


def test_verifying_one_record_reads_what_its_deltas_need(tmp_path: Path, store: Store) -> None:
    done = chain(store, tmp_path, 2, 0)
    report = store.verify(records=[done[1][0]])
    (location,) = deltas_of(store, done[1][1].root, b"model.safetensors")
    pack, offset = first_frame_of(store, location.base)  # type: ignore[arg-type]
    assert not report.damaged
    data = bytearray(pack.read_bytes())
    data[offset + 200] ^= 1
    pack.write_bytes(data)
    assert {hit.name for hit in store.verify(records=[done[1][0]]).hits} == {"s1"}


def test_a_lost_registry_is_rebuilt_with_deltas_and_siblings(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with Store.open(home) as store:
        done = chain(store, tmp_path, 4, MAX_DEPTH)
        first, second = map(bf16, moments(MIB))
        path = adam(tmp_path, "adam", {"o.exp_avg": first, "o.exp_avg_sq": second})
        _, added = put(store, path)
        with store.registry.read() as txn:
            before = {d: (loc.base, loc.sibling) for d, loc in store.tables.index.scan(txn)}
    assert any(sibling for _, sibling in before.values())
    for check in (False, True):
        report = rebuild_registry(home, check=check)
        assert not report.problems
        with Store.open(home) as store:
            with store.registry.read() as txn:
                assert {d: (loc.base, loc.sibling) for d, loc in store.tables.index.scan(txn)} == before
            for _, one, source in done:
                check_content(store, one.root, source)
            check_content(store, added.root, path)
            assert not store.verify().damaged


def test_a_rebuild_leaves_out_a_delta_whose_base_is_lost_and_says_so(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with Store.open(home) as store:
        done = chain(store, tmp_path, 2, 0)
        (location,) = deltas_of(store, done[1][1].root, b"model.safetensors")
        pack, _ = first_frame_of(store, location.base)  # type: ignore[arg-type]
    pack.unlink()
    report = rebuild_registry(home)
    assert any("needs a block which is in no pack" in problem for problem in report.problems)
    with Store.open(home) as store, pytest.raises(NotFound):
        store.reader.open(store.reader.lookup(done[1][1].root, b"model.safetensors")).pread(10, 1000)


def test_a_pack_tells_of_siblings_in_its_index_and_by_its_frames(tmp_path: Path, store: Store) -> None:
    first, second = map(bf16, moments(MIB))
    put(store, adam(tmp_path, "a", {"o.exp_avg": first, "o.exp_avg_sq": second}))
    (pack,) = store.folders.packs.glob("??/*.pack")
    with PackReader(pack) as reader:
        entries = reader.index()
        assert any(entry.header.sibling for entry in entries)
        assert list(reader.scan()) == entries
    data = bytearray(pack.read_bytes())
    at = data.index(next(e.header.sibling for e in entries if e.header.sibling), entries[-1].end)
    data[at] ^= 1
    pack.write_bytes(data)
    with PackReader(pack) as reader, pytest.raises(Damaged):
        reader.index()


def test_a_commit_revives_what_it_takes_to_decode_what_it_relies_on(tmp_path: Path, store: Store) -> None:
    done = chain(store, tmp_path, 3, MAX_DEPTH)
    with store.writer("test") as writer:
        again = writer.add_tree(done[2][2])
        assert again.new_bytes == 0
        for record, _, _ in done:
            store.trash(record)
        report = store.gc(trash_days=0)  # the writer's lease holds the bytes, not the entries
        assert report.waiting
        assert deltas_of_dead(store)
        with writer.commit() as txn:
            txn.put_record(Record("checkpoint", "job", "again", time.time_ns(), again.root))
    check_content(store, again.root, done[2][2])
    assert not store.verify().damaged
    store.gc(trash_days=0)
    check_content(store, again.root, done[2][2])


def deltas_of_dead(store: Store) -> list[Location]:
    with store.registry.read() as txn:
        return [location for _, location in store.tables.index.scan_dead(txn) if location.base]


class Spoiled:
    """A source that is whole but for some frames, of which it gives other bytes under a sound header."""

    def __init__(self, store: Store, *spoiled: Digest) -> None:
        self._store, self._spoiled = store, set(spoiled)

    def fetch(self, digest: Digest) -> tuple[FrameHeader, memoryview] | None:
        found = self._store.packs.fetch(digest)
        if found is None or digest not in self._spoiled:
            return found
        header, _ = found
        data = os.urandom(header.length)
        return header._replace(codec=Codec.RAW, stored_bytes=len(data), base=None), memoryview(data)


def test_a_base_that_is_not_what_it_should_be_is_named_and_another_source_is_asked(
    tmp_path: Path, store: Store
) -> None:
    done = chain(store, tmp_path, 3, MAX_DEPTH)
    (location,) = deltas_of(store, done[2][1].root, b"model.safetensors")
    assert location.base is not None
    wanted = (done[2][2] / "model.safetensors").read_bytes()
    entry = store.reader.lookup(done[2][1].root, b"model.safetensors")
    spoiled = Spoiled(store, location.base)
    with pytest.raises(Damaged, match=location.base.hex()[:16]):
        Reader([spoiled]).open(entry).pread(1 << 30, 0)
    assert Reader([spoiled, store.packs]).open(entry).pread(1 << 30, 0) == wanted


def test_a_block_decoded_for_a_delta_is_proven_before_it_is_handed_out(tmp_path: Path, store: Store) -> None:
    done = chain(store, tmp_path, 2, 0)
    (location,) = deltas_of(store, done[1][1].root, b"model.safetensors")
    assert location.base is not None
    reader = Reader([Spoiled(store, location.base)])
    for _ in range(2):
        with pytest.raises(Damaged):
            reader.open(store.reader.lookup(done[1][1].root, b"model.safetensors")).pread(1 << 30, 0)
        with pytest.raises(Damaged):
            reader.block(location.base)
    sound = Reader([store.packs])
    sound.open(store.reader.lookup(done[1][1].root, b"model.safetensors")).pread(1 << 30, 0)
    assert digest_of(sound.block(location.base)) == location.base


def test_spans_know_their_rows_and_columns() -> None:
    item, rows, row = 4, 700, 900
    length = rows * row * item
    names = ("state.0.exp_avg", "state.0.exp_avg_sq", "model.weight")
    tensors = tuple(Tensor(n, "F32", (rows, row), 8 + i * length, length) for i, n in enumerate(names))
    size = 8 + len(names) * length
    pairing = Pairing(Layout("safetensors", tensors, {}), size, (), {})

    def grid(tensor: int, at: int) -> Grid | None:
        start = tensors[tensor].offset + at
        return pairing.grid_of(Span(start, start + MIB, "F32", memoryview(bytes(MIB))))

    assert grid(0, 0) == grid(1, 0) == Grid(row, 0, is_moment=True)
    assert grid(0, MIB) == grid(1, MIB) == Grid(row, MIB // item % row, is_moment=True)
    assert grid(2, MIB) == Grid(row, MIB // item % row, is_moment=False)
    flat = (Tensor("state.0.exp_avg", "F32", (rows * row,), 8, length),)
    vector = Pairing(Layout("safetensors", flat, {}), 8 + length, (), {})
    assert vector.grid_of(Span(8, 8 + MIB, "F32", memoryview(bytes(MIB)))) is None
