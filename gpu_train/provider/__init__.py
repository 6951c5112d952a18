"""Providers: where a job's command runs. Each takes a job and what was asked for, and sees it through to its end.

`request` is what was asked for, `local` runs it on this machine, with `output` (what the command prints) and
`watcher` (the capture agent's process). `python -m gpu_train.provider` is the runner of a detached job.
"""

from gpu_train.provider.request import Request

__all__ = ["Request"]
