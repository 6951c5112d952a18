"""The engine: a deduplicating, content-addressed store of directory trees.

Words: a *block* (at most 1 MiB of a file, named by BLAKE3) is stored as a *frame* in a *pack*; a *manifest* lists a
file's blocks, a *tree* a directory's entries; a *record* names a tree and keeps it alive. The *registry* finds them.

    with Store.open(home) as store:
        with store.writer("import") as writer:              # lease, own pack
            added = writer.add_tree(path)                   # cut, name, look up, encode, pack
            with writer.commit() as txn:                    # the only commit point
                digest = txn.put_record(Record("checkpoint", owner, name, time.time_ns(), added.root))
        root = store.record(digest).root
        entry = store.reader.lookup(root, b"model.safetensors")
        store.reader.open(entry).pread(100, 0)              # proven bytes or an error

Modules, bottom up: lazy | errors, digest, filesystem, folders, formats | codecs, chunking, tree | manifest, record,
frame, pack, mapfile, registry, index | lease | packer, transaction, blocksource, framecache, patience, remote,
packindexes, reader | access, readahead, destination, ingest | restore | mark | affected | compaction, gc | check |
repair | stats | forecast, store. A module is loaded with its first name. The formats are specified in cas/spec/.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_train_cas.lazy import lazy_names

if TYPE_CHECKING:
    from gpu_train_cas.added import Added, ClassCost
    from gpu_train_cas.affected import Hit
    from gpu_train_cas.check import FrameDamage, PackDamage, VerifyReport
    from gpu_train_cas.codecs import Codec
    from gpu_train_cas.digest import Digest, Kind
    from gpu_train_cas.forecast import Forecast
    from gpu_train_cas.formats import Layout, Tensor
    from gpu_train_cas.gc import CollectReport
    from gpu_train_cas.ingest import Writer
    from gpu_train_cas.manifest import BlockRef, Manifest
    from gpu_train_cas.originals import Original
    from gpu_train_cas.pairing import Bases
    from gpu_train_cas.progress import OnProgress, Progress
    from gpu_train_cas.readahead import ReadAhead
    from gpu_train_cas.reader import File, Reader
    from gpu_train_cas.record import Record
    from gpu_train_cas.registry import Registry, Row, Table, Txn
    from gpu_train_cas.repair import RepairReport, rebuild_registry
    from gpu_train_cas.restore import Restored
    from gpu_train_cas.stats import ClassStats, Share, Stats
    from gpu_train_cas.store import Store
    from gpu_train_cas.tensorclass import TensorClass
    from gpu_train_cas.transaction import Transaction
    from gpu_train_cas.tree import Entry, EntryKind, Tree
    from gpu_train_cas.walk import Exclude, StatCache

__all__ = [
    "Added",
    "Bases",
    "BlockRef",
    "ClassCost",
    "ClassStats",
    "Codec",
    "CollectReport",
    "Digest",
    "Entry",
    "EntryKind",
    "Exclude",
    "File",
    "Forecast",
    "FrameDamage",
    "Hit",
    "Kind",
    "Layout",
    "Manifest",
    "OnProgress",
    "Original",
    "PackDamage",
    "Progress",
    "ReadAhead",
    "Reader",
    "Record",
    "Registry",
    "RepairReport",
    "Restored",
    "Row",
    "Share",
    "StatCache",
    "Stats",
    "Store",
    "Table",
    "Tensor",
    "TensorClass",
    "Transaction",
    "Tree",
    "Txn",
    "VerifyReport",
    "Writer",
    "rebuild_registry",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "gpu_train_cas.added": ("Added", "ClassCost"),
        "gpu_train_cas.affected": ("Hit",),
        "gpu_train_cas.check": ("FrameDamage", "PackDamage", "VerifyReport"),
        "gpu_train_cas.codecs": ("Codec",),
        "gpu_train_cas.digest": ("Digest", "Kind"),
        "gpu_train_cas.forecast": ("Forecast",),
        "gpu_train_cas.formats": ("Layout", "Tensor"),
        "gpu_train_cas.gc": ("CollectReport",),
        "gpu_train_cas.ingest": ("Writer",),
        "gpu_train_cas.manifest": ("BlockRef", "Manifest"),
        "gpu_train_cas.originals": ("Original",),
        "gpu_train_cas.pairing": ("Bases",),
        "gpu_train_cas.progress": ("OnProgress", "Progress"),
        "gpu_train_cas.readahead": ("ReadAhead",),
        "gpu_train_cas.reader": ("File", "Reader"),
        "gpu_train_cas.record": ("Record",),
        "gpu_train_cas.registry": ("Registry", "Row", "Table", "Txn"),
        "gpu_train_cas.repair": ("RepairReport", "rebuild_registry"),
        "gpu_train_cas.restore": ("Restored",),
        "gpu_train_cas.stats": ("ClassStats", "Share", "Stats"),
        "gpu_train_cas.store": ("Store",),
        "gpu_train_cas.tensorclass": ("TensorClass",),
        "gpu_train_cas.transaction": ("Transaction",),
        "gpu_train_cas.tree": ("Entry", "EntryKind", "Tree"),
        "gpu_train_cas.walk": ("Exclude", "StatCache"),
    },
)
