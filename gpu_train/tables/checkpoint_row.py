"""The row of a checkpoint, and a table of such rows with the index that finds them by path and by step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gpu_train.step import split_version
from gpu_train.tables.place import Places
from gpu_train.tables.row import job_prefix, next_seq, numbered_key, seq_of, to_row

if TYPE_CHECKING:
    from gpu_train_cas.digest import Digest
    from gpu_train_cas.registry import Registry, Row, Txn
    from gpu_train_cas.transaction import Transaction

VERIFIED = "verified"
INCOMPLETE = "incomplete"
GONE = "gone"
STATES = (VERIFIED, INCOMPLETE, GONE)
DEPLOYED = "deployed"
"""The tag of a checkpoint that is served; with it no removal takes the checkpoint."""

_FALSE = ("", "0", "false", "no")


class Checkpoint(NamedTuple):
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
        seen_ns: when the agent saw its first file. settled_ns: when it was known to be whole, or not to become so.
            0 where nobody watched.
        shape: how it lies there: "folder", "file", "loose" or "group" (`capture.finder`); "" where nobody noted it.
        kind, base_model: what kind of checkpoint it is and what it was made from (`gpu_train.kind`); "" and None
            where nobody looked.
        total_steps: how many steps the run is to have, where the checkpoint tells.
        kept: whether a person forbade to remove it.
        pushed: the sinks that hold it: address -> when that was proven (ns).
        thin: for one whose optimizer's state was dropped: when (`thinned_ns`), and what it was before: its `record`,
            `size_bytes` and `files`. Empty for all others.
        removed_ns, removed_by, removed_why: for one that was removed, when, by which command, and why.
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
    metrics: Mapping[str, float] = {}
    tags: Mapping[str, str] = {}
    record: Digest | None = None
    source: str = ""
    lifetime_s: float | None = None
    fingerprint: str = ""
    identity: Digest | None = None
    own_metrics: tuple[str, ...] = ()
    pattern: str = ""
    classes: Mapping[str, Sequence[int]] = {}
    seen_ns: int = 0
    settled_ns: int = 0
    shape: str = ""
    total_steps: int | None = None
    kind: str = ""
    base_model: str | None = None
    kept: bool = False
    pushed: Mapping[str, int] = {}
    thin: Mapping[str, Any] = {}
    removed_ns: int | None = None
    removed_by: str = ""
    removed_why: str = ""

    @property
    def base_name(self) -> str:
        """The path below the checkpoint folder, without a version."""
        return split_version(self.name)[0]

    @property
    def ref(self) -> str:
        """The ref that always names this one."""
        version = split_version(self.name)[1]
        return f"{self.job_id}@{self.name}" + ("" if version else "~1")

    @property
    def is_deployed(self) -> bool:
        """Whether it is tagged as served."""
        return self.tags.get(DEPLOYED, "").strip().lower() not in _FALSE

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Checkpoint:
        """Read a row back."""
        values = [row.get(name, default) for name, default in _DEFAULTS]  # thousands are read for a listing
        values[_OWN_METRICS] = tuple(values[_OWN_METRICS])
        return cls._make(values)


_DEFAULTS = [(name, Checkpoint._field_defaults.get(name, "")) for name in Checkpoint._fields]
_OWN_METRICS = Checkpoint._fields.index("own_metrics")


class CheckpointRows:
    """A table of checkpoints' rows. What changes them is part of a write transaction, and durable."""

    def __init__(self, registry: Registry, name: str, places: str) -> None:
        self.table = registry.table(name)
        self._places = Places(registry, self.table, places)

    def scan(self, txn: Txn, job_id: str | None = None, *, reverse: bool = False) -> Iterator[Checkpoint]:
        """Checkpoints in key order or backwards, within a transaction."""
        prefix = b"" if job_id is None else job_prefix(job_id)
        for key, row in self.table.scan(txn, prefix, reverse=reverse):
            yield _read(key, row)

    def count(self, txn: Txn, job_id: str | None = None) -> int:
        """How many a job has, or all jobs; no row is decoded for it."""
        return self.table.count(txn, b"" if job_id is None else job_prefix(job_id))

    def next_seq(self, txn: Txn, job_id: str) -> int:
        """The number behind the last one of a job; they begin at 1."""
        return next_seq(self.table, txn, job_id)

    def get(self, txn: Txn, job_id: str, seq: int) -> Checkpoint | None:
        """A job's row of that number."""
        row = self.table.get(txn, numbered_key(job_id, seq))
        return None if row is None else _read(numbered_key(job_id, seq), row)

    def put(self, txn: Transaction, checkpoint: Checkpoint, old: Row | None = None) -> None:
        """Write a row under its number; `old` lends the fields that this version does not know."""
        key = numbered_key(checkpoint.job_id, checkpoint.seq)
        row = to_row(checkpoint, old if old is not None else txn.get(self.table, key))
        del row["seq"]
        self._places.move(txn.txn, key, row)
        txn.put(self.table, key, row, durable=True)

    def take(self, txn: Transaction, job_id: str, seq: int) -> Row | None:
        """Remove a row; it as it was, None when it was not there."""
        key = numbered_key(job_id, seq)
        row = txn.get(self.table, key)
        if row is not None:
            self._places.leave(txn.txn, key, row)
            txn.delete(self.table, key, durable=True)
        return row

    def at_path(self, txn: Txn, job_id: str, base_name: str, *, reverse: bool = False) -> Iterator[Checkpoint]:
        """The rows under one path, oldest first or the other way round, read one by one."""
        if self._usable(txn):
            found = self._rows(txn, job_id, self._places.at_path(txn, job_id, base_name, reverse=reverse))
        else:
            found = self.scan(txn, job_id, reverse=reverse)
        return (c for c in found if c.base_name == base_name)

    def at_step(self, txn: Txn, job_id: str, step: int | None) -> Iterator[Checkpoint]:
        """The rows at a step, oldest first."""
        if self._usable(txn):
            found = self._rows(txn, job_id, self._places.at_step(txn, job_id, step))
        else:
            found = self.scan(txn, job_id)
        return (c for c in found if c.step == step)

    def _usable(self, txn: Txn) -> bool:
        """Whether the index can be used; who writes makes it again where it cannot."""
        if txn.writing:
            self._places.ensure(txn)
            return True
        return self._places.is_sound(txn)

    def _rows(self, txn: Txn, job_id: str, numbers: Iterable[int]) -> Iterator[Checkpoint]:
        for number in numbers:
            found = self.get(txn, job_id, number)
            if found is not None:
                yield found


def _read(key: bytes, row: dict[str, Any]) -> Checkpoint:
    row["seq"] = seq_of(key)
    return Checkpoint.from_row(row)
