"""Leases live exactly as long as the process that took them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from gpu_train_cas.lease import Lease, leases, remove_dead


def test_a_lease_says_who_and_why_until_it_is_released(tmp_path: Path) -> None:
    lease = Lease(tmp_path, "capture")
    (starting,) = leases(tmp_path)
    assert (starting.generation, starting.alive) == (None, True)
    lease.announce(7)
    (facts,) = leases(tmp_path)
    assert (facts.id, facts.generation, facts.purpose, facts.alive) == (lease.id, 7, "capture", True)
    assert remove_dead(tmp_path) == []
    lease.release()
    lease.release()
    assert list(leases(tmp_path)) == []


def test_a_killed_process_leaves_a_dead_lease(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from gpu_train_cas.lease import Lease\n"
        f"lease = Lease(Path({str(tmp_path)!r}), 'doomed'); lease.announce(1)\n"
        "print(lease.id, flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    id = child.stdout.readline().strip()
    assert [lease.alive for lease in leases(tmp_path)] == [True]
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert [(lease.id, lease.alive) for lease in leases(tmp_path)] == [(id, False)]
    assert remove_dead(tmp_path) == [id]
    assert list(tmp_path.iterdir()) == []
