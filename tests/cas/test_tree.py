"""Trees, manifests and records: the same content gives the same bytes, and nothing damaged or hostile is believed."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpu_train_cas import Entry, EntryKind, Manifest, Record, Tensor, Tree
from gpu_train_cas.digest import HOLE, Digest, digest_of
from gpu_train_cas.errors import Damaged, GpuTrainError, TooNew, UnsafeName

FILE = Entry(b"a", EntryKind.FILE, 0o644, 123, 5, digest_of(b"hello"), None, None, 1)


def directory(name: bytes, *entries: Entry, mtime_ns: int = 0) -> Entry:
    tree = Tree.of(entries)
    digest, _ = tree.encode()
    return Entry(name, EntryKind.DIRECTORY, 0o755, mtime_ns, 0, digest, None, tree.content(), len(entries))


def test_a_tree_comes_back_sorted_and_deterministic() -> None:
    entries = [FILE._replace(name=n) for n in (b"b", b"\xff\xfe", b"a", b"a.b")]
    tree = Tree.of(entries)
    digest, data = tree.encode()
    assert Tree.of(reversed(entries)).encode() == (digest, data)
    assert Tree.decode(data) == tree
    assert [e.name for e in tree.entries] == [b"a", b"a.b", b"b", b"\xff\xfe"]
    assert tree.find(b"a.b") == entries[3]
    assert tree.find(b"aa") is None


def test_identity_is_blind_to_times_and_to_nothing_else() -> None:
    plain = directory(b"d", FILE)
    assert directory(b"d", FILE._replace(mtime_ns=999), mtime_ns=7).identity == plain.identity
    for other in (FILE._replace(mode=0o600), FILE._replace(name=b"b"), FILE._replace(digest=digest_of(b"x"))):
        assert directory(b"d", other).identity != plain.identity


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/b", b"/etc", b"a\0b"])
def test_names_that_would_leave_the_folder_are_refused(name: bytes) -> None:
    wire = [1, [FILE._replace(name=name).to_wire()]]
    with pytest.raises(UnsafeName):
        Tree.decode(msgpack.packb(wire))


@pytest.mark.parametrize("names", [[b"b", b"a"], [b"a", b"a"]])
def test_names_out_of_order_or_twice_are_damage(names: list[bytes]) -> None:
    wire = [1, [FILE._replace(name=n).to_wire() for n in names]]
    with pytest.raises(Damaged):
        Tree.decode(msgpack.packb(wire))


def test_later_versions_are_refused_by_name() -> None:
    with pytest.raises(TooNew):
        Tree.decode(msgpack.packb([2, []]))
    with pytest.raises(TooNew):
        Manifest.decode(msgpack.packb([2, 0, b"", b"", b"", "", []]))


@given(st.binary(max_size=200))
@example(msgpack.packb({}))
def test_junk_is_an_error_of_ours(data: bytes) -> None:
    for decode in (Tree.decode, Manifest.decode, Record.decode):
        with pytest.raises(GpuTrainError):
            decode(data)


def test_a_record_comes_back_with_a_name_that_is_no_utf8() -> None:
    root = directory(b"")._replace(name=b"")
    record = Record("checkpoint", "job-1", "step\udcff", 42, root, {"step": 5, "metrics": {"loss": 1.5}})
    digest, data = record.encode()
    assert Record.decode(data) == record
    assert record.encode()[0] == digest


def manifest() -> Manifest:
    digests = digest_of(b"1") + HOLE + digest_of(b"2")
    tensors = [Tensor("w", "F32", (2, 3), 8, 24), Tensor("v", "BF16", (4,), 40, 8)]
    return Manifest(100, digest_of(b"all"), digests, [10, 60, 100], "safetensors", tensors)


def test_a_manifest_finds_blocks_by_offset() -> None:
    m = Manifest.decode(manifest().encode()[1])
    assert [(r.start, r.end) for r in m.covering(0, 100)] == [(0, 10), (10, 60), (60, 100)]
    assert [(r.start, r.end) for r in m.covering(10, 11)] == [(10, 60)]
    assert [(r.start, r.end) for r in m.covering(59, 61)] == [(10, 60), (60, 100)]
    assert list(m.covering(100, 200)) == list(m.covering(5, 5)) == []
    assert m.stored_digests() == {digest_of(b"1"), digest_of(b"2")}
    assert m.tensors == manifest().tensors
    assert [m.tensor_at(i) for i in (7, 8, 31, 32, 40, 48)] == [
        None, m.tensors[0], m.tensors[0], None, m.tensors[1], None,
    ]  # fmt: skip


@pytest.mark.parametrize("ends", [[10, 60, 99], [10, 10, 100], [60, 10, 100], [10, 100]])
def test_a_manifest_whose_blocks_do_not_add_up_is_damage(ends: list[int]) -> None:
    broken = Manifest(100, Digest(bytes(32)), manifest().digests, ends)
    with pytest.raises(Damaged):
        Manifest.decode(broken.encode()[1])
