"""Kill -9 at every point: the store opens, verifies clean, has all that was committed, and goes on.

strace kills the process at its n-th call of each system call that changes something, for every n. Where strace
cannot be had the process kills itself at the n-th call of a C function that does; some of those points are always
tried.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_train_cas import Digest, Record, Store
from gpu_train_cas.lease import leases

Commit = Callable[..., Digest]
Seen = Callable[[Path], dict[bytes, tuple[object, ...]]]

CHILD = Path(__file__).with_name("crash_child.py")
KIT = Path(__file__).parents[1] / "kit"
NAMES = {"rename": "?rename,?renameat,?renameat2", "unlink": "?unlink,?unlinkat", "renameat": "?renameat,?renameat2"}
"""What strace calls them, on any architecture."""

INGEST = {"writev": 80, "pwrite64": 40, "fsync": 25, "fdatasync": 10, "write": 20, "rename": 20, "unlink": 10}
"""How many points of each an ingest must have at least: together more than two hundred."""

OTHERS = {"rows": ("writev", "rename", "fdatasync"), "gc": ("writev", "unlink", "rename", "fdatasync"),
          "rebuild": ("pwrite64", "rename", "fdatasync")}  # fmt: skip

WHEN = 400
BATCH = 50
"""Points per start of a process."""


def strace_works() -> bool:
    try:
        command = ["strace", "-f", "-o", os.devnull, "-e", "inject=fsync:signal=SIGKILL:when=2", sys.executable, "-c",
                   "import os\nfor _ in 'ab':\n try: os.fsync(1000000)\n except OSError: pass"]  # fmt: skip
        return subprocess.run(command, check=False, capture_output=True, timeout=60).returncode in (-9, 137)
    except OSError:
        return False


STRACE = strace_works()
without_strace = pytest.mark.skipif(not STRACE, reason="strace cannot be had: the coarser sweep runs in its place")


def folder(path: Path, index: int) -> Path:
    """Content of which a part comes in other folders too."""
    (path / "sub").mkdir(parents=True)
    (path / "sub" / "shared").write_bytes(b"shared" * 5000)
    (path / "weights").write_bytes(os.urandom(150_000))
    (path / f"own{index % 3}").write_bytes(os.urandom(2000))
    (path / "link").symlink_to("weights")
    (path / "empty").mkdir()
    return path


@pytest.fixture
def work(tmp_path: Path, commit: Commit) -> Path:
    """A home with a history, and things to bring in."""
    sources = tmp_path / "work" / "sources"
    for index in range(3):
        folder(sources / f"old{index}", index)
    for index in range(10):
        folder(sources / f"new{index}", index)
    shutil.rmtree(sources / "new1")
    shutil.copytree(sources / "old0", sources / "new1", symlinks=True)
    with Store.open(tmp_path / "work" / "template" / "home") as store:
        jobs = store.registry.table("jobs")
        for index in range(3):
            digest = commit(store, sources / f"old{index}", f"old{index}")
            with store.transaction() as txn:
                txn.put(jobs, b"old%d" % index, {"v": 1, "record": digest}, durable=True)
        store.trash(commit(store, sources / "new2", "trashed"))
        store.trash(commit(store, sources / "new3", "trashed"))
    return tmp_path / "work"


def sweep(work: Path, mechanism: str, scenario: str, first: int, step: int) -> Iterator[int]:
    """Kill a child at every step-th point until one gets through; the points, each as soon as it can be checked."""
    while True:
        points = list(range(first, first + BATCH * step, step))
        for point in points:
            shutil.copytree(work / "template", work / str(point))
        statuses = run(work, mechanism, scenario, points)
        yield from points[: statuses.count(-9)]
        if statuses[-1] == 0:
            return
        first += BATCH * step


def run(work: Path, mechanism: str, scenario: str, points: list[int]) -> list[int]:
    command = [sys.executable, str(CHILD), mechanism, scenario, str(WHEN), str(work), *map(str, points)]
    if mechanism != "profile":
        calls = NAMES.get(mechanism, mechanism)
        inject = f"inject={calls}:signal=SIGKILL:when={WHEN}"
        command = ["strace", "-f", "-o", os.devnull, "-e", f"trace={calls}", "-e", inject, *command]
    path = os.pathsep.join(filter(None, [str(KIT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=280, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stderr
    statuses = list(map(int, done.stdout.split()))
    assert set(statuses) <= {-9, 0}, done.stderr
    return statuses


def announced(work: Path, point: int, what: str) -> list[list[str]]:
    lines = (work / str(point) / "announced").read_text().splitlines()
    return [line.split()[1:] for line in lines if line.split()[0] == what]


def check_home(work: Path, point: int, commit: Commit, seen: Seen) -> bool:
    """All that must hold after a kill; true, so that it can be counted."""
    root, out = work / str(point) / "home", work / str(point) / "out"
    with Store.open(root) as store:
        report = store.verify()
        assert report.complete and not report.damaged, (point, report)
        records = dict(store.records())
        names = {record.name for record in records.values()}
        assert {"old0", "old1", "old2"} <= names
        assert {bytes.fromhex(digest) for (digest,) in announced(work, point, "record")} <= set(records)
        for record in (min(records.values(), key=by_name), max(records.values(), key=by_name)):
            # The others are no less whole: verify has read and hashed every frame and walked every record.
            store.restore(record.root, out / record.name)
            assert seen(out / record.name) == seen(work / "sources" / record.name), (point, record.name)
        check_rows(store, work, point)
        go_on(store, work, records, commit)
        assert_tidy(store)
    shutil.rmtree(work / str(point))
    return True


def by_name(record: Record) -> tuple[bool, str]:
    return record.name.startswith("old"), record.name


def check_rows(store: Store, work: Path, point: int) -> None:
    jobs = store.registry.table("jobs")
    with store.registry.read() as txn:
        found = dict(jobs.scan(txn))
    assert {b"old0", b"old1", b"old2"} <= set(found)
    wanted = {name: value for name, value in announced(work, point, "row")}  # noqa: C416 - lists of two strings
    for name, value in wanted.items():
        # A later value may have been committed and not announced; one before that may not be there any more.
        assert found[name.encode()]["record"] >= bytes.fromhex(value) or len(value) > 2, (point, name)
    if "one" in wanted:
        assert found[b"one"] == found[b"two"], "rows of one transaction are all there or none"


def go_on(store: Store, work: Path, records: dict[Digest, Record], commit: Commit) -> None:
    """The next ingest and the next gc do their work."""
    digest = commit(store, work / "sources" / "new9", "next")
    store.gc(trash_days=0)
    report = store.verify()
    assert report.complete and not report.damaged
    assert {*records, digest} <= set(dict(store.records()))


def assert_tidy(store: Store) -> None:
    """Nothing is left of the one that was killed."""
    assert list(store.folders.tmp.iterdir()) == []
    assert list(leases(store.folders.leases)) == [] and os.listdir(store.folders.leases) == []
    with store.registry.read() as txn:
        known = {name.hex() for _, name, _ in store.tables.index.all_packs(txn)}
    assert {path.stem for path in store.folders.packs.glob("??/*")} == known


@without_strace
@pytest.mark.parametrize("call", INGEST)
def test_an_ingest_killed_at_any_system_call(work: Path, commit: Commit, seen: Seen, call: str) -> None:
    killed = [p for p in sweep(work, call, "ingest", 1, 1) if check_home(work, p, commit, seen)]
    assert len(killed) >= INGEST[call]
    assert sum(INGEST.values()) > 200


@without_strace
@pytest.mark.parametrize(
    ("scenario", "call"), [(scenario, call) for scenario, calls in OTHERS.items() for call in calls]
)
def test_other_work_killed_at_any_system_call(work: Path, commit: Commit, seen: Seen, scenario: str, call: str) -> None:
    killed = [p for p in sweep(work, call, scenario, 1, 1) if check_home(work, p, commit, seen)]
    assert killed


STEPS = (
    {"ingest": 60, "rows": 15, "gc": 20, "rebuild": 40} if STRACE else {"ingest": 4, "rows": 2, "gc": 2, "rebuild": 5}
)
LONG = [pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.mark.parametrize(
    ("scenario", "step"), [*STEPS.items(), *(pytest.param(name, 1, marks=LONG, id=f"{name}-each") for name in STEPS)]
)
def test_killed_at_any_call_of_a_function(work: Path, commit: Commit, seen: Seen, scenario: str, step: int) -> None:
    swept = sweep(work, "profile", scenario, 1, step)
    killed = [point for point in swept if check_home(work, point, commit, seen)]
    assert len(killed) >= 5


@without_strace
@pytest.mark.parametrize("call", ["mkdirat", "renameat", "utimensat"])
def test_a_restore_killed_at_any_system_call_never_looks_complete(work: Path, seen: Seen, call: str) -> None:
    killed = 0
    for point in sweep(work, call, "restore", 1, 1):
        restored = work / str(point) / "restored"
        for path in restored.iterdir() if restored.exists() else ():
            if ".partial-" not in path.name:
                assert seen(path) == seen(work / "sources" / path.name), (point, path.name)
        for name, _ in announced(work, point, "restored"):
            assert (restored / name).is_dir()
        killed += 1
    assert killed >= 3
