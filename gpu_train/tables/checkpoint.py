"""Checkpoints: the ledger of what was captured of each job, and how refs find their way in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from datetime import UTC, datetime
from heapq import merge
from itertools import islice
from math import isfinite
from typing import TYPE_CHECKING, Any

from gpu_train.ref import BEST, LATEST, Ref
from gpu_train.spelling import near
from gpu_train.step import natural_key, split_version
from gpu_train.tables.checkpoint_row import GONE, INCOMPLETE, STATES, VERIFIED, Checkpoint, CheckpointRows
from gpu_train.tables.job import Job, Jobs
from gpu_train.tables.row import job_of
from gpu_train_cas.errors import Incomplete, NotFound

if TYPE_CHECKING:
    from gpu_train_cas.registry import Registry, Txn
    from gpu_train_cas.transaction import Transaction

__all__ = ["GONE", "INCOMPLETE", "STATES", "VERIFIED", "Checkpoint", "Checkpoints", "mode_of", "sorted_by_step"]

_RISING = ("acc", "accuracy", "f1", "bleu", "rouge", "auc", "reward", "score", "precision", "recall", "map", "iou")
"""Words in a metric's name under which more is better; all others, such as every loss, are minimised."""

CheckpointList = list[Checkpoint]  # a name of its own: within the class `list` is a method


