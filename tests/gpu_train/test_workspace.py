"""A home opened: its parts, and what opening costs."""

from __future__ import annotations

import threading
from pathlib import Path

from gpu_train import Workspace
from gpu_train.workspace import TABLES


def test_a_new_home_takes_three_transactions(tmp_path: Path) -> None:
    with Workspace.open(tmp_path / "home", cwd=tmp_path) as workspace:
        shared = workspace.store.registry._shared
        for part in ("jobs", "checkpoints", "metrics", "events", "code", "data", "models"):
            assert getattr(workspace, part) is getattr(workspace, part)
        assert workspace.store.reader is workspace.store.reader
        assert shared.env.info()["last_txnid"] == 3  # the engine's tables, the format, the library's tables
        assert set(TABLES) <= set(shared.tables)


def test_parts_can_be_asked_for_within_a_read(tmp_path: Path) -> None:
    """Their tables are open, or a snapshot could not be read with them."""
    with Workspace.open(tmp_path / "home", cwd=tmp_path) as workspace, workspace.store.registry.read() as txn:
        assert workspace.store.tables.records.count(txn) == 0
        assert workspace.metrics.read_to(txn, "job") == 0
        assert workspace.code.list() == []
        assert workspace.data.list() == []


def test_threads_get_the_same_reader(tmp_path: Path) -> None:
    with Workspace.open(tmp_path / "home", cwd=tmp_path) as workspace:
        begin, readers = threading.Barrier(8), []

        def ask() -> None:
            begin.wait()
            readers.append(workspace.store.reader)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(readers) == 8
        assert len({id(reader) for reader in readers}) == 1
