"""`python -m gpu_train.provider`: the runner of a detached job."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from gpu_train.collector import at_ease
from gpu_train.provider.local import Run
from gpu_train.provider.request import Request
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import NotFound


def main() -> int:
    """Run the job to its end; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m gpu_train.provider")
    parser.add_argument("--home", required=True)
    parser.add_argument("--job", required=True)
    parser.add_argument("--pythonpath", help="the caller's PYTHONPATH, for the job")
    arguments = parser.parse_args()
    # Ours was set so that this very package is found; the job gets the caller's.
    os.environ.pop("PYTHONPATH", None)
    if arguments.pythonpath is not None:
        os.environ["PYTHONPATH"] = arguments.pythonpath
    with Workspace.open(Path(arguments.home)) as workspace:
        job = workspace.jobs.get(arguments.job)
        if job is None:
            raise NotFound(f"no job {arguments.job!r} in {arguments.home}")
        request = Request.take(workspace.home.control(job.id) / "request.json")
        return Run(workspace, job, request, attached=False).run().exit_code or 0


if __name__ == "__main__":
    with at_ease():
        sys.exit(main())
