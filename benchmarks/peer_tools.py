"""The stores that peers.py measures: one entry each, edit the commands here.

They run under `bash -eo pipefail -c`, with these words filled in:

  {src} checkpoint folder   {name} its snapshot name   {store} the tool's own folder, measured as "stored"
  {cache} a folder for its caches, not measured        {dest} an empty folder to restore into
  {earlier} the names of the snapshots before, oldest first, joined by colons; '' for the first

needs: commands on PATH; modules: Python modules; dedup: whether `again` and `copied` mean anything;
incremental_only: left out under --whole; self_timed: the command prints "@seconds WALL CPU", counted in place of
what it took with its imports.
"""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

CODEC = f"{shlex.quote(sys.executable)} {shlex.quote(str(Path(__file__).with_name('peer_codec.py').resolve()))}"
RESTIC: dict[str, Any] = dict(
    needs=["restic"], dedup=True, version="restic version",
    env={"RESTIC_PASSWORD": "bench", "RESTIC_REPOSITORY": "{store}", "RESTIC_CACHE_DIR": "{cache}"},
    init="restic init -q --repository-version 2",
    restore="restic restore -q latest --tag {name} --target {dest}",
)  # fmt: skip
BORG: dict[str, Any] = dict(
    needs=["borg"], dedup=True, version="borg --version",
    env={"BORG_BASE_DIR": "{cache}", "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes"},
    init="borg init -e none {store}/repo",
    restore="cd {dest} && borg extract {store}/repo::{name}",
)  # fmt: skip
TOOLS: dict[str, dict[str, Any]] = {
    "gpu-train": dict(
        needs=["gpu-train"], dedup=True, version="gpu-train --version",
        incremental_only=True,  # it takes a folder of checkpoints apart itself
        env={"GPU_TRAIN_HOME": "{store}"},
        ingest="gpu-train checkpoints import {src} --job bench --name {name}",
        restore="gpu-train checkpoints restore bench@{name} --dest {dest}/{name}",
    ),
    "cp": dict(
        needs=["cp"], dedup=False, version="cp --version",
        ingest="cp -r --reflink=never {src} {store}/{name}",
        restore="cp -r --reflink=never {store}/{name}/. {dest}",
    ),
    "restic-auto": dict(
        RESTIC, ingest="cd {src} && restic backup -q --compression auto --tag {name} ."
    ),
    "restic-max": dict(RESTIC, ingest="cd {src} && restic backup -q --compression max --tag {name} ."),
    "borg-lz4": dict(BORG, ingest="cd {src} && borg create -C lz4 {store}/repo::{name} ."),
    "borg-zstd1": dict(BORG, ingest="cd {src} && borg create -C zstd,1 {store}/repo::{name} ."),
    "casync": dict(
        needs=["casync"], dedup=True, version="casync --version",
        ingest="casync make --without=privileged --store={store}/c.castr {store}/{name}.caidx {src}",
        restore="casync extract --without=privileged --store={store}/c.castr {store}/{name}.caidx {dest}",
    ),
    "tar-zstd3": dict(
        needs=["tar", "zstd"], dedup=False, version="zstd --version",
        ingest="tar -C {src} -c . | zstd -q -3 -T0 -o {store}/{name}.tar.zst",
        restore="zstd -q -dc {store}/{name}.tar.zst | tar -C {dest} -x",
    ),
    "tar-zstd3-long": dict(
        needs=["tar", "zstd"], dedup=False, version="zstd --version",
        ingest="tar -C {src} -c . | zstd -q -3 --long=31 -o {store}/{name}.tar.zst",
        restore="zstd -q -dc --long=31 {store}/{name}.tar.zst | tar -C {dest} -x",
    ),
    "zipnn": dict(
        modules=["zipnn"], dedup=False, self_timed=True,
        ingest=CODEC + " zipnn in {src} {store}/{name}",
        restore=CODEC + " zipnn out {store}/{name} {dest}",
    ),
    "z4ai": dict(
        modules=["z4ai"], dedup=False, self_timed=True,
        ingest=CODEC + " z4ai in {src} {store}/{name}",
        restore=CODEC + " z4ai out {store}/{name} {dest}",
    ),
    "z4ai-delta": dict(
        modules=["z4ai"], dedup=False, self_timed=True, incremental_only=True,
        ingest=CODEC + " z4ai-delta in {src} {store}/{name} {earlier}",
        restore=CODEC + " z4ai-delta out {store}/{name} {dest}",
    ),
}  # fmt: skip
OURS, BASELINE = "gpu-train", "cp"  # neither counts as a peer when the best peer is picked


def missing(tool: str) -> list[str]:
    """What a tool needs and this machine lacks."""
    spec = TOOLS[tool]
    commands = [name for name in spec.get("needs", []) if not shutil.which(name)]
    modules = [f"Python module {m}" for m in spec.get("modules", []) if importlib.util.find_spec(m) is None]
    return commands + modules


def version(tool: str) -> str:
    """What a tool says of itself."""
    spec = TOOLS[tool]
    if "version" not in spec:
        return " ".join(f"{name} {metadata.version(name)}" for name in spec["modules"])
    said = subprocess.run(spec["version"], shell=True, capture_output=True, text=True, check=False)
    lines = (said.stdout or said.stderr).strip().splitlines()
    return lines[0].strip("* ") if lines else "unknown"
