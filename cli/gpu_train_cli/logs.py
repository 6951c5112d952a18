"""`gpu-train logs`: what a job printed, also while it goes on printing."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import click

from gpu_train.rescue import is_unattended
from gpu_train_cli.command import Command
from gpu_train_cli.invocation import Invocation, pass_invocation
from gpu_train_cli.output import note

READ_BYTES = 1 << 20
POLL_S = 0.2


@click.command("logs", cls=Command, exits=[3])
@click.argument("job")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended.")
@click.option("-n", "--tail", "lines", type=click.IntRange(min=0), metavar="N", help="Begin N lines before the end.")
@pass_invocation
def logs(invocation: Invocation, job: str, follow: bool, lines: int | None) -> None:
    """Show what a job printed, also while it runs.

    That is its stdout and stderr, byte for byte, in the order in which they came.
    """
    with invocation.workspace() as workspace:
        found = workspace.jobs.find(job)
        path = workspace.home.logs(found.id) / "stdout.log"

        def is_live() -> bool:
            now = workspace.jobs.get(found.id)
            return now is not None and now.is_live and not is_unattended(now)

        if not (follow and is_live()):
            if not path.exists() or path.stat().st_size == 0:
                note(f"{found.id} has printed nothing{' yet' if found.is_live else ''}")
                return
            is_live = _never
        for data in printed(path, is_live, lines):
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()


def _never() -> bool:
    return False


def printed(path: Path, is_live: Callable[[], bool], lines: int | None = None) -> Iterator[bytes]:
    """The bytes of a log from its last `lines` lines (or its start) on, as they come, until nobody writes."""
    while not path.exists():
        if not is_live():
            return
        time.sleep(POLL_S)
    with path.open("rb") as stream:
        if lines is not None:
            stream.seek(_start_of_last(stream, lines))
        while True:
            # Asked before reading: what was written before the job ended is then read in this round.
            live = is_live()
            while data := stream.read(READ_BYTES):
                yield data
            if not live:
                return
            time.sleep(POLL_S)


def _start_of_last(stream: BinaryIO, lines: int) -> int:
    """Where the last lines begin; a last line without a newline counts as one."""
    end = stream.seek(0, os.SEEK_END)
    if lines == 0 or end == 0:
        return end
    stream.seek(end - 1)
    wanted = lines + (stream.read(1) == b"\n")
    at = end
    while at > 0:
        start = max(0, at - READ_BYTES)
        stream.seek(start)
        block = stream.read(at - start)
        place = len(block)
        while (place := block.rfind(b"\n", 0, place)) >= 0:
            wanted -= 1
            if wanted == 0:
                return start + place + 1
        at = start
    return 0
