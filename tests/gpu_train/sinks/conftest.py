"""One server of each kind for all tests of a process; each test has a prefix of its own."""

from __future__ import annotations

from collections.abc import Iterator

import objectservers
import pytest
from objectservers import Server


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with objectservers.seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture(scope="session")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with objectservers.rclone(tmp_path_factory.mktemp("rclone")) as server:
        yield server


@pytest.fixture(scope="session")
def fake_gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with objectservers.fake_gcs(tmp_path_factory.mktemp("fake-gcs")) as server:
        yield server
