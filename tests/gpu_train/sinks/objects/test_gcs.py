"""Objects in Google Cloud Storage, on a server of the tests' own."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from objectservers import BUCKET, Server
from objectstore_suite import ObjectStoreSuite

from gpu_train.sinks.objects.gcs import GcsObjects


@pytest.fixture
def prefix() -> str:
    """Where a test's objects lie."""
    return f"runs/{uuid4().hex}"


class TestFakeGcs(ObjectStoreSuite):
    @pytest.fixture
    def store(self, fake_gcs: Server, prefix: str) -> Iterator[GcsObjects]:
        store = GcsObjects(BUCKET, prefix, endpoint=fake_gcs.endpoint)
        yield store
        store.close()
