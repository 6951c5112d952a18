"""The demo: train under gpu-train, then list, mount and restore what the trainer kept and what it deleted.

    make demo

Every gpu-train command is printed before it runs. The trainer notes the SHA-256 of each file as it saves it
(demo/train.py --witness); all that comes back, through the mount and from the restore, is compared with that. The
home, the restored checkpoint and the notes are in .demo/, which each run makes anew. Exits with 1 when
anything differs; whatever happens, nothing stays mounted.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent
PLACE = PROJECT.parent / ".demo"
HOME = PLACE / "home"
MOUNT = PLACE / "mnt"
RESTORED = PLACE / "restored"
WITNESS = PLACE / "witness.jsonl"
BIN = Path(sys.executable).parent
PROGRAM = BIN / "gpu-train"

Witness = dict[str, dict[str, str]]  # checkpoint -> file -> SHA-256 when it was saved


class Failed(Exception):
    """Something did not come out as it should; the message says what."""


def title(text: str) -> None:
    """Print a step's heading."""
    print(f"\n== {text}", flush=True)


def call(*words: object, show: bool = True, check: bool = True, capture: bool = False) -> str:
    """Run gpu-train in the demo's folder, with the demo's home; its standard output when captured.

    Raises:
        Failed: for any exit but 0, unless `check` is off: then what it said is returned with a "!" before it.
    """
    if show:
        print(f"$ gpu-train {shlex.join(str(word) for word in words)}", flush=True)
    done = subprocess.run(
        [PROGRAM, *map(str, words)],
        env={**os.environ, "GPU_TRAIN_HOME": str(HOME), "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"},
        cwd=PROJECT,
        stdout=subprocess.PIPE if capture else None,
        stderr=subprocess.PIPE if capture else None,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return done.stdout or ""
    if check:
        raise Failed(f"gpu-train {words[0]} ended with exit code {done.returncode} {done.stderr or ''}".strip())
    return f"!{(done.stderr or '').strip()}"


def start_afresh() -> None:
    """Remove what an earlier demo left, its mount first."""
    if os.path.ismount(MOUNT):
        call("umount", MOUNT, show=False, capture=True)
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir()


def read_witness() -> tuple[Witness, int]:
    """What the trainer noted: the digests of every checkpoint's files, and the bytes of them all."""
    rows = [json.loads(line) for line in WITNESS.read_text().splitlines()]
    return {row["checkpoint"]: row["files"] for row in rows}, sum(row["size_bytes"] for row in rows)


def sha256(path: Path) -> str:
    """A file's digest."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def compare(folder: Path, files: dict[str, str]) -> None:
    """Check that a folder has exactly the files that the trainer saved, with the same bytes.

    Raises:
        Failed: naming the first difference.
    """
    found = {path.relative_to(folder).as_posix(): sha256(path) for path in folder.rglob("*") if path.is_file()}
    for name in sorted(found.keys() | files.keys()):
        if found.get(name) != files.get(name):
            raise Failed(f"{folder / name} is {found.get(name)}, the trainer saved {files.get(name)}")


def short(path: Path) -> str:
    """A path of the demo as it is written from the demo's folder."""
    return os.path.relpath(path, PROJECT)


def megabytes(size_bytes: int) -> str:
    """A size in MB, 10^6 bytes."""
    return f"{size_bytes / 1e6:.1f} MB"


def train() -> None:
    """Run the trainer as a job, with its checkpoints captured."""
    title("Train a small language model; its trainer keeps only the last two checkpoints")
    call("run", "--name", "demo", "--", "python", "train.py", "--witness", short(WITNESS))


def listing(witness: Witness) -> list[str]:
    """List the checkpoints, also the deleted ones; the names of those that are gone from the trainer's folder.

    Raises:
        Failed: when one that the trainer saved is not there, verified.
    """
    title("All checkpoints are there, also those the trainer has deleted")
    call("checkpoints", "list", "demo")
    rows: list[dict[str, Any]] = json.loads(
        call("checkpoints", "list", "demo", "-o", "json", show=False, capture=True)
    )["checkpoints"]
    states = {row["checkpoint_id"]: row["state"] for row in rows}
    for name in witness:
        if states.get(name) != "verified":
            raise Failed(f"{name} is {states.get(name, 'not there')}, it should be verified")
    kept = {path.name for path in HOME.glob("artifacts/*/checkpoints/*")}
    gone = [name for name in witness if name not in kept]
    print(f"{len(witness)} were saved; {len(gone)} of them the trainer has deleted: {', '.join(gone)}")
    return gone


def show_space(plain_bytes: int) -> int:
    """Print how much space they take; the stored bytes."""
    title("They take less space than plain copies would")
    call("stats", "demo")
    stored: int = json.loads(call("stats", "demo", "-o", "json", show=False, capture=True))["stored_bytes"]
    print(
        f"plain copies would take {megabytes(plain_bytes)}, stored they take {megabytes(stored)}: "
        f"{100 * stored / plain_bytes:.0f} %"
    )
    return stored


def look_through_mount(witness: Witness) -> bool:
    """Mount the job and compare every file of every checkpoint; whether this machine could mount."""
    title("Mounted, every checkpoint is a folder")
    said = call("mount", "demo", short(MOUNT), check=False, capture=True)
    if said.startswith("!"):
        print(f"skipped: {said[1:].splitlines()[-1] if said[1:] else 'mounting failed'}")
        return False
    print(f"$ ls {short(MOUNT)} {short(MOUNT)}/checkpoints")
    print("  ".join(sorted(os.listdir(MOUNT))))
    print("  ".join(os.listdir(MOUNT / "checkpoints")))
    print(f"$ cat {short(MOUNT)}/latest/config.json")
    print((MOUNT / "latest" / "config.json").read_text())
    for name, files in witness.items():
        compare(MOUNT / "checkpoints" / name, files)
    count = sum(map(len, witness.values()))
    print(f"read through the mount: {count} files of {len(witness)} checkpoints, all the same bytes")
    call("umount", short(MOUNT), capture=True)
    return True


def restore_one(name: str, files: dict[str, str]) -> None:
    """Restore a checkpoint that the trainer deleted, and compare it."""
    title("A deleted checkpoint comes back bit for bit")
    call("checkpoints", "restore", f"demo@{name}", "--dest", short(RESTORED / name))
    compare(RESTORED / name, files)
    for file, digest in files.items():
        print(f"  {digest[:16]}  {file}: the same as when it was saved")


def tour() -> None:
    """The whole demo, step by step."""
    began = time.monotonic()
    print(f"The demo's home is {HOME}; your own ~/.gpu-train is not touched.")
    start_afresh()
    train()
    witness, plain_bytes = read_witness()
    gone = listing(witness)
    stored_bytes = show_space(plain_bytes)
    mounted = look_through_mount(witness)
    restore_one(gone[0], witness[gone[0]])

    title(f"Done in {time.monotonic() - began:.0f} s. What this has shown")
    print(f"  captured   {len(witness)} checkpoints while they were written, {len(gone)} before they were deleted")
    print(f"  stored     {megabytes(plain_bytes)} in {megabytes(stored_bytes)}")
    print(f"  mounted    {'every file read and compared' if mounted else 'not on this machine'}")
    print(f"  restored   {gone[0]}, every file compared")
    print("\nTo look around in it:")
    print(f"  export GPU_TRAIN_HOME={shlex.quote(str(HOME))}")
    print(f"  {shlex.quote(str(PROGRAM))} checkpoints show demo@best")
    print(f"  {shlex.quote(str(PROGRAM))} logs demo")
    print(f"  {shlex.quote(str(PROGRAM))} code")
    print("For a training of your own, see Usage in README.md.")


def main() -> int:
    """Take the tour; 1 when a step failed. Nothing stays mounted."""
    try:
        tour()
    except Failed as error:
        print(f"\nThe demo failed: {error}", file=sys.stderr)
        return 1
    finally:
        if os.path.ismount(MOUNT):
            call("umount", MOUNT, show=False, check=False, capture=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
