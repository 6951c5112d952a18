"""The process behind a mount: `python -m gpu_train_fuse`, started by `lifecycle.mount`; not for people."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from gpu_train import Workspace
from gpu_train_cas.errors import GpuTrainError
from gpu_train_fuse.adapter import serve
from gpu_train_fuse.lifecycle import facts, tree_of

log = logging.getLogger("gpu_train_fuse")


def main(arguments: list[str]) -> int:
    """Serve one mount until it ends; the exit code is an error's own."""
    parser = argparse.ArgumentParser(prog="gpu_train_fuse", description=__doc__)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--target", required=True, help="a job's id, or all")
    parser.add_argument("--mountpoint", type=Path, required=True)
    parser.add_argument("--ready-fd", type=int, required=True, help="the pipe to report to")
    parser.add_argument("--allow-other", action="store_true")
    chosen = parser.parse_args(arguments)
    logging.Formatter.converter = time.gmtime
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)sZ %(process)d %(levelname)s %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )  # fmt: skip
    try:
        _serve(chosen)
    except GpuTrainError as e:
        _report(chosen.ready_fd, {"state": "failed", "message": str(e)})
        log.error("%s", e)
        return e.exit_code
    except Exception as e:
        _report(chosen.ready_fd, {"state": "failed", "message": f"{type(e).__name__}: {e}"})
        log.exception("the mount of %s failed", chosen.target)
        return 1
    return 0


def _serve(chosen: argparse.Namespace) -> None:
    def on_ready() -> None:
        log.info("%s is mounted at %s", chosen.target, chosen.mountpoint)
        _report(chosen.ready_fd, {"state": "ready"})

    with Workspace.open(chosen.home, create=False, read_only=True) as workspace:
        os.chdir("/")  # keep no folder busy; not before, since settings are looked for upward from here
        with tree_of(workspace, chosen.target) as tree:
            serve(
                tree, chosen.mountpoint, name=chosen.target, facts=facts(workspace.home),
                allow_other=chosen.allow_other, on_ready=on_ready,
            )  # fmt: skip
        log.info("%s is no longer mounted at %s", chosen.target, chosen.mountpoint)


def _report(fd: int, answer: dict[str, str]) -> None:
    """Tell the process that waits, if it still does; only the first report counts."""
    with suppress(OSError):
        os.write(fd, json.dumps(answer).encode() + b"\n")
        os.close(fd)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
