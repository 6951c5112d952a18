"""The store that fails when it is told to does what tests of other parts rely on."""

from __future__ import annotations

import os
import signal

import pytest
from faulty_objects import AFTER, HALF, FaultyObjects, Trouble
from objectstore_suite import ObjectStoreSuite

from gpu_train.errors import Unavailable
from gpu_train.sinks.objects.content import Held
from gpu_train.sinks.objects.memory import MemoryObjects
from gpu_train.sinks.objects.objectstore import Put


class TestWithoutTrouble(ObjectStoreSuite):
    @pytest.fixture
    def store(self) -> FaultyObjects:
        return FaultyObjects(MemoryObjects())


@pytest.mark.parametrize(("when", "there"), [("before", []), (HALF, ["a"]), (AFTER, ["a", "b"])])
def test_it_fails_at_the_call_that_it_is_told(when: str, there: list[str]) -> None:
    inner = MemoryObjects()
    store = FaultyObjects(inner, Trouble(2, Unavailable("down"), when), on=["put"])
    store.put([Put("first", Held(b"x"))])
    store.delete(["first"])
    with pytest.raises(Unavailable, match="down"):
        store.put([Put("a", Held(b"x")), Put("b", Held(b"x"))])
    assert sorted(inner.objects) == there
    store.put([Put("a", Held(b"x")), Put("b", Held(b"x"))])
    assert sorted(inner.objects) == ["a", "b"]


def test_it_kills() -> None:
    pid = os.fork()
    if pid == 0:
        FaultyObjects(MemoryObjects(), Trouble(1, None)).size("x")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
