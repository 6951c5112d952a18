"""What a person types to name a checkpoint: JOB, JOB@latest, JOB@best, JOB@step:500, JOB@NAME, each with /path."""

from __future__ import annotations

from typing import NamedTuple

from gpu_train_cas.errors import UsageError

SCHEME = "gpu-train://"
LATEST = "latest"
BEST = "best"
STEP = "step:"


class Ref(NamedTuple):
    """A parsed ref. It is only a wish: `Checkpoints.resolve` finds what it names.

    Attributes:
        job: a job's id, name or unique prefix of an id.
        selector: "latest", "best", "step" or "name"; "" when the ref names a job alone.
        step: the step of a "step" selector.
        name: what follows the @ of a "name" selector. Checkpoints' names may hold slashes, so the
            name and the path can only be told apart beside the job's checkpoints; `name` has both.
        path: what follows the checkpoint, without a leading slash; "" for all of it.
    """

    job: str
    selector: str = ""
    step: int | None = None
    name: str = ""
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Ref:
        """Read a ref, with or without gpu-train://.

        Raises:
            UsageError: for an empty job, an empty selector or a step that is no number.
        """
        job, at, rest = text.removeprefix(SCHEME).partition("@")
        if not at:
            job, slash, path = job.partition("/")
            if not job:
                raise UsageError(f"ref {text!r} names no job; write JOB[@CHECKPOINT][/path]")
            return cls(job, LATEST if slash and path.strip("/") else "", path=path.strip("/"))
        if not job:
            raise UsageError(f"ref {text!r} names no job before the @; write JOB@CHECKPOINT[/path]")
        rest = rest.strip("/")
        head, _, path = rest.partition("/")
        if not rest:
            raise UsageError(f"ref {text!r} names no checkpoint after the @; write {job}@latest or {job}@NAME")
        if head in (LATEST, BEST):
            return cls(job, head, path=path.strip("/"))
        if head.startswith(STEP):
            digits = head.removeprefix(STEP)
            if not (digits.isascii() and digits.isdecimal()):
                raise UsageError(f"ref {text!r}: {digits!r} is no step; write {job}@step:500")
            return cls(job, "step", step=int(digits), path=path.strip("/"))
        return cls(job, "name", name=rest)

    def __str__(self) -> str:
        chosen = {"": "", "step": f"@step:{self.step}", "name": f"@{self.name}"}.get(self.selector, f"@{self.selector}")
        return self.job + chosen + (f"/{self.path}" if self.path else "")