class Checkpoints:
    """The table of checkpoints, and beside it the rows of those that were removed.

    Who removes or brings back also moves the records (`retention.trash`). A removed row keeps its number and its name:
    neither is given a second time.
    """

    def __init__(
        self, registry: Registry, transaction: Callable[[], Any], jobs: Jobs,
        best: Callable[[], tuple[str, str]] = lambda: ("", ""),
    ) -> None:  # fmt: skip
        self._registry = registry
        self._transaction = transaction
        self._jobs = jobs
        self._best = best
        self._rows = CheckpointRows(registry, "checkpoints", "checkpoint_places")
        self._removed = CheckpointRows(registry, "removed_checkpoints", "removed_places")
        self.table = self._rows.table

    def list(self, job_id: str | None = None, *, limit: int | None = None) -> CheckpointList:
        """A job's checkpoints, or all jobs', newest commit first; at most `limit`, without reading the others."""
        with self._registry.read() as txn:
            if limit is None:
                found = list(self.scan(txn, job_id))
            else:
                jobs = self._counts(txn) if job_id is None else [job_id]
                found = [c for job in jobs for c in islice(self.scan(txn, job, reverse=True), limit)]
        return sorted(found, key=lambda c: (c.committed_ns, c.job_id, c.seq), reverse=True)[:limit]

    def scan(self, txn: Txn, job_id: str | None = None, *, reverse: bool = False) -> Iterator[Checkpoint]:
        """Checkpoints in key order or backwards, within a transaction."""
        return self._rows.scan(txn, job_id, reverse=reverse)

    def scan_removed(self, txn: Txn, job_id: str | None = None, *, reverse: bool = False) -> Iterator[Checkpoint]:
        """Those that were removed, in key order or backwards, within a transaction."""
        return self._removed.scan(txn, job_id, reverse=reverse)

    def newest(self, job_id: str) -> Generator[Checkpoint, None, None]:
        """A job's checkpoints from the last commit back; close it, or read all: until then a snapshot is held."""
        with self._registry.read() as txn:
            yield from self.scan(txn, job_id, reverse=True)

    def history(self, job_id: str) -> Generator[Checkpoint, None, None]:
        """`newest`, with those that were removed in their places."""
        with self._registry.read() as txn:
            scans = self.scan(txn, job_id, reverse=True), self.scan_removed(txn, job_id, reverse=True)
            yield from merge(*scans, key=lambda c: -c.seq)

    def count(self, job_id: str | None = None) -> int:
        """How many a job has, or all jobs."""
        with self._registry.read() as txn:
            return self._rows.count(txn, job_id)

    def counts(self) -> Counter[str]:
        """How many each job has."""
        with self._registry.read() as txn:
            return self._counts(txn)

    def _counts(self, txn: Txn) -> Counter[str]:
        return Counter(job_of(key) for key in self.table.keys(txn))

    def latest(self, job_id: str) -> Checkpoint | None:
        """The newest verified one by the order of commits."""
        with self._registry.read() as txn:
            return next((c for c in self.scan(txn, job_id, reverse=True) if c.state == VERIFIED), None)

    def best(
        self, job_id: str, metric: str | None = None, mode: str | None = None, among: CheckpointList | None = None
    ) -> Checkpoint | None:
        """The verified one with the best metric: `metric`, else `defaults.best_metric`, else eval_loss, else loss.

        `mode` is "min" or "max"; without it `defaults.best_mode` (for the configured metric), else more is
        better for names with a word such as accuracy, f1 or reward in them, less for all others. Of equals
        the newest. None when no checkpoint has the metric as a finite number. `among` are the job's checkpoints where
        they have been read already.
        """
        configured, configured_mode = self._best()
        if metric is None and configured:
            metric, mode = configured, mode or configured_mode or None
        known = [c for c in (self.list(job_id) if among is None else among) if c.state == VERIFIED]
        for name in [metric] if metric else ["eval_loss", "loss"]:
            having = [c for c in known if _finite(c.metrics.get(name))]
            if having:
                sign = 1 if (mode or mode_of(name)) == "min" else -1
                return min(having, key=lambda c: (sign * c.metrics[name], -c.seq))
        return None

    def resolve(self, ref: Ref | str) -> tuple[Checkpoint, str]:
        """The checkpoint that a ref names, and the path inside it.

        A plain name is the newest whole content seen under it, the newest incomplete one only when none was
        whole; `NAME~1` is the first. `step:` is the newest verified one at that step. A ref without a checkpoint is
        the latest.

        Raises:
            NotFound: when the job or the checkpoint is not there, naming what is near.
            Incomplete: when it is one whose bytes were gone before they could be kept.
            UsageError: for a ref that cannot be read, or an ambiguous job.
        """
        ref = Ref.parse(ref) if isinstance(ref, str) else ref
        job = self._jobs.find(ref.job)
        found, path = self._choose(job, ref)
        if found.state == GONE:
            raise Incomplete(
                f"{found.ref} was deleted by the training {found.lifetime_s or 0:.2f} s after it appeared, before "
                f"its bytes could be kept; `gpu-train checkpoints list {job.id}` shows the others"
            )
        return found, path

    def _choose(self, job: Job, ref: Ref) -> tuple[Checkpoint, str]:
        if ref.selector == "name":
            return self._named(job, ref.name)
        if ref.selector == "step":
            with self._registry.read() as txn:
                at_step = _newest_first(self.at_step_in(txn, job.id, ref.step))
            whole = [c for c in at_step if c.state == VERIFIED]
            if whole:
                return whole[0], ref.path
            if at_step:
                raise Incomplete(
                    f"{job.id} has no whole checkpoint at step {ref.step}; {at_step[0].name} is {at_step[0].state}"
                )
            if removed := self.removed(job.id, ref):
                raise NotFound(_was_removed(removed[0]))
            steps = sorted({c.step for c in self.list(job.id) if c.step is not None})
            near = sorted(steps, key=lambda s: abs(s - (ref.step or 0)))[:3]
            hint = f"nearest are {', '.join(map(str, near))}" if near else "none has a known step"
            raise NotFound(f"{job.id} has no checkpoint at step {ref.step}; {hint}")
        found = self.best(job.id) if ref.selector == BEST else self.latest(job.id)
        if found is None:
            what = {BEST: "with a metric to choose the best by", LATEST: "that is whole"}
            raise NotFound(
                f"{job.id} has no checkpoint {what.get(ref.selector, 'that is whole')}; "
                f"`gpu-train checkpoints list {job.id}` shows what there is"
            )
        return found, ref.path

    def _named(self, job: Job, text: str) -> tuple[Checkpoint, str]:
        """Tell name and path apart by what the job has: the longest name wins."""
        with self._registry.read() as txn:
            found = _match(self._rows, txn, job.id, text)
            removed = None if found else _match(self._removed, txn, job.id, text)
        if found is not None:
            return found
        if removed is not None:
            raise NotFound(_was_removed(removed[0]))
        names = sorted({c.name for c in self.list(job.id)}, key=natural_key)
        nearest = near(text.partition("/")[0], names) or names[-3:]
        hint = f"near are {', '.join(nearest)}" if nearest else "it has none yet"
        raise NotFound(f"{job.id} has no checkpoint {text!r}; {hint}")

    def removed(self, job_id: str, ref: Ref) -> CheckpointList:
        """Those of a job's removed checkpoints that a ref names: one by its name, all at a step, or all of the job."""
        with self._registry.read() as txn:
            if ref.selector == "step":
                return _newest_first(self._removed.at_step(txn, job_id, ref.step))
            if ref.selector == "name":
                found = _match(self._removed, txn, job_id, ref.name)
                return [found[0]] if found is not None else []
            return _newest_first(self.scan_removed(txn, job_id))

    def add_in(self, txn: Transaction, checkpoint: Checkpoint) -> Checkpoint:
        """Append as part of a transaction, durable; the row as written, with its number."""
        job_id = checkpoint.job_id
        seq = max(self._rows.next_seq(txn.txn, job_id), self._removed.next_seq(txn.txn, job_id))
        checkpoint = checkpoint._replace(seq=seq)
        self._rows.put(txn, checkpoint)
        return checkpoint

    def put_in(self, txn: Transaction, checkpoint: Checkpoint) -> None:
        """Write a changed row back as part of a transaction, durable.

        Raises:
            NotFound: when it was removed since it was read.
        """
        if self._rows.get(txn.txn, checkpoint.job_id, checkpoint.seq) is None:
            raise NotFound(f"{checkpoint.ref} was removed meanwhile; `gpu-train checkpoints undo` brings it back")
        self._rows.put(txn, checkpoint)

    def put(self, checkpoint: Checkpoint) -> None:
        """Write a changed row back in a transaction of its own; raises as `put_in`."""
        with self._transaction() as txn:
            self.put_in(txn, checkpoint)

    def get_in(self, txn: Txn, job_id: str, seq: int) -> Checkpoint | None:
        """A job's checkpoint of that number, within a transaction; None when there is none or it was removed."""
        return self._rows.get(txn, job_id, seq)

    def get_removed_in(self, txn: Txn, job_id: str, seq: int) -> Checkpoint | None:
        """A job's removed checkpoint of that number, within a transaction."""
        return self._removed.get(txn, job_id, seq)

    def remove_in(self, txn: Transaction, checkpoint: Checkpoint, when_ns: int, by: str, why: str = "") -> None:
        """Move a row that is there to the removed ones, as part of a transaction, durable."""
        row = self._rows.take(txn, checkpoint.job_id, checkpoint.seq)
        self._removed.put(txn, checkpoint._replace(removed_ns=when_ns, removed_by=by, removed_why=why), row)

    def bring_back_in(self, txn: Transaction, checkpoint: Checkpoint) -> Checkpoint:
        """Move a removed row back as part of a transaction, durable; as it is afterwards."""
        row = self._removed.take(txn, checkpoint.job_id, checkpoint.seq)
        checkpoint = checkpoint._replace(removed_ns=None, removed_by="", removed_why="")
        self._rows.put(txn, checkpoint, row)
        return checkpoint

    def forget_in(self, txn: Transaction, job_id: str, seq: int) -> None:
        """Drop a removed row for good, as part of a transaction: only when its job goes as a whole."""
        self._removed.take(txn, job_id, seq)

    def versions_in(self, txn: Txn, job_id: str, base_name: str) -> CheckpointList:
        """All rows under one path, oldest first, within a transaction."""
        return list(self._rows.at_path(txn, job_id, base_name))

    def newest_versions_in(self, txn: Txn, job_id: str, base_name: str) -> Iterator[Checkpoint]:
        """The rows under one path, newest first, with those that were removed, read one by one."""
        rows = (table.at_path(txn, job_id, base_name, reverse=True) for table in (self._rows, self._removed))
        return merge(*rows, key=lambda c: -c.seq)

    def at_step_in(self, txn: Txn, job_id: str, step: int | None) -> CheckpointList:
        """All rows at a step, oldest first, within a transaction."""
        return list(self._rows.at_step(txn, job_id, step))


