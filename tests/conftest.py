"""What every test runs under: a home of its own, and a session that must leave no process and no mount behind.

Tests marked `long` run with `--long` only.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

# No deadline: on a busy machine it would judge the neighbours. In CI the same examples every time: what fails there
# fails for the change at hand, and new examples are tried wherever the suite runs otherwise.
settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

SESSION = "GPU_TRAIN_TEST_SESSION"  # inherited by every process that a test starts, however far it detaches
SAFETENSORS = {"float32": "F32", "uint16": "BF16", "float16": "F16", "int64": "I64"}
GRACE_S = 15  # for agents that are on their way out when the last test ends


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also run the tests marked `long` (minutes each)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long"):
        return
    skip = pytest.mark.skip(reason="long: run with --long")
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's own home, not made yet; no setting of the person running the tests reaches it."""
    for name in list(os.environ):
        if name.startswith(("GPU_TRAIN_", "BT_")) and name != SESSION:
            monkeypatch.delenv(name)
    path = tmp_path / "home"
    monkeypatch.setenv("GPU_TRAIN_HOME", str(path))
    return path


def _safetensors(path: Path, arrays: Mapping[str, np.ndarray], note: str = "") -> None:
    header: dict[str, object] = {"__metadata__": {"note": note}}
    at = 0
    for name, array in arrays.items():
        end = at + array.nbytes
        header[name] = {
            "dtype": SAFETENSORS[str(array.dtype)], "shape": list(array.shape), "data_offsets": [at, end],
        }  # fmt: skip
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(a.tobytes() for a in arrays.values()))


@pytest.fixture
def safetensors() -> Callable[..., None]:
    """Writes arrays as a safetensors file, making its folder; arrays of uint16 stand for BF16."""
    return _safetensors


def processes(token: str) -> list[str]:
    """The processes that carry this session's token, as "pid command line"."""
    found = []
    mark = f"{SESSION}={token}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append(f"{folder.name} {command.strip()}")
        except OSError:  # another user's, or gone
            continue
    return found


def mounts(below: Path) -> list[str]:
    """The mount points below a folder, the innermost first."""
    points = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = line.split()[4].encode().decode("unicode_escape")
        if Path(point).is_relative_to(below):
            points.append(point)
    return sorted(points, key=len, reverse=True)


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail the session when a process or a mount of its tests outlives them; unmount what was left."""
    token = secrets.token_hex(8)
    os.environ[SESSION] = token
    yield
    deadline = time.monotonic() + GRACE_S
    while (alive := processes(token)) and time.monotonic() < deadline:
        time.sleep(0.05)
    base = tmp_path_factory.getbasetemp()
    mounted = mounts(base)
    for point in mounted:
        subprocess.run(["fusermount3", "-u", "-z", point], check=False)
    del os.environ[SESSION]
    assert not alive, f"the tests left processes running: {alive}"
    assert not mounted, f"the tests left file systems mounted: {mounted}"
