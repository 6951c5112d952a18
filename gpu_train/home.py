"""The home: one folder that holds the store, the registry and every job's files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gpu_train import environment
from gpu_train_cas.errors import UsageError

DEFAULT = "~/.gpu-train"


@dataclass(frozen=True, slots=True)
class Home:
    """Where things lie below `root`. Makes nothing; whoever writes makes its folder."""

    root: Path

    @classmethod
    def locate(cls, root: Path | str | None = None) -> Home:
        """The home at `root`, else at GPU_TRAIN_HOME, else ~/.gpu-train; always absolute.

        Raises:
            UsageError: when that is no folder, and none can be made there.
        """
        chosen = root or environment.current().get(environment.HOME) or DEFAULT
        home = cls(Path(chosen).expanduser().absolute())
        home.check()
        return home

    def check(self) -> None:
        """Refuse a home that is no folder, or lies in something that is none.

        Raises:
            UsageError: naming what is in the way.
        """
        there = next((path for path in (self.root, *self.root.parents) if os.path.lexists(path)), Path("/"))
        if there.is_dir():
            return
        what = "is not a folder"
        if there.is_symlink() and not there.exists():
            what = f"is a link to {os.readlink(there)}, which is not there"
        raise UsageError(
            f"{self.root} cannot be the home: {there} {what}; set GPU_TRAIN_HOME to a folder, "
            "or to where one can be made"
        )

    @property
    def registry_dir(self) -> Path:
        """The LMDB environment."""
        return self.root / "registry"

    @property
    def packs(self) -> Path:
        """The packs."""
        return self.root / "store" / "packs"

    @property
    def config_file(self) -> Path:
        """The person's settings for everything in this home."""
        return self.root / "config.toml"

    @property
    def credentials_file(self) -> Path:
        """Secrets, or where they are, that were added by command; nobody else may read it."""
        return self.root / "credentials.json"

    @property
    def code(self) -> Path:
        """Exported code versions."""
        return self.root / "code"

    @property
    def data(self) -> Path:
        """Manifests of data versions as JSON."""
        return self.root / "data"

    @property
    def cache(self) -> Path:
        """What can be made again at the cost of time, such as notes on unchanged files."""
        return self.root / "cache"

    @property
    def models(self) -> Path:
        """The base-model cache."""
        return self.root / "models"

    @property
    def mounts(self) -> Path:
        """Default mount points."""
        return self.root / "mnt"

    def artifacts(self, job_id: str) -> Path:
        """Everything of one job that is a plain file."""
        return self.root / "artifacts" / job_id

    def checkpoints(self, job_id: str) -> Path:
        """Where the job writes its checkpoints; the trainer's own folder."""
        return self.artifacts(job_id) / "checkpoints"

    def logs(self, job_id: str) -> Path:
        """stdout.log, events.jsonl, metrics.jsonl, agent.log."""
        return self.artifacts(job_id) / "logs"

    def control(self, job_id: str) -> Path:
        """Small files by which the job, its runner and its agent talk."""
        return self.artifacts(job_id) / "control"

    def pins(self, job_id: str) -> Path:
        """Hard links that keep checkpoints' bytes until they are stored; beside the checkpoints on purpose."""
        return self.artifacts(job_id) / "pins"

    def load(self, job_id: str) -> Path:
        """Checkpoints restored for the job to start from."""
        return self.artifacts(job_id) / "load"
