"""Bases are read from the plain files that they were stored from, and nothing that these say is believed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from gpu_train_cas import Added, Bases, Codec, Original, Record, Store
from gpu_train_cas.digest import Digest
from gpu_train_cas.originals import Originals
from gpu_train_cas.pack import PackReader, pack_path
from gpu_train_cas.reader import Reader

MIB = 1 << 20
Write = Callable[..., None]


def values(step: int) -> np.ndarray:
    start = np.random.default_rng(0).standard_normal((4, MIB // 4), dtype=np.float32)
    noise = np.random.default_rng(1 + step).standard_normal(start.shape, dtype=np.float32)
    return start * (1 + np.float32(1e-4) * step * noise)


def put(store: Store, folder: Path, bases: Bases | None = None) -> Added:
    with store.writer("test") as writer:
        added = writer.add_tree(folder, bases=bases)
        with writer.commit() as txn:
            txn.put_record(Record("checkpoint", "job", folder.name, time.time_ns(), added.root))
    return added


def codecs(store: Store, added: Added) -> list[Codec]:
    """How the blocks of its tensor are stored, and that they come back."""
    reader = Reader([store.packs], 1)
    entry = reader.lookup(added.root, b"model.safetensors")
    found = []
    for ref in list(reader.manifest(entry).blocks())[1:]:
        location = store.packs.locate(ref.digest)
        assert location is not None
        found.append(location.codec)
    reader.open(entry).pread(entry.size_bytes, 0)
    return found


def tensor_blocks(store: Store, added: Added) -> list[Digest]:
    entry = store.reader.lookup(added.root, b"model.safetensors")
    return [ref.digest for ref in store.reader.manifest(entry).blocks()][1:]


@pytest.fixture
def first(tmp_path: Path, store: Store, safetensors: Write) -> tuple[Path, Added]:
    """A stored checkpoint and its folder; and beside it the next one, not stored yet."""
    for step in (0, 1):
        safetensors(tmp_path / f"step-{step}" / "model.safetensors", {"w": values(step)})
    return tmp_path / "step-0", put(store, tmp_path / "step-0")


@pytest.fixture
def originals(store: Store, first: tuple[Path, Added]) -> Iterator[Originals]:
    made = Originals(store.reader, [Original(first[1].root, first[0])])
    yield made
    made.close()


def break_payloads(store: Store, digests: list[Digest]) -> None:
    """Flip a bit in the stored bytes of blocks, as a bad disk does."""
    for digest in digests:
        location = store.packs.locate(digest)
        assert location is not None
        with store.registry.read() as txn:
            name = store.tables.index.pack_name(txn, location.pack)
        assert name is not None
        path = pack_path(store.folders.packs, name)
        with PackReader(path) as reader:
            entry = next(e for e in reader.index() if e.header.digest == digest)
        with path.open("r+b") as file:
            file.seek(entry.end - 300)
            byte = file.read(1)[0]
            file.seek(entry.end - 300)
            file.write(bytes([byte ^ 1]))


def test_a_base_is_read_from_its_original(store: Store, first: tuple[Path, Added], tmp_path: Path) -> None:
    folder, added = first
    break_payloads(store, tensor_blocks(store, added))  # so that only the plain file can tell
    bases = Bases([added.root], originals=[Original(added.root, folder)])
    with store.writer("test") as writer:
        assert writer.add_tree(tmp_path / "step-1", bases=bases).stored_bytes < 3 * MIB
    with store.writer("test") as writer:
        assert writer.add_tree(tmp_path / "step-1", bases=Bases([added.root])).stored_bytes > 3 * MIB


def test_blocks_are_found_by_name_and_come_as_they_are(
    store: Store, first: tuple[Path, Added], originals: Originals
) -> None:
    reader = Reader([originals])
    for digest in tensor_blocks(store, first[1]):
        assert reader.block(digest) == store.reader.block(digest)
    assert originals.fetch(Digest(b"?" * 32)) is None
    originals.close()
    assert originals.fetch(tensor_blocks(store, first[1])[0]) is None


def overwritten(path: Path) -> None:
    path.write_bytes(os.urandom(path.stat().st_size))


def overwritten_quietly(path: Path) -> None:
    """Neither size nor time tells."""
    found = path.stat()
    overwritten(path)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def cut_while_in_use(path: Path) -> None:
    os.truncate(path, 5000)


def replaced_by_a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replaced_by_a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


@pytest.mark.parametrize(
    "change", [Path.unlink, overwritten, overwritten_quietly, replaced_by_a_fifo, replaced_by_a_link]
)
def test_an_original_that_is_another_now_costs_nothing_but_time(
    store: Store, first: tuple[Path, Added], tmp_path: Path, change: Callable[[Path], None]
) -> None:
    folder, added = first
    change(folder / "model.safetensors")
    later = put(store, tmp_path / "step-1", Bases([added.root], originals=[Original(added.root, folder)]))
    assert codecs(store, later) == [Codec.DELTA] * 4
    assert not store.verify().damaged


def test_an_original_cut_short_while_it_is_in_use_is_left_alone(
    store: Store, first: tuple[Path, Added], originals: Originals
) -> None:
    digests = tensor_blocks(store, first[1])
    assert originals.fetch(digests[0]) is not None
    cut_while_in_use(first[0] / "model.safetensors")
    assert [originals.fetch(digest) for digest in digests] == [None] * 4
    reader = store.reader.after(originals)
    assert [len(reader.block(digest)) for digest in digests] == [MIB] * 4
