"""A sentry within the test's own process: it finds out what happened only when the test has it look."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_train.capture.watch import sighting
from gpu_train.capture.watch.outbox import Outbox
from gpu_train.capture.watch.sentry import Sentry
from gpu_train.capture.watch.sighting import Sighting
from gpu_train.capture.watch.snapshot import ignore_lease_breaks


class Post:
    """A sentry over `root`; `look` has it deal with all that has happened, and gives what it tells."""

    def __init__(self, base: Path) -> None:
        self.root, self.pins = base / "job" / "checkpoints", base / "job" / "pins"
        self.control = base / "job" / "control"
        self.root.mkdir(parents=True)
        self.control.mkdir()
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        self.outbox = Outbox(self._write)
        self.sentry = Sentry(self.root, self.pins, self.control, "job-1", self.outbox)
        self._told()

    def look(self) -> list[Sighting]:
        self.sentry.take_events()
        return self._told()

    def copies(self, count: int = 1) -> list[Sighting]:
        """What becomes of the copies that are being made, waiting for so many."""
        told: list[Sighting] = []
        while sum(seen.kind in (sighting.KEPT, sighting.OVERWRITTEN) for seen in told) < count:
            assert select.select([self.sentry.keeper.fileno()], [], [], 60)[0]
            self.sentry.take_copies()
            told += self._told()
        return told

    def _told(self) -> list[Sighting]:
        told = b""
        while True:
            self.outbox.flush()
            try:
                told += os.read(self._read, 1 << 20)
            except BlockingIOError:
                if self.outbox.is_empty:
                    return [Sighting.decode(line) for line in told.splitlines()]

    def close(self) -> None:
        self.sentry.close()
        os.close(self._read)
        os.close(self._write)


def said(told: list[Sighting]) -> list[str]:
    """Sightings in short: kind and name, "!" for what could not be held."""
    return [
        f"{seen.kind} {seen.name}".strip() + ("!" if seen.kind == sighting.FILE and not seen.hold else "")
        for seen in told
    ]


@pytest.fixture
def short() -> Callable[[list[Sighting]], list[str]]:
    """Sightings as short texts."""
    return said


@pytest.fixture
def new_post() -> Iterator[Callable[[Path], Post]]:
    """Makes posts, which are closed in the end."""
    before = signal.getsignal(signal.SIGIO)
    ignore_lease_breaks()
    posts: list[Post] = []

    def make(base: Path) -> Post:
        posts.append(Post(base))
        return posts[-1]

    yield make
    for post in posts:
        post.close()
    signal.signal(signal.SIGIO, before)


@pytest.fixture
def post(new_post: Callable[[Path], Post], tmp_path: Path) -> Post:
    return new_post(tmp_path)
