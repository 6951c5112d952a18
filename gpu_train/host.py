"""Facts about the machine and the Python that a job ran with. Nothing here raises; what cannot be had is absent."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TIMEOUT_S = 20.0
_SHEBANG_BYTES = 4096
_EXEC = "'''exec' "
_NVIDIA_FIELDS = ("name", "memory.total", "driver_version", "uuid")
_ASK_PYTHON = """
import importlib.metadata, json, platform, sys
packages = {}
for d in importlib.metadata.distributions():
    text = d.read_text("METADATA") or d.read_text("PKG-INFO") or ""
    head = dict(line.split(": ", 1) for line in text.partition("\\n\\n")[0].splitlines() if ": " in line)
    if head.get("Name"): packages.setdefault(head["Name"], head.get("Version"))
print(json.dumps({"python": platform.python_version(), "implementation": platform.python_implementation(),
                  "executable": sys.executable,
                  "packages": dict(sorted(packages.items(), key=lambda i: i[0].lower()))}))
"""
"""Reads the heads of the files itself: `d.metadata` and `d.version` each parse all of a file as an e-mail."""


def host_facts() -> dict[str, Any]:
    """Host name, operating system, processor, memory in bytes, GPUs."""
    return {
        "hostname": platform.node(),
        "os": _os_name(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": _cpu_name(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": _memory_bytes(),
        "gpus": _gpus(),
    }


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def _cpu_name() -> str:
    for line in _text("/proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "Hardware"):
            return value.strip()
    return platform.processor() or platform.machine()


def _memory_bytes() -> int | None:
    for line in _text("/proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return None


def _gpus() -> list[dict[str, Any]]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    out = _output([program, f"--query-gpu={','.join(_NVIDIA_FIELDS)}", "--format=csv,noheader,nounits"])
    gpus = []
    for line in out.splitlines():
        fields = [f.strip() for f in line.split(",")]
        if len(fields) == len(_NVIDIA_FIELDS):
            memory = int(fields[1]) << 20 if fields[1].isdecimal() else None
            gpus.append({"name": fields[0], "memory_bytes": memory, "driver": fields[2], "uuid": fields[3]})
    return gpus


class PythonFacts:
    """The version and packages of the Python that a command runs, asked of that interpreter itself.

    Asking starts at once and goes on beside whatever the caller does until `result`.
    """

    def __init__(self, command: Sequence[str], cwd: Path, environ: Mapping[str, str]) -> None:
        interpreter = interpreter_of(command, environ.get("PATH"))
        self._process: subprocess.Popen[bytes] | None = None
        if interpreter is None:
            return
        try:
            # Isolated but for PYTHONPATH: a file of the project must not be imported in place of the standard library.
            self._process = subprocess.Popen(
                [interpreter, "-P", "-c", _ASK_PYTHON] if _knows_p(interpreter) else [interpreter, "-c", _ASK_PYTHON],
                cwd="/", env=dict(environ), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        except OSError:
            return

    def result(self, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
        """python, implementation, executable, packages; empty when the command is no Python or gave no answer."""
        if self._process is None:
            return {}
        try:
            out, _ = self._process.communicate(timeout=timeout_s)
            facts = json.loads(out)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return {}
        except ValueError:
            return {}
        return facts if isinstance(facts, dict) else {}


def interpreter_of(command: Sequence[str], path: str | None = None) -> str | None:
    """The Python that a command is or that its `#!` line names; None for anything else."""
    program = shutil.which(command[0], path=path) if command else None
    if program is None:
        return None
    if Path(program).name.startswith(("python", "pypy")):
        return program
    try:
        with open(program, "rb") as file:
            if file.read(2) != b"#!":
                return None
            first, second = (file.readline(_SHEBANG_BYTES).decode("utf-8", "replace") for _ in range(2))
        # The second line is how pip names a Python whose path is too long for the kernel or has spaces in it.
        words = shlex.split(second)[1:] if second.startswith(_EXEC) else first.split()
    except (OSError, ValueError):
        return None
    if words and Path(words[0]).name == "env":
        words = words[1:]
    if words and Path(words[0]).name.startswith(("python", "pypy")):
        return shutil.which(words[0], path=path)
    return None


def _knows_p(interpreter: str) -> bool:
    """Whether it is a CPython whose name does not say that it is too old for -P (before 3.11)."""
    name = Path(os.path.realpath(interpreter)).name
    return name.startswith("python3.") and name[8:].split("-")[0].isdecimal() and int(name[8:].split("-")[0]) >= 11


def _output(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            timeout=TIMEOUT_S, check=True, start_new_session=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("utf-8", "replace")


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
