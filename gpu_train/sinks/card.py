"""The model card of a Hugging Face repository: the facts of the runs whose checkpoints lie there."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from gpu_train.sinks.journal import SentRecord
from gpu_train.sinks.key import checkpoint_prefix
from gpu_train.sinks.objects.content import Held
from gpu_train.sinks.objects.objectstore import ObjectStore, Put
from gpu_train.sinks.setting import FILES, HF, SinkSetting
from gpu_train.tables import Checkpoint, Job
from gpu_train.workspace import Workspace
from gpu_train_cas.errors import NotFound

NAME = "README.md"
BEGIN = "<!-- gpu-train: what follows is written anew with each push -->"
END = "<!-- gpu-train: end -->"
LIMIT_BYTES = 1 << 20
MOST_ROWS = 50
"""Checkpoints of a job that are listed, the newest; a card is read by people."""


def write_card(workspace: Workspace, setting: SinkSetting, objects: ObjectStore, records: Sequence[SentRecord]) -> None:
    """Write the card anew, where a sink is a repository. What somebody wrote outside of our part stays.

    Raises:
        SinkFailed: when the sink failed.
    """
    if setting.type != HF or not setting.repo_id:
        return
    try:
        old = objects.read(NAME, LIMIT_BYTES).decode(errors="replace")
    except NotFound:
        old = ""
    new = card(workspace, setting, records, old)
    if new != old:
        objects.put([Put(NAME, Held(new.encode()))])


def card(workspace: Workspace, setting: SinkSetting, records: Sequence[SentRecord], old: str = "") -> str:
    """The text of a card, with our part in its place."""
    part = "\n".join([BEGIN, *_part(workspace, setting, records), END])
    before, begin, rest = old.partition(BEGIN)
    if begin:
        return before + part + rest.partition(END)[2]
    if old.strip():
        return f"{old.rstrip()}\n\n{part}\n"
    name = (setting.repo_id or setting.bucket).rpartition("/")[2]
    return f"---\ntags:\n- gpu-train\n---\n\n# {name}\n\n{part}\n"


def _part(workspace: Workspace, setting: SinkSetting, records: Sequence[SentRecord]) -> Iterator[str]:
    by_job: defaultdict[str, list[SentRecord]] = defaultdict(list)
    for record in records:
        by_job[record.job].append(record)
    for job_id in sorted(by_job):
        own = by_job[job_id]
        yield f"## {_text(job_id)}"
        yield ""
        yield from _facts(workspace.jobs.get(job_id))
        yield "| checkpoint | step | size | made | metrics |"
        yield "| --- | ---: | ---: | --- | --- |"
        rows = {c.record: c for c in workspace.checkpoints.list(job_id)}
        for record in own[::-1][:MOST_ROWS]:
            yield _row(record, rows.get(record.record))
        if len(own) > MOST_ROWS:
            yield f"| and {len(own) - MOST_ROWS} more | | | | |"
        yield ""
        newest = own[-1]
        if newest.layout == FILES:
            where = checkpoint_prefix(newest.job, newest.name).rstrip("/")
            where = f"{setting.prefix}/{where}" if setting.prefix else where
            yield "```python"
            yield f'AutoModel.from_pretrained("{setting.repo_id}", subfolder={json.dumps(where)})'
            yield "```"
        else:
            yield f"They lie here as packs: `gpu-train pull {setting.address} {job_id}` brings them back."
        yield ""


def _facts(job: Job | None) -> Iterator[str]:
    if job is None:
        return
    facts: dict[str, object] = {"command": f"`{' '.join(job.command)}`" if job.command else None, "status": job.status}
    git: Mapping[str, object] = job.git or {}
    if job.code:
        facts["code version"] = f"`{job.code}`"
    if git.get("commit"):
        facts["commit"] = f"`{str(git['commit'])[:12]}`" + (" and uncommitted changes" if git.get("dirty") else "")
    if job.data:
        facts["data"] = ", ".join(job.data)
    if job.parent:
        facts["went on from"] = job.parent
    packages = job.environment.get("packages")
    if isinstance(packages, Mapping):
        known = [
            f"{name} {packages[name]}" for name in ("torch", "transformers", "lightning", "jax") if name in packages
        ]
        facts["packages"] = ", ".join(known)
    for name, value in facts.items():
        if value:
            yield f"- {name}: {_text(str(value))}"
    yield ""


def _row(record: SentRecord, row: Checkpoint | None) -> str:
    made = datetime.fromtimestamp(record.created_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M")
    metrics = ", ".join(f"{name} {value:.6g}" for name, value in (row.metrics if row is not None else {}).items())
    step = "" if record.step is None else str(record.step)
    return f"| {_text(record.name)} | {step} | {record.size_bytes / 1e6:,.1f} MB | {made} | {_text(metrics)} |"


def _text(text: str) -> str:
    """Text in a table of Markdown."""
    clean = "".join(char if char.isprintable() else "�" for char in text)
    return clean.replace("|", "\\|").replace("<", "&lt;")
