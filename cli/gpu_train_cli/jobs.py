"""`gpu-train jobs` and `gpu-train projects`: what ran, how it ended, what it was made of."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from gpu_train_cli.command import Group, Lazy
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import Column, Details, Listing, Output, Row, reading
from gpu_train_cli.text import count, duration, local, moment, plain, printable, size

if TYPE_CHECKING:
    from gpu_train import Job, Metric

NO_JOBS = "no jobs yet: start one with `gpu-train run -- python train.py`"
_REMOVAL = "gpu_train_cli.job_removal"
NS = 1_000_000_000
CURVES = 1  # drawn by `show`; `metrics` draws the others
EVENTS = 10  # the newest ones that `show` has
STATUSES = ("queued", "running", "finished", "failed", "stopped", "killed", "lost")


def job_row(job: Job, checkpoints: int) -> dict[str, object]:
    """A job as a row of a listing."""
    end = job.ended_ns or time.time_ns()
    return {
        "job_id": job.id,
        "name": job.name,
        "project": job.project,
        "status": job.status,
        "exit_code": job.exit_code,
        "reason": job.reason,
        "checkpoints": checkpoints,
        "command": list(job.command),
        "provider": job.provider,
        "code": job.code,
        "data": list(job.data),
        "created_at": moment(job.created_ns),
        "started_at": moment(job.started_ns),
        "ended_at": moment(job.ended_ns),
        "duration_s": None if job.started_ns is None else round((end - job.started_ns) / NS, 3),
    }


def _job_lines(job: Job, fields: Row) -> list[tuple[str, str]]:
    ended = "" if job.exit_code is None else f" (exit code {job.exit_code})"
    why = f": {printable(job.reason)}" if job.reason else ""
    lines = [
        ("job", job.id),
        ("project", plain(job.project)),
        ("status", f"{job.status}{ended}{why}"),
        ("command", printable(shlex.join(job.command))),
        ("in", printable(job.cwd)),
        ("provider", job.provider),
        ("created", local(moment(job.created_ns))),
        ("ran", duration(fields["duration_s"] if isinstance(fields["duration_s"], float) else None)),
        ("checkpoints", plain(fields["checkpoints"])),
        ("code", plain(job.code)),
        ("git", plain(fields["git"])),
        ("data", plain(fields["data"])),
        ("started from", plain(job.parent)),
        ("host", _host(job)),
        ("metrics", plain(fields["metrics"])),
        ("logs", plain(fields["logs_dir"])),
    ]
    events = fields["events"]
    for event in events if isinstance(events, list) else []:
        lines.append(("event", f"{plain(event['time'])}  {plain(event['text'])}"))
    return [(name, value) for name, value in lines if value != "-"]


def _host(job: Job) -> str:
    """The machine in a few words; JSON has all that is known of it."""
    if not job.host:
        return "-"
    host, python = job.host, job.environment.get("python")
    gpus = ", ".join(str(gpu.get("name", gpu)) if isinstance(gpu, dict) else str(gpu) for gpu in host.get("gpus") or ())
    parts = [
        str(host.get("hostname", "")),
        count(int(host.get("cpus") or 0), "CPU"),
        size(host.get("memory_bytes")),
        gpus or "no GPU",
        *([f"Python {python}"] if python else []),
    ]
    return printable(", ".join(parts))


def _newest(reports: Iterable[Metric]) -> dict[str, float]:
    return {name: value for report in reports for name, value in report.values.items()}


def _short(command: str, width: int = 60) -> str:
    shown = printable(command)
    return shown if len(shown) <= width else shown[: width - 1] + "…"


@click.group(
    "jobs",
    cls=Group,
    default="list",
    lazy={
        "diff": Lazy("gpu_train_cli.job_difference:diff_jobs", "Show in what two jobs differ."),
        "rm": Lazy(f"{_REMOVAL}:remove_jobs", "Move jobs to the trash."),
    },
)
def jobs() -> None:
    """List, show, compare and remove jobs."""


@jobs.command("list")
@click.option("--project", help="Only jobs of this project.")
@click.option("--status", type=click.Choice(STATUSES), help="Only jobs in this status.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most so many, the newest.")
@reading
@pass_invocation
def list_jobs(
    invocation: Invocation, project: str | None, status: str | None, limit: int | None, output: Output
) -> None:
    """List jobs, newest first."""
    with invocation.workspace() as workspace:
        found = workspace.jobs.list(project=project, status=None if status is None else [status])
        counts = workspace.checkpoints.counts()
    rows = [job_row(job, counts[job.id]) for job in found[:limit]]
    filtered = project is not None or status is not None
    empty = "no job is like that; `gpu-train jobs` lists all" if filtered else NO_JOBS
    columns = [
        Column("job_id", "JOB"),
        Column("project", "PROJECT"),
        Column("status", "STATUS"),
        Column("checkpoints", "CHECKPOINTS", right=True),
        Column("duration_s", "RAN", duration, right=True),
        Column("created_at", "CREATED", wrap=True),
        Column("command", "COMMAND", lambda command: _short(shlex.join(command)), wrap=True),
    ]
    head = {"total_jobs": len(found)}
    output.listing(Listing("jobs", columns, rows, lambda row: str(row["job_id"]), empty, head))


@jobs.command("show", exits=[3])
@click.argument("job")
@reading
@pass_invocation
def show_job(invocation: Invocation, job: str, output: Output) -> None:
    """Show JOB: its command, status, code and data versions, machine, last metrics, events, and its loss as a curve.

    JOB is a job's id, the beginning of one, or a name (the newest job of that name).
    """
    with invocation.workspace() as workspace:
        found = workspace.jobs.find(job)
        reports = workspace.metrics.list(found.id)
        fields = {
            **job_row(found, workspace.checkpoints.count(found.id)),
            "cwd": found.cwd,
            "signal": found.signal,
            "attempt": found.attempt,
            "git": dict(found.git or {}),
            "host": dict(found.host or {}),
            "environment": dict(found.environment or {}),
            "parent": found.parent,
            "loads": list(found.loads),
            "gpus": found.gpus,
            "metrics": _newest(reports),
            "events": [
                {"time": moment(event.time_ns), "kind": event.kind, "text": event.text}
                for event in workspace.events.list(found.id)[-EVENTS:]
            ],
            "checkpoints_dir": workspace.home.checkpoints(found.id),
            "logs_dir": workspace.home.logs(found.id),
        }
    output.details(Details(fields, found.id, _job_lines(found, fields)))
    if output.for_people:
        from gpu_train_cli.chart import curves_of, drawn  # noqa: PLC0415  listing does without

        for curve in curves_of(reports)[:CURVES]:
            if len(curve.ys) > 1:
                click.echo(f"\n{drawn(curve)}")


@click.group(
    "projects",
    cls=Group,
    default="list",
    lazy={"rm": Lazy(f"{_REMOVAL}:remove_project", "Move all jobs of a project to the trash.")},
)
def projects() -> None:
    """List projects and remove one."""


@projects.command("list")
@reading
@pass_invocation
def list_projects(invocation: Invocation, output: Output) -> None:
    """List projects with their jobs, the one that was used last first."""
    rows: dict[str, dict[str, object]] = {}
    with invocation.workspace() as workspace:
        for job in workspace.jobs.list():
            newest: dict[str, object] = {
                "project": job.project,
                "jobs": 0,
                "running": 0,
                "last_job": job.id,
                "last_created_at": moment(job.created_ns),
            }
            row = rows.setdefault(job.project, newest)
            row["jobs"] = int(str(row["jobs"])) + 1
            row["running"] = int(str(row["running"])) + (job.status == "running")
    columns = [
        Column("project", "PROJECT"),
        Column("jobs", "JOBS", right=True),
        Column("running", "RUNNING", right=True),
        Column("last_job", "LAST JOB"),
        Column("last_created_at", "CREATED", wrap=True),
    ]
    output.listing(Listing("projects", columns, list(rows.values()), lambda row: str(row["project"]), NO_JOBS))
