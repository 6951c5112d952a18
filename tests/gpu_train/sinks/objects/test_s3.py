"""Objects in S3, on servers of two kinds."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from objectservers import BUCKET, Server, credentials
from objectstore_suite import ObjectStoreSuite

from gpu_train.sinks.objects.patient import PatientObjects
from gpu_train.sinks.objects.s3 import S3Objects


@pytest.fixture
def prefix() -> str:
    """Where a test's objects lie."""
    return f"runs/{uuid4().hex}"


PART_BYTES = 5 << 20
"""The smallest parts that the protocol allows."""


class TestSeaweedFS(ObjectStoreSuite):
    large_bytes = 2 * PART_BYTES + 1

    @pytest.fixture
    def store(self, seaweedfs: Server, prefix: str) -> Iterator[S3Objects]:
        store = S3Objects(BUCKET, prefix, endpoint=seaweedfs.endpoint, credentials=credentials, part_bytes=PART_BYTES)
        yield store
        store.close()


class TestRclone(ObjectStoreSuite):
    large_bytes = 2 * PART_BYTES + 1
    claims_are_exclusive = False  # it passes over If-None-Match

    @pytest.fixture
    def store(self, rclone: Server, prefix: str) -> Iterator[PatientObjects]:
        """A patient one: the server answers 500 when an object is read while it is replaced."""
        store = PatientObjects(
            S3Objects(BUCKET, prefix, endpoint=rclone.endpoint, credentials=credentials, part_bytes=PART_BYTES),
            first_s=0.01,
        )
        yield store
        store.close()
