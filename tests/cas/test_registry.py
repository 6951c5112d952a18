"""The registry: transactions, scans, sharing, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path

import pytest

from gpu_train_cas import Registry
from gpu_train_cas.errors import Busy, Damaged, NotFound, ReadOnly, TooNew, UnsupportedHome, UsageError
from gpu_train_cas.filesystem import check_fit, mount_of


def test_rows_come_back_and_unknown_fields_survive_a_rewrite(tmp_path: Path) -> None:
    registry = Registry.open(tmp_path / "r")
    jobs = registry.table("jobs")
    with registry.write() as txn:
        jobs.put(txn, b"a", {"v": 1, "name": "caf\udce9", "later": [1, 2]})
    with registry.write() as txn:
        row = jobs.get(txn, b"a")
        assert row is not None
        jobs.put(txn, b"a", row | {"name": "b"})
    with registry.read() as txn:
        assert jobs.get(txn, b"a") == {"v": 1, "name": "b", "later": [1, 2]}
        assert jobs.get(txn, b"b") is None
    registry.close()


def test_an_exception_undoes_a_transaction(tmp_path: Path) -> None:
    registry = Registry.open(tmp_path / "r")
    table = registry.table("t")
    with pytest.raises(ZeroDivisionError), registry.write() as txn:
        table.put(txn, b"a", {"v": 1})
        raise ZeroDivisionError
    with registry.read() as txn:
        assert table.count(txn) == 0
    registry.close()


def test_scans_follow_prefix_start_and_direction(tmp_path: Path) -> None:
    registry = Registry.open(tmp_path / "r")
    table = registry.table("t")
    keys = [b"a\x00\x01", b"a\x00\x02", b"a\x00\xff", b"b\x00\x01", b"\xff\xff"]
    with registry.write() as txn:
        for key in keys:
            table.put_bytes(txn, key, key)
    with registry.read() as txn:

        def scan(prefix: bytes = b"", reverse: bool = False, start: bytes | None = None) -> list[bytes]:
            return [k for k, _ in table.scan_bytes(txn, prefix, reverse=reverse, start=start)]

        assert scan() == sorted(keys)
        assert scan(reverse=True) == sorted(keys, reverse=True)
        assert scan(b"a\x00") == keys[:3]
        assert scan(b"a\x00", reverse=True) == keys[2::-1]
        assert scan(b"a\x00", start=b"a\x00\x02") == keys[1:3]
        assert scan(b"a\x00", reverse=True, start=b"a\x00\x02") == keys[1::-1]
        assert scan(b"\xff", reverse=True) == [keys[4]]
        assert scan(b"c") == scan(b"c", reverse=True) == []
    registry.close()


def test_two_openings_in_one_process_share_the_environment(tmp_path: Path) -> None:
    one, two = Registry.open(tmp_path / "r"), Registry.open(tmp_path / "r")
    one.close()
    table = two.table("t")
    with two.write() as txn:
        table.put(txn, b"k", {"v": 1})
    two.close()
    two.close()
    again = Registry.open(tmp_path / "r", read_only=True)
    table, absent = again.table("t"), again.table("never written")
    with again.read() as txn:
        assert table.get(txn, b"k") == {"v": 1}
        assert list(absent.scan(txn)) == []
    with pytest.raises(ReadOnly), again.write():
        pass
    with pytest.raises(Busy):
        Registry.open(tmp_path / "r")
    again.close()


def test_another_process_sees_only_whole_commits(tmp_path: Path) -> None:
    registry = Registry.open(tmp_path / "r")
    table = registry.table("t")
    look = textwrap.dedent(f"""
        from pathlib import Path
        from gpu_train_cas import Registry
        r = Registry.open(Path({str(tmp_path / "r")!r}), read_only=True)
        t = r.table("t")
        with r.read() as txn: print(t.count(txn))
    """)

    def count() -> str:
        return subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout.strip()

    with registry.write() as txn:
        table.put(txn, b"a", {"v": 1})
        table.put(txn, b"b", {"v": 1})
        assert count() == "0"
    assert count() == "2"
    registry.close()


def test_a_newer_store_is_refused(tmp_path: Path) -> None:
    registry = Registry.open(tmp_path / "r")
    meta = registry.table("meta")
    with registry.write() as txn:
        meta.put(txn, b"format", {"v": 1, "format": 7, "needs": 7})
    registry.close()
    with pytest.raises(TooNew, match="format 7"):
        Registry.open(tmp_path / "r")


def test_no_registry_to_read_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        Registry.open(tmp_path, read_only=True)


def test_garbage_in_place_of_the_environment_is_damage(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "data.mdb").write_bytes(b"garbage" * 4096)
    with pytest.raises(Damaged, match="rebuild"):
        Registry.open(tmp_path / "r")


def mountinfo(tmp_path: Path, type: str, point: str) -> Path:
    lines = [
        "21 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw",
        f"99 21 0:50 / {point} rw,relatime shared:2 master:3 - {type} server:/export rw,vers=4.2",
    ]
    path = tmp_path / "mountinfo"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("type", ["nfs4", "cifs", "fuse.sshfs", "fuse", "9p"])
def test_a_home_on_a_network_filesystem_is_refused_with_the_way_out(tmp_path: Path, type: str) -> None:
    home = tmp_path / "mnt with space" / "home"
    info = mountinfo(tmp_path, type, str(home.parent).replace(" ", "\\040"))
    with pytest.raises(UnsupportedHome, match="GPU_TRAIN_HOME"):
        check_fit(home, info)
    check_fit(tmp_path / "mnt with space elsewhere", info)
    mount = mount_of(home, info)
    assert mount is not None
    assert (mount.point, mount.type) == (home.parent, type)


def test_what_would_wait_for_its_own_thread_forever_is_refused(tmp_path: Path) -> None:
    registry = Registry.open(tmp_path / "r")
    with registry.write():
        with pytest.raises(UsageError, match="inside a write transaction"):
            registry.table("new")
        with pytest.raises(UsageError, match="inside a write transaction"), registry.write():
            pass
    registry.table("new")
    registry.close()


def test_the_tables_of_a_new_registry_cost_one_transaction(tmp_path: Path) -> None:
    def transactions() -> int:
        return int(registry._shared.env.info()["last_txnid"])

    with closing(Registry.open(tmp_path / "r")) as registry:
        assert transactions() == 2  # the engine's own tables, and the format
        registry.open_tables(["a", "b", "c"])
        assert transactions() == 3
        registry.open_tables(["a", "b", "c", "meta", "records"])
        registry.table("c")
        assert transactions() == 3
    with closing(Registry.open(tmp_path / "r")) as registry:
        registry.open_tables(["a", "b"])
        assert transactions() == 3
    with closing(Registry.open(tmp_path / "r", read_only=True)) as registry:
        registry.open_tables(["a", "new"])
        with registry.read() as txn:
            assert registry.table("new").get(txn, b"") is None
            assert registry.table("a").count(txn) == 0
