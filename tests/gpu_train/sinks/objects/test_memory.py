"""Objects in memory."""

from __future__ import annotations

import pytest
from objectstore_suite import ObjectStoreSuite

from gpu_train.sinks.objects.memory import MemoryObjects


class TestMemory(ObjectStoreSuite):
    @pytest.fixture
    def store(self) -> MemoryObjects:
        return MemoryObjects()
