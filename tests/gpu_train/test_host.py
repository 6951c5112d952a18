from __future__ import annotations

import os
import sys
from pathlib import Path

from gpu_train.host import PythonFacts, host_facts, interpreter_of


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_facts_about_this_machine() -> None:
    facts = host_facts()
    assert facts["hostname"] == os.uname().nodename
    assert facts["cpus"] >= 1
    assert facts["memory_bytes"] > 1 << 20
    assert isinstance(facts["gpus"], list)


def test_gpus_as_the_driver_tells(tmp_path: Path, monkeypatch) -> None:
    script(tmp_path / "nvidia-smi", "#!/bin/sh\necho 'NVIDIA H200, 143771, 570.1, GPU-1'\necho broken line\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert host_facts()["gpus"] == [
        {"name": "NVIDIA H200", "memory_bytes": 143771 << 20, "driver": "570.1", "uuid": "GPU-1"}
    ]


def test_the_python_of_a_command(tmp_path: Path) -> None:
    assert interpreter_of([sys.executable, "x.py"]) == sys.executable
    (tmp_path / "with space").mkdir()
    for python in (tmp_path / "python3", tmp_path / "with space" / "python3"):
        python.symlink_to(sys.executable)
    tool = script(tmp_path / "tool", f"#!{tmp_path}/python3 -u\n")
    assert interpreter_of([str(tool)]) == f"{tmp_path}/python3"
    pips = f"#!/bin/sh\n'''exec' \"{tmp_path}/with space/python3\" \"$0\" \"$@\"\n' '''\n"
    by_pip = script(tmp_path / "by-pip", pips)
    assert interpreter_of([str(by_pip)]) == f"{tmp_path}/with space/python3"
    assert interpreter_of([str(script(tmp_path / "env", "#!/usr/bin/env python3\n"))], str(Path(sys.executable).parent))
    assert interpreter_of([str(script(tmp_path / "shell", "#!/bin/sh\n"))]) is None
    assert interpreter_of([str(script(tmp_path / "binary", "\x7fELF"))]) is None
    assert interpreter_of(["no-such-program"]) is None
    assert interpreter_of([]) is None


def test_packages_are_asked_of_the_interpreter(tmp_path: Path) -> None:
    facts = PythonFacts([sys.executable, "x.py"], tmp_path, dict(os.environ)).result()
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert "numpy" in facts["packages"]
    assert PythonFacts(["true"], tmp_path, {}).result() == {}


def test_an_interpreter_that_does_not_answer(tmp_path: Path) -> None:
    slow = script(tmp_path / "python-slow", "#!/bin/sh\nexec sleep 600\n")
    assert PythonFacts([str(slow)], tmp_path, dict(os.environ)).result(timeout_s=0.1) == {}
    odd = script(tmp_path / "python-odd", "#!/bin/sh\necho no json\n")
    assert PythonFacts([str(odd)], tmp_path, dict(os.environ)).result() == {}
