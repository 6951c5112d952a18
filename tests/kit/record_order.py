"""Records in which order a program writes its files: `record_order.py FOLDER COMMAND...` (needs strace).

Prints one step a line as the orders in tests/kit/orders.toml are written: what is made, opened for writing,
closed, renamed and removed below FOLDER. Run a real trainer under it before adding an order for its framework.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

CALLS = "open,openat,creat,close,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,rmdir,link,linkat"
_CALL = re.compile(r"\d+ +(?P<name>\w+)\((?P<arguments>.*)\) += (?P<result>-?\d+)(?:<(?P<path>[^>]*)>)?")
_AT = re.compile(r'(?:(?:AT_FDCWD|\d+)<(?P<folder>[^>]*)>, )?"(?P<path>[^"]*)"')
_WRITES = ("O_WRONLY", "O_RDWR")


def main() -> int:
    """Run the command and print its steps; its exit code."""
    root, command = Path(sys.argv[1]).resolve(), sys.argv[2:]
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace"
        code = subprocess.call(["strace", "-f", "-y", "-s", "4096", "-e", f"trace={CALLS}", "-o", trace, *command])
        for step in steps(_joined(trace.read_text(errors="surrogateescape").splitlines()), str(root)):
            print(*step)
    return code


def _joined(lines: list[str]) -> Iterator[str]:
    """The calls of a trace, each in the place where it ended; one that another interrupted is two lines there."""
    begun: dict[str, str] = {}
    for line in lines:
        pid = line.split(" ", 1)[0]
        if line.endswith("<unfinished ...>"):
            begun[pid] = line.removesuffix("<unfinished ...>").rstrip()
        elif " resumed>" in line:
            yield begun.pop(pid, "") + line.partition(" resumed>")[2]
        else:
            yield line


def steps(lines: Iterator[str], root: str) -> Iterator[tuple[str, ...]]:
    """The steps below a folder that the calls are."""
    open_files: set[str] = set()
    for line in lines:
        call = _CALL.match(line)
        if call is None or int(call["result"]) < 0:
            continue
        name = call["name"]
        paths = [_below(root, m) for m in _AT.finditer(call["arguments"])]
        if name == "close":
            path = _relative(root, call["arguments"].partition("<")[2].rstrip(">"))
            if path in open_files:
                open_files.discard(path)
                yield "close", path
        elif not paths or (None in paths[:1] and name != "rename"):
            continue
        elif name in ("open", "openat", "creat"):
            if any(word in call["arguments"] for word in _WRITES) and paths[0]:
                open_files.add(paths[0])
                yield "open", paths[0]
        elif name.startswith("rename"):
            if any(paths):
                yield "rename", *(path or "(elsewhere)" for path in paths)
        else:
            yield name.removesuffix("at"), *(path for path in paths if path)


def _below(root: str, match: re.Match[str]) -> str | None:
    return _relative(root, os.path.normpath(os.path.join(match["folder"] or "", match["path"])))


def _relative(root: str, path: str) -> str | None:
    return path[len(root) + 1 :] if path.startswith(root + "/") else None


if __name__ == "__main__":
    sys.exit(main())
