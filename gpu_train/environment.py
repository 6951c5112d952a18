"""The environment variables that a job is given, and the only place in the library that reads any.

Light on purpose (no engine, no third-party package): `import gpu_train` in a training script ends up here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

HOME = "GPU_TRAIN_HOME"
JOB_ID = "GPU_TRAIN_JOB_ID"
JOB_NAME = "GPU_TRAIN_JOB_NAME"
ATTEMPT = "GPU_TRAIN_ATTEMPT"
CHECKPOINT_DIR = "GPU_TRAIN_CHECKPOINT_DIR"
LOAD_CHECKPOINT_DIR = "GPU_TRAIN_LOAD_CHECKPOINT_DIR"
RESUME_FROM = "GPU_TRAIN_RESUME_FROM"
NODE_RANK = "GPU_TRAIN_NODE_RANK"
ALIASES = {CHECKPOINT_DIR: "BT_CHECKPOINT_DIR", LOAD_CHECKPOINT_DIR: "BT_LOAD_CHECKPOINT_DIR"}
"""Other names under which the same values are given on request (`defaults.bt_aliases`)."""

SETTINGS_PREFIX = "GPU_TRAIN_"
RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "LOCAL_RANK")
"""Where launchers put a process's rank; the first that is set counts."""


def current() -> Mapping[str, str]:
    """This process's environment."""
    return os.environ


def hugging_face_cache() -> Path:
    """Where the Hugging Face libraries keep downloaded models (HF_HUB_CACHE, HF_HOME, else ~/.cache/huggingface)."""
    if hub := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(hub).expanduser()
    above = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(above).expanduser() / "hub"


class JobEnvironment(NamedTuple):
    """What a training process learns about its job; all None or empty outside of one.

    Attributes:
        home: the home that holds the job.
        job_id: the job's id.
        checkpoint_dir: where checkpoints are to be written.
        load_dir: where the checkpoints asked for with `load` lie.
        resume_from: the one checkpoint to go on from, a folder or file.
        rank: the process's rank over all nodes, 0 without a launcher.
        world_size: how many processes there are, 1 without a launcher.
    """

    home: Path | None = None
    job_id: str | None = None
    checkpoint_dir: Path | None = None
    load_dir: Path | None = None
    resume_from: Path | None = None
    rank: int = 0
    world_size: int = 1

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> JobEnvironment:
        """Read it from the environment, by default this process's, as it is now."""
        env = os.environ if environ is None else environ

        def path(name: str) -> Path | None:
            return Path(env[name]) if env.get(name) else None

        return cls(
            home=path(HOME),
            job_id=env.get(JOB_ID) or None,
            checkpoint_dir=path(CHECKPOINT_DIR) or path(ALIASES[CHECKPOINT_DIR]),
            load_dir=path(LOAD_CHECKPOINT_DIR) or path(ALIASES[LOAD_CHECKPOINT_DIR]),
            resume_from=path(RESUME_FROM),
            rank=_number(env, RANKS, 0),
            world_size=_number(env, ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"), 1),
        )

    @property
    def is_first_rank(self) -> bool:
        """Whether this process speaks for the job: rank 0, or no launcher at all."""
        return self.rank == 0


def _number(env: Mapping[str, str], names: tuple[str, ...], otherwise: int) -> int:
    for name in names:
        if env.get(name, "").isdecimal():
            return int(env[name])
    return otherwise
