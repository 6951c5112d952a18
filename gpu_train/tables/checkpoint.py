"""Checkpoints: the ledger of what was captured of each job, and how refs find their way in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import isfinite
from typing import TYPE_CHECKING, Any

from gpu_train.ref import BEST, LATEST, Ref
from gpu_train.spelling import near
from gpu_train.step import natural_key, split_version
from gpu_train.tables.job import Job, Jobs
from gpu_train.tables.place import Places
from gpu_train.tables.row import from_row, job_of, job_prefix, next_seq, numbered_key, seq_of, to_row
from gpu_train_cas.errors import Incomplete, NotFound

if TYPE_CHECKING:
    from gpu_train_cas.digest import Digest
    from gpu_train_cas.registry import Registry, Txn
    from gpu_train_cas.transaction import Transaction

VERIFIED = "verified"
INCOMPLETE = "incomplete"
GONE = "gone"
STATES = (VERIFIED, INCOMPLETE, GONE)
_RISING = ("acc", "accuracy", "f1", "bleu", "rouge", "auc", "reward", "score", "precision", "recall", "map", "iou")
"""Words in a metric's name under which more is better; all others, such as every loss, are minimised."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint of a job.

    Attributes:
        job_id, seq: the job, and the place in the order of commits, from 1.
        name: unique within the job: its path below the checkpoint folder; `~2`, `~3` are later contents of
            the same path.
        step: the training step, when it is known.
        state: verified (whole, stored) | incomplete (stored as far as it was there) | gone (deleted before its
            bytes could be kept; there is no record).
        proof: why it counts as whole: explicit, a rule's name, "files", "quiet" or "ended"; for the
            other states what was missing.
        created_ns: the newest modification among its files. committed_ns: when it was stored.
        size_bytes, files: of what it holds; stored_bytes: what it added to the store.
        metrics, tags: numbers and words that belong to it; own_metrics names those that were given explicitly.
        record: the record in the store; None when it is gone.
        source: the path it was taken from.
        lifetime_s: for one that is gone, how long it was seen.
        fingerprint: of the source files' inodes, sizes and times, to know them again without reading.
        identity: of its content, blind to times.
        pattern: what files of tensors it has, whatever the numbers in their names (`base.pattern_of`).
        classes: per class of tensors (weights, exp_avg, exp_avg_sq, other) the original, new and stored bytes, and
            the most deltas on top of each other.
    """

    job_id: str
    name: str
    seq: int = 0
    step: int | None = None
    state: str = VERIFIED
    proof: str = ""
    created_ns: int = 0
    committed_ns: int = 0
    size_bytes: int = 0
    stored_bytes: int = 0
    files: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    record: Digest | None = None
    source: str = ""
    lifetime_s: float | None = None
    fingerprint: str = ""
    identity: Digest | None = None
    own_metrics: tuple[str, ...] = ()
    pattern: str = ""
    classes: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def base_name(self) -> str:
        """The path below the checkpoint folder, without a version."""
        return split_version(self.name)[0]

    @property
    def ref(self) -> str:
        """The ref that always names this one."""
        version = split_version(self.name)[1]
        return f"{self.job_id}@{self.name}" + ("" if version else "~1")

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Checkpoint:
        """Read a row back."""
        return from_row(cls, {**row, "own_metrics": tuple(row.get("own_metrics", ()))})


CheckpointList = list[Checkpoint]  # a name of its own: within the class `list` is a method


class Checkpoints:
    """The table of checkpoints."""

    def __init__(
        self, registry: Registry, transaction: Callable[[], Any], jobs: Jobs,
        best: Callable[[], tuple[str, str]] = lambda: ("", ""),
    ) -> None:  # fmt: skip
        self._registry = registry
        self._transaction = transaction
        self._jobs = jobs
        self._best = best
        self.table = registry.table("checkpoints")
        self._places = Places(registry, self.table)

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
        prefix = b"" if job_id is None else job_prefix(job_id)
        for key, row in self.table.scan(txn, prefix, reverse=reverse):
            yield _read(key, row)

    def newest(self, job_id: str) -> Generator[Checkpoint, None, None]:
        """A job's checkpoints from the last commit back; close it, or read all: until then a snapshot is held."""
        with self._registry.read() as txn:
            yield from self.scan(txn, job_id, reverse=True)

    def count(self, job_id: str | None = None) -> int:
        """How many a job has, or all jobs."""
        with self._registry.read() as txn:
            return self.table.count(txn, b"" if job_id is None else job_prefix(job_id))

    def counts(self) -> Counter[str]:
        """How many each job has."""
        with self._registry.read() as txn:
            return self._counts(txn)

    def _counts(self, txn: Txn) -> Counter[str]:
        return Counter(job_of(key) for key in self.table.keys(txn))

    def latest(self, job_id: str) -> Checkpoint | None:
        """The newest verified one by the order of commits."""
        with self._registry.read() as txn:
            for key, row in self.table.scan(txn, job_prefix(job_id), reverse=True):
                if row["state"] == VERIFIED:
                    return _read(key, row)
        return None

    def best(self, job_id: str, metric: str | None = None, mode: str | None = None) -> Checkpoint | None:
        """The verified one with the best metric: `metric`, else `defaults.best_metric`, else eval_loss, else loss.

        `mode` is "min" or "max"; without it `defaults.best_mode` (for the configured metric), else more is
        better for names with a word such as accuracy, f1 or reward in them, less for all others. Of equals
        the newest. None when no checkpoint has the metric as a finite number.
        """
        configured, configured_mode = self._best()
        if metric is None and configured:
            metric, mode = configured, mode or configured_mode or None
        known = [c for c in self.list(job_id) if c.state == VERIFIED]
        for name in [metric] if metric else ["eval_loss", "loss"]:
            having = [c for c in known if _finite(c.metrics.get(name))]
            if having:
                sign = 1 if (mode or mode_of(name)) == "min" else -1
                return min(having, key=lambda c: (sign * c.metrics[name], -c.seq))
        return None

    def resolve(self, ref: Ref | str) -> tuple[Checkpoint, str]:
        """The checkpoint that a ref names, and the path inside it.

        A plain name is the newest content seen under it, `NAME~1` the first. `step:` is the newest
        verified one at that step. A ref without a checkpoint is the latest.

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
        parts = text.split("/")
        with self._registry.read() as txn:
            for cut in range(len(parts), 0, -1):
                name, path = "/".join(parts[:cut]), "/".join(parts[cut:])
                base, version = split_version(name)
                versions = _newest_first(self.versions_in(txn, job.id, base))
                if version is not None:
                    exact = [c for c in versions if c.name == name]
                    chosen = exact or ([c for c in versions if c.name == base] if version == 1 else [])
                else:
                    chosen = [c for c in versions if c.state != GONE] or versions
                if chosen:
                    return chosen[0], path
        names = sorted({c.name for c in self.list(job.id)}, key=natural_key)
        nearest = near(parts[0], names) or names[-3:]
        hint = f"near are {', '.join(nearest)}" if nearest else "it has none yet"
        raise NotFound(f"{job.id} has no checkpoint {text!r}; {hint}")

    def add_in(self, txn: Transaction, checkpoint: Checkpoint) -> Checkpoint:
        """Append as part of a transaction, durable; the row as written, with its number."""
        seq = next_seq(self.table, txn.txn, checkpoint.job_id)
        checkpoint = replace(checkpoint, seq=seq)
        self._write(txn, checkpoint, None)
        return checkpoint

    def put_in(self, txn: Transaction, checkpoint: Checkpoint) -> None:
        """Write a changed row back as part of a transaction, durable."""
        key = numbered_key(checkpoint.job_id, checkpoint.seq)
        self._write(txn, checkpoint, txn.get(self.table, key))

    def _write(self, txn: Transaction, checkpoint: Checkpoint, old: Mapping[str, Any] | None) -> None:
        key, row = numbered_key(checkpoint.job_id, checkpoint.seq), _row(checkpoint, old)
        self._places.move(txn.txn, key, row)
        txn.put(self.table, key, row, durable=True)

    def put(self, checkpoint: Checkpoint) -> None:
        """Write a changed row back in a transaction of its own."""
        with self._transaction() as txn:
            self.put_in(txn, checkpoint)

    def versions_in(self, txn: Txn, job_id: str, base_name: str) -> CheckpointList:
        """All rows under one path, oldest first, within a transaction."""
        return list(self._versions(txn, job_id, base_name, reverse=False))

    def newest_versions_in(self, txn: Txn, job_id: str, base_name: str) -> Iterator[Checkpoint]:
        """The rows under one path, newest first, read one by one, within a transaction."""
        return self._versions(txn, job_id, base_name, reverse=True)

    def at_step_in(self, txn: Txn, job_id: str, step: int | None) -> CheckpointList:
        """All rows at a step, oldest first, within a transaction."""
        if self._usable(txn):
            found = self._rows(txn, job_id, self._places.at_step(txn, job_id, step))
        else:
            found = self.scan(txn, job_id)
        return [c for c in found if c.step == step]

    def _versions(self, txn: Txn, job_id: str, base_name: str, *, reverse: bool) -> Iterator[Checkpoint]:
        if self._usable(txn):
            found = self._rows(txn, job_id, self._places.at_path(txn, job_id, base_name, reverse=reverse))
        else:
            found = self.scan(txn, job_id, reverse=reverse)
        return (c for c in found if c.base_name == base_name)

    def _usable(self, txn: Txn) -> bool:
        """Whether the index can be used; who writes makes it again where it cannot."""
        if txn.writing:
            self._places.ensure(txn)
            return True
        return self._places.is_sound(txn)

    def _rows(self, txn: Txn, job_id: str, numbers: Iterable[int]) -> Iterator[Checkpoint]:
        for number in numbers:
            key = numbered_key(job_id, number)
            row = self.table.get(txn, key)
            if row is not None:
                yield _read(key, row)


def mode_of(metric: str) -> str:
    """ "max" for a metric in whose name a word says that more is better, else "min"."""
    words = metric.lower().replace("-", "_").replace("/", "_").replace(" ", "_").split("_")
    return "max" if any(w in _RISING or w.startswith(("rouge", "bleu", "acc")) for w in words) else "min"


def sorted_by_step(checkpoints: Iterable[Checkpoint]) -> CheckpointList:
    """In the order of steps, then of names as people read them; those without a step first."""
    return sorted(checkpoints, key=lambda c: (-1 if c.step is None else c.step, natural_key(c.name), c.seq))


def _read(key: bytes, row: dict[str, Any]) -> Checkpoint:
    row["seq"] = seq_of(key)
    return Checkpoint.from_row(row)


def _newest_first(checkpoints: Iterable[Checkpoint]) -> CheckpointList:
    return sorted(checkpoints, key=lambda c: (c.committed_ns, c.seq), reverse=True)


def _row(checkpoint: Checkpoint, old: Mapping[str, Any] | None = None) -> dict[str, Any]:
    row = to_row(checkpoint, dict(old) if old else None)
    del row["seq"]
    return row


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and isfinite(value)
