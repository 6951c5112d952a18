"""borg's and restic's mounts of the same files."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from measuring import Failed

READY_WITHIN_S = 60.0


def installed() -> list[str]:
    """Those that are here."""
    return [name for name in ("borg", "restic") if shutil.which(name)]


class Peer:
    """A repository with one archive of some folders, and mounts of it."""

    def __init__(self, name: str, work: Path, folders: list[Path]) -> None:
        self.name, self._repo, self._folders = name, work / f"{name}-repo", folders
        self._env = dict(
            os.environ, BORG_BASE_DIR=str(work / "borg"), BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK="yes",
            RESTIC_PASSWORD="bench", RESTIC_CACHE_DIR=str(work / "restic-cache"), RESTIC_REPOSITORY=str(self._repo),
        )  # fmt: skip
        if name == "borg":
            self._run("borg", "init", "-e", "none", self._repo)
            self._run("borg", "create", "-C", "zstd,1", f"{self._repo}::a", *folders)
        else:
            self._run("restic", "init")
            self._run("restic", "backup", *folders)

    def _run(self, *command: str | Path) -> None:
        subprocess.run(command, env=self._env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    @contextmanager
    def mounted(self, point: Path) -> Iterator[Path]:
        """A fresh mount; where in it the root of the file system that was stored is.

        Raises:
            Failed: when it does not come up, as borg's does where its library for FUSE is not installed.
        """
        point.mkdir(exist_ok=True)
        borg = self.name == "borg"
        command = ["borg", "mount", "-f", f"{self._repo}::a", point] if borg else ["restic", "mount", point]
        process = subprocess.Popen(command, env=self._env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        root = point if borg else point / "snapshots" / "latest"
        try:
            deadline = time.monotonic() + READY_WITHIN_S
            while not (root / self._folders[0].relative_to("/")).exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise Failed(f"the mount of {self.name} did not come up")
                time.sleep(0.05)
            yield root
        finally:
            subprocess.run(["fusermount3", "-u", "-z", point], check=False)
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()
