"""The process that test_crash.py kills; its arguments and what becomes of them are in tests/kit/kill_points.py."""

from __future__ import annotations

from pathlib import Path

from kill_points import Announce, main

from gpu_train_cas import Record, Store, rebuild_registry


def ingest(home: Path, sources: Path, announce: Announce) -> None:
    with Store.open(home) as store:
        jobs = store.registry.table("jobs")
        for source in sorted(sources.glob("new*")):
            with store.writer("ingest", threads=1) as writer:
                added = writer.add_tree(source)
                with writer.commit() as txn:
                    digest = txn.put_record(Record("checkpoint", "job", source.name, 1, added.root))
                    txn.put(jobs, source.name.encode(), {"v": 1, "record": digest}, durable=True)
            announce(f"record {digest.hex()}")
            announce(f"row {source.name} {digest.hex()}")


def rows(home: Path, sources: Path, announce: Announce) -> None:
    with Store.open(home) as store:
        jobs = store.registry.table("jobs")
        for index in range(3):
            with store.transaction() as txn:
                for key in (b"one", b"two"):
                    txn.put(jobs, key, {"v": 1, "record": b"%d" % index}, durable=True)
            announce(f"row one {(b'%d' % index).hex()}")
            announce(f"row two {(b'%d' % index).hex()}")


def gc(home: Path, sources: Path, announce: Announce) -> None:
    with Store.open(home) as store:
        store.gc(trash_days=0)
        announce("collected")


def rebuild(home: Path, sources: Path, announce: Announce) -> None:
    rebuild_registry(home)
    announce("rebuilt")


def restore(home: Path, sources: Path, announce: Announce) -> None:
    with Store.open(home) as store:
        for digest, record in store.records():
            store.restore(record.root, home.parent / "restored" / record.name, threads=1)
            announce(f"restored {record.name} {digest.hex()}")


SCENARIOS = {f.__name__: f for f in (ingest, rows, gc, rebuild, restore)}

main(SCENARIOS)