def mode_of(metric: str) -> str:
    """ "max" for a metric in whose name a word says that more is better, else "min"."""
    words = metric.lower().replace("-", "_").replace("/", "_").replace(" ", "_").split("_")
    return "max" if any(w in _RISING or w.startswith(("rouge", "bleu", "acc")) for w in words) else "min"


def sorted_by_step(checkpoints: Iterable[Checkpoint]) -> CheckpointList:
    """In the order of steps, then of names as people read them; those without a step first."""
    return sorted(checkpoints, key=lambda c: (-1 if c.step is None else c.step, natural_key(c.name), c.seq))


def _match(rows: CheckpointRows, txn: Txn, job_id: str, text: str) -> tuple[Checkpoint, str] | None:
    """The checkpoint among some rows that the longest part of `text` names, and the path that is left."""
    parts = text.split("/")
    for cut in range(len(parts), 0, -1):
        name, path = "/".join(parts[:cut]), "/".join(parts[cut:])
        base, version = split_version(name)
        versions = _newest_first(rows.at_path(txn, job_id, base))
        if version is not None:
            exact = [c for c in versions if c.name == name]
            chosen = exact or ([c for c in versions if c.name == base] if version == 1 else [])
        else:
            chosen = sorted(versions, key=lambda c: (VERIFIED, INCOMPLETE, GONE).index(c.state))
        if chosen:
            return chosen[0], path
    return None


def _was_removed(checkpoint: Checkpoint) -> str:
    when = datetime.fromtimestamp((checkpoint.removed_ns or 0) // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    by = f" by `{checkpoint.removed_by}`" if checkpoint.removed_by else ""
    return (
        f"{checkpoint.ref} was removed on {when}{by}; while it is in the trash, "
        f"`gpu-train checkpoints undo {checkpoint.ref}` brings it back"
    )


def _newest_first(checkpoints: Iterable[Checkpoint]) -> CheckpointList:
    return sorted(checkpoints, key=lambda c: (c.committed_ns, c.seq), reverse=True)


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and isfinite(value)
