"""Which of a sink's records a person means."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_train.ref import BEST, Ref
from gpu_train.sinks.journal import SentRecord
from gpu_train.spelling import near
from gpu_train.step import split_version
from gpu_train_cas.errors import NotFound, UsageError


def choose(records: Sequence[SentRecord], refs: Sequence[str]) -> list[SentRecord]:
    """The records that refs name, each once, in the order in which they were made; all of them without refs.

    A job alone means all of its checkpoints. Jobs are known by their ids, and what these begin with.

    Raises:
        NotFound: for a ref that names none of them, with what is near.
        UsageError: for a ref that cannot be read, or that asks for what only a home knows.
    """
    if not refs:
        return list(records)
    found = {record.record: record for text in refs for record in _named(records, text)}
    return [record for record in records if record.record in found]


def _named(records: Sequence[SentRecord], text: str) -> list[SentRecord]:
    ref = Ref.parse(text)
    jobs = list(dict.fromkeys(record.job for record in records))
    job = _job(jobs, ref.job)
    own = [record for record in records if record.job == job]
    if "@" not in text:
        return own
    if ref.path or ref.selector == BEST:
        raise UsageError(f"{text}: in a sink, JOB@NAME, JOB@latest and JOB@step:N can be named")
    if ref.selector == "step":
        found = [record for record in own if record.step == ref.step][-1:]
    elif ref.selector == "name":
        exact = [record for record in own if record.name == ref.name]
        found = exact or [record for record in own if split_version(record.name)[0] == ref.name][-1:]
    else:
        found = own[-1:]
    if not found:
        names = near(ref.name, [record.name for record in own]) or [record.name for record in own[-3:]]
        raise NotFound(f"{text}: the sink holds no such checkpoint; it has {', '.join(names)}")
    return found


def _job(jobs: Sequence[str], text: str) -> str:
    if text in jobs:
        return text
    begun = [job for job in jobs if job.startswith(text)]
    if len(begun) == 1:
        return begun[0]
    if begun:
        raise UsageError(f"job {text!r} could be {', '.join(begun[:5])}; give more of its id")
    hint = ", ".join(near(text, jobs) or jobs[-3:])
    raise NotFound(f"the sink holds no job {text!r}" + (f"; it has {hint}" if hint else ""))
