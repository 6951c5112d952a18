"""The process that test_crash.py kills while it does the last capture; see tests/kit/kill_points.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from kill_points import Announce, main

from gpu_train.capture import __main__ as agent

JOB = "train-aaaaaa"


def last_capture(home: Path, sources: Path, announce: Announce) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # an agent says there that it is ready
    sys.argv = ["agent", "--home", str(home), "--job", JOB]
    assert agent.main() == 0


main({f.__name__: f for f in (last_capture,)})
