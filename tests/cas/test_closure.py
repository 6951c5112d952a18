"""All that records need goes from one store to another, and only what is whole does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gpu_train_cas import Bases, Record, Store
from gpu_train_cas.closure import Closure, Frame
from gpu_train_cas.digest import Digest, Kind
from gpu_train_cas.errors import Damaged
from gpu_train_cas.pack import pack_path
from gpu_train_cas.tensorclass import TensorClass

MIB = 1 << 20


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "other") as other:
        yield other


@pytest.fixture
def steps(store: Store, tmp_path: Path, safetensors) -> list[tuple[Digest, Path]]:
    """Three checkpoints of a run, stored as deltas, with the record of each."""
    values = np.random.default_rng(0).standard_normal(MIB, dtype=np.float32)
    found: list[tuple[Digest, Path]] = []
    roots: list = []
    for step in range(3):
        path = tmp_path / f"step-{step}"
        (path / "empty").mkdir(parents=True)
        (path / "link").symlink_to("model.safetensors")
        (path / "none").touch()
        (path / "notes.txt").write_text("the same in all\n" * 1000)
        safetensors(path / "model.safetensors", {"w": values})
        bases = Bases(roots=list(reversed(roots)), depths=dict.fromkeys(TensorClass, 2))
        with store.writer("test") as writer:
            added = writer.add_tree(path, bases=bases)
            with writer.commit() as txn:
                found.append((txn.put_record(Record("checkpoint", "job", f"s{step}", step, added.root)), path))
        roots.append(added.root)
        values = values * (1 + 1e-4 * np.random.default_rng(step).standard_normal(MIB, dtype=np.float32))
    return found


def copy(closure: Closure, there: Store, records: list[Digest]) -> list[Frame]:
    """Copy records with all that they need that is not there; the frames that were."""
    relied: list[Digest] = []
    moved: list[Frame] = []

    def has(digest: Digest, kind: Kind) -> bool:
        with there.registry.read() as txn:
            if kind is Kind.BLOCK and there.tables.index.usable(txn, digest):
                relied.append(digest)
                return True
            return False

    def frames() -> Iterator[Frame]:
        for frame in closure.needed(records, has):
            moved.append(frame)
            yield frame

    there.adopt(frames(), lambda txn: [txn.put_record(closure.reader.record(digest)) for digest in records], relied)
    return moved


def test_a_record_arrives_with_all_that_it_needs(store, other, steps, tmp_path, seen) -> None:
    record, path = steps[-1]
    with Closure([store.packs]) as closure:
        moved = copy(closure, other, [record])
    assert any(frame.header.base for frame in moved), "nothing in it is a delta"
    names = [frame.header.digest for frame in moved]
    assert len(names) == len(set(names))
    for at, frame in enumerate(moved):
        assert set(frame.header.references) <= set(names[:at]), "a delta came before what it is decoded with"
    other.restore(other.record(record).root, tmp_path / "back")
    assert seen(tmp_path / "back") == seen(path)
    assert [digest for digest, _ in other.records()] == [record]
    assert not other.verify().damaged


def test_only_what_is_missing_is_copied(store, other, steps) -> None:
    records = [record for record, _ in steps]
    with Closure([store.packs]) as closure:
        first = copy(closure, other, records[:2])
        second = copy(closure, other, records[1:])
        blocks = [{f.header.digest for f in moved if f.header.kind is Kind.BLOCK} for moved in (first, second)]
    assert blocks[1] and not blocks[0] & blocks[1]
    assert not other.verify().damaged


def test_objects_alone(store, steps) -> None:
    with Closure([store.packs]) as closure:
        kinds = {f.header.kind for f in closure.needed([r for r, _ in steps], lambda d, k: False, blocks=False)}
    assert kinds == {Kind.RECORD, Kind.TREE, Kind.MANIFEST}


def damage(store: Store, digest: Digest) -> None:
    location = store.packs.locate(digest)
    with store.registry.read() as txn:
        name = store.tables.index.pack_name(txn, location.pack)
    path = pack_path(store.folders.packs, name)
    path.chmod(0o644)
    with path.open("r+b") as pack:
        pack.seek(location.offset + 200)
        byte = pack.read(1)[0]
        pack.seek(location.offset + 200)
        pack.write(bytes([byte ^ 0xFF]))
        os.fsync(pack.fileno())


def test_what_is_broken_is_not_copied_unless_another_source_has_it_whole(store, other, steps, tmp_path, seen) -> None:
    record, path = steps[-1]
    third = Store.open(tmp_path / "third")
    with Closure([store.packs]) as closure:
        moved = copy(closure, other, [record])
    largest = max((f for f in moved if f.header.kind is Kind.BLOCK), key=lambda f: f.header.stored_bytes)
    damage(store, largest.header.digest)
    with Closure([store.packs]) as closure, pytest.raises(Damaged):
        copy(closure, third, [record])
    assert list(third.records()) == []
    with Closure([store.packs, other.packs]) as closure:
        copy(closure, third, [record])
    third.restore(third.record(record).root, tmp_path / "back")
    assert seen(tmp_path / "back") == seen(path)
    third.close()


def test_a_broken_block_is_mended_by_another_copy(store, other, steps) -> None:
    record, _ = steps[-1]
    with Closure([store.packs]) as closure:
        moved = copy(closure, other, [record])
        broken = next(f.header.digest for f in moved if f.header.kind is Kind.BLOCK and f.header.stored_bytes > 1000)
        damage(other, broken)
        assert other.verify().damaged
        assert broken in {frame.header.digest for frame in copy(closure, other, [record])}
    assert not other.verify().damaged
