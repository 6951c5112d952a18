"""A run replicated to each kind of sink by its settings alone; without its packs a home still restores and mounts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import hub
import numpy as np
import objectservers
import pytest
from pushers import end_pusher

SCRIPT = Path(sys.executable).with_name("gpu-train")
KINDS = ("local", "seaweedfs", "rclone", "gcs", "hub", "hub-bucket")
STEPS = (10, 20, 30)
ALWAYS = [
    ("local", "files"), ("seaweedfs", "packs"), ("rclone", "files"), ("gcs", "packs"), ("hub", "files"),
    ("hub-bucket", "packs"),
]  # fmt: skip
"""What the normal suite tries: each kind, and each layout three times."""


TRAIN = """
import json, os, pathlib, shutil
out = pathlib.Path(os.environ["GPU_TRAIN_CHECKPOINT_DIR"])
for step in (10, 20, 30):
    shutil.copytree(f"made/checkpoint-{step}", out / f"checkpoint-{step}")
"""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], tuple[dict, dict[str, str]]]]:
    """For a kind of sink its table in the settings and the environment that it needs; servers run when asked for."""
    with ExitStack() as stack:
        known: dict[str, str] = {}

        def endpoint(kind: str) -> str:
            if kind not in known:
                folder = tmp_path_factory.mktemp(kind)
                server = {
                    "seaweedfs": objectservers.seaweedfs, "rclone": objectservers.rclone, "gcs": objectservers.fake_gcs,
                }.get(kind)  # fmt: skip
                if server is None:
                    known[kind] = stack.enter_context(hub.running(folder)).url
                else:
                    known[kind] = stack.enter_context(server(folder)).endpoint
            return known[kind]

        def settings(kind: str) -> tuple[dict, dict[str, str]]:
            prefix = f"runs/{uuid4().hex}"
            if kind == "local":
                return {"type": "local", "dest": str(tmp_path_factory.mktemp("nas"))}, {}
            if kind in ("seaweedfs", "rclone"):
                secret = json.dumps({f"aws_{name}": value for name, value in objectservers.credentials().items()})
                table = {"type": "s3", "bucket": objectservers.BUCKET, "prefix": prefix, "endpoint": endpoint(kind)}
                return table | {"secret_ref": "env://THE_SECRET"}, {"THE_SECRET": secret}
            if kind == "gcs":
                table = {"type": "gcs", "bucket": objectservers.BUCKET, "prefix": prefix, "endpoint": endpoint(kind)}
                return table | {"secret_ref": "env://THE_SECRET"}, {"THE_SECRET": '{"token": "any"}'}
            place = {"bucket": "you/bucket"} if kind == "hub-bucket" else {"repo_id": "you/ckpts"}
            table = {"type": "hf", "prefix": prefix, "private": True, "endpoint": endpoint("hub"), **place}
            return table | {"token_ref": "env://THE_SECRET"}, {"THE_SECRET": hub.WRITE}

        yield settings


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps of training of a small model, as plain folders."""
    made = tmp_path_factory.mktemp("project") / "made"
    rng = np.random.default_rng(0)
    values = rng.standard_normal(400_000, dtype=np.float32)
    for step in STEPS:
        folder = made / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        header = json.dumps({"w": {"dtype": "F32", "shape": [400_000], "data_offsets": [0, values.nbytes]}}).encode()
        header += b" " * (-len(header) % 8)
        (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + values.tobytes())
        (folder / "config.json").write_text('{"model_type": "fake"}')
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": []}))
        values = values * (1 + 1e-4 * rng.standard_normal(400_000, dtype=np.float32))
    return made


def toml(table: dict) -> str:
    return "\n".join(f"{key} = {json.dumps(value)}" for key, value in table.items())


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        pytest.param(kind, layout, marks=[] if (kind, layout) in ALWAYS else [pytest.mark.long])
        for kind in KINDS for layout in ("files", "packs")
    ],
)  # fmt: skip
def test_there_and_back(servers, made: Path, tmp_path: Path, request, kind: str, layout: str) -> None:
    table, secrets = servers(kind)
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir()
    (project / "made").symlink_to(made)
    (project / "train.py").write_text(TRAIN)
    (project / "gpu-train.toml").write_text(
        f"[[sinks.checkpoints]]\nname = 'there'\nlayout = '{layout}'\n{toml(table)}\n"
        f"[[sinks.logs]]\nname = 'there'\n{toml(table)}\n"
    )
    env = {**os.environ, **secrets, "GPU_TRAIN_HOME": str(home), "NO_COLOR": "1"}
    env |= {"PATH": f"{SCRIPT.parent}:{os.environ['PATH']}", "HF_HOME": str(tmp_path / "hf")}

    def program(*words: str, code: int = 0) -> str:
        done = subprocess.run([SCRIPT, *words], cwd=project, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert not any(secret in done.stdout + done.stderr for secret in secrets.values())
        return done.stdout

    request.addfinalizer(lambda: end_pusher(home))
    program("run", "--", "python", "train.py")
    program("sinks", "push", "train")  # what the run did not wait for
    listed = json.loads(program("checkpoints", "list", "-o", "json"))["checkpoints"]
    assert [len(c["sinks"]) for c in listed] == [1, 1, 1]
    [status] = json.loads(program("sinks", "status", "-o", "json"))["sinks"]
    assert (status["held"], status["behind"], status["logs_behind"], status["error"]) == (3, 0, 0, None)
    job = listed[0]["job_id"]

    shutil.rmtree(home / "store" / "packs")
    with mounted(program, job, tmp_path / "mnt") as mount:
        for step in STEPS:
            for file in (made / f"checkpoint-{step}").iterdir():
                assert (mount / "checkpoints" / f"checkpoint-{step}" / file.name).read_bytes() == file.read_bytes()
    shutil.rmtree(home / "cache")
    for step in STEPS:
        program("checkpoints", "restore", f"{job}@step:{step}", "--dest", str(tmp_path / "back" / str(step)))
        same(tmp_path / "back" / str(step), made / f"checkpoint-{step}")

    env["GPU_TRAIN_HOME"] = str(tmp_path / "elsewhere")
    program("pull", "there", f"{job}@latest")
    program("verify")
    program("checkpoints", "restore", f"{job}@step:30", "--dest", str(tmp_path / "back" / "elsewhere"))
    same(tmp_path / "back" / "elsewhere", made / "checkpoint-30")
    hidden = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "gpu-train.toml"]
    for secret in secrets.values():
        assert not [path for path in hidden if secret.encode() in path.read_bytes()]


def same(one: Path, other: Path) -> None:
    done = subprocess.run(["diff", "-r", one, other], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


class mounted:
    """A job's mount, as a context."""

    def __init__(self, program: Callable[..., str], job: str, point: Path) -> None:
        self._program, self._job, self._point = program, job, point

    def __enter__(self) -> Path:
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            pytest.skip("needs /dev/fuse")
        self._program("mount", self._job, str(self._point))
        return self._point

    def __exit__(self, *_: object) -> None:
        self._program("umount", str(self._point))
