"""What every benchmark here measures with: commands with their time and memory, trees, tables, the machine."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shlex
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


class Failed(Exception):
    """A command that failed, or bytes that came back different."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one command took; the peak memory is its largest process's, never below what the caller itself holds."""

    seconds: float
    rss_bytes: int
    cpu_s: float


def run(command: str, *, env: Mapping[str, str] | None = None, log: Path, self_timed: bool = False) -> Cost:
    """Run a command under `bash -eo pipefail`; its output goes to `log`.

    With `self_timed` the command prints "@seconds WALL CPU", which counts in place of what it took with its
    imports.

    Raises:
        Failed: for any exit but 0, with the last lines of the output.
    """
    with log.open("wb") as out:
        start = time.perf_counter()
        process = subprocess.Popen(
            ["bash", "-eo", "pipefail", "-c", command],
            stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=env,
        )  # fmt: skip
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    text = log.read_text(errors="replace")
    if process.returncode != 0:
        tail = "\n      ".join(text.strip().splitlines()[-4:])
        raise Failed(f"exit {process.returncode} from: {command}\n      {tail}")
    cpu_s = used.ru_utime + used.ru_stime
    if self_timed:
        found = re.search(r"@seconds ([\d.]+) ([\d.]+)", text)
        if not found:
            raise Failed(f"no '@seconds' line from: {command}")
        seconds, cpu_s = float(found[1]), float(found[2])
    return Cost(seconds, used.ru_maxrss * 1024, cpu_s)


def sync(folder: Path) -> float:
    """Write the file system of a folder to its disk; the seconds it took."""
    start = time.perf_counter()
    subprocess.run(["sync", "-f", str(folder)], check=True)
    return time.perf_counter() - start


def digests(root: Path) -> dict[str, str]:
    """{relative path: SHA-256 of the file, or a link's target} of everything below a folder."""
    result = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            result[name] = "-> " + os.readlink(path)
        elif path.is_file():
            with path.open("rb") as file:
                result[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return result


def compare(found: Path, expected: Mapping[str, str], what: str) -> None:
    """Check a restored tree, which may lie some single-entry folders below `found`.

    Raises:
        Failed: naming the first path that differs, is missing or too many.
    """
    top = next(iter(expected)).split("/")[0] if expected else ""
    while not (found / top).exists():
        inside = list(found.iterdir())
        if len(inside) != 1 or not inside[0].is_dir():
            break
        found = inside[0]
    got = digests(found)
    bad = [name for name in expected if got.get(name) != expected[name]]
    bad += [f"{name} (extra)" for name in got if name not in expected]
    if bad:
        raise Failed(f"{what}: {len(bad)} of {len(expected)} files differ or are missing, such as {bad[0]}")


def space(root: Path) -> tuple[int, int]:
    """(allocated bytes, apparent bytes) of the files below a folder, hard links once."""
    seen: set[tuple[int, int]] = set()
    allocated = apparent = 0
    for base, _, names in os.walk(root):
        for name in names:
            status = os.lstat(os.path.join(base, name))
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                allocated += status.st_blocks * 512
                apparent += status.st_size
    return allocated, apparent


def number(value: float | None, unit: float = 1) -> str:
    """A measured value for a table: two decimals below ten, one above, a dash for none."""
    if value is None:
        return "-"
    return f"{value / unit:.2f}" if value / unit < 10 else f"{value / unit:.1f}"


def show(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; the first column to the left, the others to the right."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    for line in lines:
        first, *rest = (
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        print("  ".join([first, *rest]))


def machine() -> dict[str, object]:
    """What the numbers were measured on."""
    try:
        text = Path("/proc/cpuinfo").read_text()
        found = re.search(r"model name\s*: (.*)", text)
    except OSError:
        found = None
    return {
        "system": platform.platform(),
        "cpu": found[1] if found else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }


def json_line(row: Mapping[str, object]) -> None:
    """Print the line for programs: everything measured, in one JSON object."""
    print(json.dumps(row, separators=(",", ":")))


def quoted(*words: object) -> str:
    """Words as one shell command."""
    return " ".join(shlex.quote(str(word)) for word in words)
