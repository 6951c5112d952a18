"""What gives first, and in which order the rest is stored meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_train.capture.candidate import Candidate
from gpu_train.capture.finder import Found, find_one
from gpu_train.capture.headroom import Headroom
from gpu_train.capture.pressure import Pinned, by_worth
from gpu_train.capture.storing import Finished, Stored
from gpu_train.capture.watch.view import View
from gpu_train.capture.worker import GivenUp, Worker
from gpu_train.size import Size
from gpu_train.tables.checkpoint import INCOMPLETE, VERIFIED
from gpu_train.tables.job import Job
from gpu_train.workspace import Workspace

JOB = "train-aaaaaa"


def candidate(path: Path, pin: Path, name: str = "") -> Candidate:
    found = find_one(path)
    assert found is not None and found.members is not None
    found = Found(name or found.name, found.path, found.shape, found.members, found.inode)
    made = Candidate(found, pin, 0.0, 1, View(path.parent))
    made.update(found, 0.0)
    return made


def test_what_is_worth_least_goes_first(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"w")
    said = [
        ("step-1", True), ("half-2", False), ("ckpt.pt", True), ("step-3", True), ("ckpt.pt", True), ("half-1", False),
        ("step-4", True), ("last-torn", False),
    ]  # fmt: skip
    pinned = [
        Pinned(candidate(tmp_path / "w", tmp_path / f"p{at}", name), whole) for at, (name, whole) in enumerate(said)
    ]
    assert [pinned.index(one) for one in by_worth(pinned)] == [1, 5, 7, 2, 0, 3, 4, 6]


@pytest.fixture
def queue(workspace: Workspace, tmp_path: Path) -> Iterator[Queue]:
    job = Job(JOB, "train", status="running", created_ns=1)
    workspace.jobs.put(job)
    workspace.home.checkpoints(JOB).mkdir(parents=True)
    yield Queue(workspace, job)


class Queue:
    """A worker that has not begun, and how to fill it."""

    def __init__(self, workspace: Workspace, job: Job) -> None:
        self.home = workspace.home
        self.tidied: list[bool] = []
        self.last: Candidate | None = None
        self.worker = Worker(workspace, JOB, 0.1, Headroom(workspace, job, Size("0")), after=self._tidy)

    def put(self, name: str, state: str = VERIFIED) -> Candidate:
        path = self.home.checkpoints(JOB) / name
        path.unlink(missing_ok=True)
        path.write_bytes(name.encode() * 100)
        made = candidate(path, self.home.pins(JOB) / name)
        finished = Finished(JOB, name, made.base(), made.found.shape, dict(made.members), "files", state)
        self.worker.put(finished, made)
        self.last = made
        return made

    def _tidy(self) -> None:
        assert self.last is not None
        self.tidied.append(self.last.pin.exists())

    def work(self, eventually) -> list[tuple[str, object]]:
        """What came of all that was put in, in that order."""
        made: list[tuple[str, object]] = []

        def done() -> bool:
            made.extend((o.finished.name, type(o.result)) for o in self.worker.outcomes())
            return not self.worker.is_busy

        with self.worker:
            eventually(done, "the end of the queue")
        return made


def test_in_a_hurry_whole_checkpoints_go_first_in_their_order(queue: Queue, eventually) -> None:
    queue.put("torn-1.pt", INCOMPLETE)
    queue.put("w-1.pt")
    queue.put("ckpt.pt", INCOMPLETE)
    queue.put("ckpt.pt")  # a version after one that is not stored yet
    queue.put("w-2.pt")
    queue.worker.is_hurried = True
    names = [name for name, result in queue.work(eventually) if result is Stored]
    assert names == ["w-1.pt", "w-2.pt", "torn-1.pt", "ckpt.pt", "ckpt.pt"]


def test_a_pin_is_freed_before_anything_else_is_done(queue: Queue, eventually) -> None:
    queue.put("w-1.pt")
    assert queue.work(eventually) == [("w-1.pt", Stored)]
    assert queue.tidied == [False]


def test_what_is_given_up_is_not_stored(queue: Queue, eventually) -> None:
    first = queue.put("w-1.pt")
    queue.put("w-2.pt")
    queue.worker.give_up(first, "it has to be")
    (outcome,) = queue.worker.outcomes()
    assert isinstance(outcome.result, GivenUp)
    assert str(outcome.result) == "it has to be"
    assert queue.work(eventually) == [("w-2.pt", Stored)]


def test_what_was_let_go_is_stored_from_where_it_lies(queue: Queue, eventually) -> None:
    one, two = queue.put("w-1.pt"), queue.put("w-2.pt")
    for let_go in (one, two):
        assert queue.worker.if_waiting(let_go, let_go.let_go)
        assert not let_go.pin.exists()
    assert queue.worker.if_waiting(two, two.hold_again)
    assert two.is_held
    (queue.home.checkpoints(JOB) / "w-2.pt").unlink()
    assert queue.work(eventually) == [("w-1.pt", Stored), ("w-2.pt", Stored)]
    assert not queue.worker.if_waiting(one, one.let_go)


def test_what_was_let_go_and_deleted_is_given_up(queue: Queue, eventually) -> None:
    gone, changed = queue.put("w-1.pt"), queue.put("w-2.pt")
    for let_go in (gone, changed):
        let_go.let_go()
    (queue.home.checkpoints(JOB) / "w-1.pt").unlink()
    (queue.home.checkpoints(JOB) / "w-2.pt").write_bytes(b"other")
    for let_go in (gone, changed):
        let_go.hold_again()
        assert not let_go.is_held
        assert let_go.members
        assert not let_go.lies_there
    assert queue.work(eventually) == [("w-1.pt", GivenUp), ("w-2.pt", GivenUp)]
