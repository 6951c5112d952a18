"""The demo: train under gpu-train, then list, mount and restore what the trainer kept and what it deleted.

    make demo

Every gpu-train command is printed before it runs. The trainer notes the SHA-256 of each file as it saves it
(train.py --witness); all that comes back, through the mount and from the restore, is compared with that. Home,
restored checkpoint and notes are in .demo/ (or --place), which each run makes anew. Exits with 1 when anything
differs; whatever happens, nothing stays mounted.
"""

from __future__ import annotations

import argparse
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
BIN = Path(sys.executable).parent
PROGRAM = BIN / "gpu-train"
MARK = ".made-by-the-demo"


class Failed(Exception):
    """Something did not come out as it should; the message says what."""


def title(text: str) -> None:
    """Print a step's heading."""
    print(f"\n== {text}", flush=True)


def short(path: Path) -> str:
    """A path as it is written from the demo's folder."""
    return os.path.relpath(path, PROJECT)


def megabytes(size_bytes: int) -> str:
    """A size in MB, 10^6 bytes."""
    return f"{size_bytes / 1e6:.1f} MB"


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


class Tour:
    """One demo: the folder it works in, and what the trainer noted of each checkpoint it saved."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.home = place / "home"
        self.mount_point = place / "mnt"
        self.witness: dict[str, dict[str, str]] = {}
        self.plain_bytes = 0

    def call(self, *words: str, show: bool = True, capture: bool = False) -> str:
        """Run gpu-train in the demo's folder, with the demo's home; its standard output when captured.

        Raises:
            Failed: for any exit but 0, with the last line it said when captured.
        """
        if show:
            print(f"$ gpu-train {shlex.join(words)}", flush=True)
        path = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"
        done = subprocess.run(
            [PROGRAM, *words],
            env={**os.environ, "GPU_TRAIN_HOME": str(self.home), "PATH": path},
            cwd=PROJECT,
            stdout=subprocess.PIPE if capture else None,
            stderr=subprocess.PIPE if capture else None,
            text=True,
            check=False,
        )
        if done.returncode:
            said = (done.stderr or "").strip().splitlines()
            raise Failed(said[-1] if said else f"gpu-train {words[0]} ended with exit code {done.returncode}")
        return done.stdout or ""

    def query(self, *words: str) -> dict[str, Any]:
        """The JSON that a reading command prints."""
        answer: dict[str, Any] = json.loads(self.call(*words, "-o", "json", show=False, capture=True))
        return answer

    def start_afresh(self) -> None:
        """Make the demo's folder anew.

        Raises:
            Failed: when there is something else in its place.
        """
        self.unmount()
        if self.place.exists() and os.listdir(self.place) and not (self.place / MARK).exists():
            raise Failed(f"{self.place} holds something that is not the demo's; name another folder with --place")
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir(parents=True)
        (self.place / MARK).touch()

    def unmount(self) -> None:
        """Leave nothing mounted."""
        if os.path.ismount(self.mount_point):
            self.call("umount", short(self.mount_point), show=False, capture=True)

    def train(self, options: list[str]) -> None:
        """Run the trainer as a job and read its notes."""
        title("Train a small language model; its trainer keeps only the last two checkpoints")
        notes = self.place / "witness.jsonl"
        self.call("run", "--name", "demo", "--", "python", "train.py", "--witness", short(notes), *options)
        rows = [json.loads(line) for line in notes.read_text().splitlines()]
        self.witness = {row["checkpoint"]: row["files"] for row in rows}
        self.plain_bytes = sum(row["size_bytes"] for row in rows)

    def list_all(self) -> list[str]:
        """List the checkpoints; the names of those that the trainer has deleted.

        Raises:
            Failed: when one that the trainer saved is not there, verified.
        """
        title("All checkpoints are there, also those that the trainer has deleted")
        self.call("checkpoints", "list", "demo")
        rows = self.query("checkpoints", "list", "demo")["checkpoints"]
        states = {row["checkpoint_id"]: row["state"] for row in rows}
        for name in self.witness:
            if states.get(name) != "verified":
                raise Failed(f"{name} is {states.get(name, 'not there')}, it should be verified")
        kept = {path.name for path in self.home.glob("artifacts/*/checkpoints/*")}
        gone = [name for name in self.witness if name not in kept]
        print(f"{len(self.witness)} were saved; {len(gone)} of them the trainer has deleted: {', '.join(gone)}")
        return gone

    def show_space(self) -> int:
        """Print how much space they take; the stored bytes."""
        title("They take less space than plain copies would")
        self.call("stats", "demo")
        stored: int = self.query("stats", "demo")["stored_bytes"]
        share = f"{100 * stored / self.plain_bytes:.0f} %"
        print(f"plain copies would take {megabytes(self.plain_bytes)}; stored they take {megabytes(stored)}, {share}")
        return stored

    def look_through_mount(self) -> bool:
        """Mount the job and compare every file of every checkpoint; whether this machine could mount."""
        title("Mounted, every checkpoint is a folder")
        where = short(self.mount_point)
        try:
            self.call("mount", "demo", where, capture=True)
        except Failed as error:
            print(f"skipped: {str(error).removeprefix('gpu-train: error: ')}")
            return False
        print(f"$ ls {where} {where}/checkpoints")
        print("  ".join(sorted(os.listdir(self.mount_point))))
        print("  ".join(os.listdir(self.mount_point / "checkpoints")))
        print(f"$ cat {where}/latest/config.json")
        print((self.mount_point / "latest" / "config.json").read_text())
        for name, files in self.witness.items():
            compare(self.mount_point / "checkpoints" / name, files)
        count = sum(map(len, self.witness.values()))
        print(f"read through the mount: {count} files of {len(self.witness)} checkpoints, all the same bytes")
        self.call("umount", where, capture=True)
        return True

    def restore(self, name: str) -> None:
        """Restore a checkpoint and compare it."""
        title("A deleted checkpoint comes back bit for bit")
        dest = self.place / "restored" / name
        self.call("checkpoints", "restore", f"demo@{name}", "--dest", short(dest))
        compare(dest, self.witness[name])
        for file, digest in self.witness[name].items():
            print(f"  {digest[:16]}  {file}: the same as when it was saved")

    def take(self, options: list[str]) -> None:
        """The whole tour, step by step, and what it has shown."""
        began = time.monotonic()
        self.start_afresh()
        print(f"The demo's home is {self.home}; your own ~/.gpu-train is not touched.")
        self.train(options)
        gone = self.list_all()
        stored_bytes = self.show_space()
        mounted = self.look_through_mount()
        self.restore(gone[0])

        title(f"Done in {time.monotonic() - began:.0f} s. What this has shown")
        print(f"  captured   {len(self.witness)} checkpoints, {len(gone)} of them before the trainer deleted them")
        print(f"  stored     {megabytes(self.plain_bytes)} in {megabytes(stored_bytes)}")
        print(f"  mounted    {'every file read and compared' if mounted else 'not on this machine'}")
        print(f"  restored   {gone[0]}, every file compared")
        program = shlex.quote(str(PROGRAM))
        print("\nTo look around in it:")
        print(f"  export GPU_TRAIN_HOME={shlex.quote(str(self.home))}")
        for words in ("checkpoints show demo@best", "logs demo", "code"):
            print(f"  {program} {words}")
        print("For a training of your own, see Usage in README.md.")


def main() -> int:
    """Take the tour; 1 when a step failed. Nothing stays mounted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--place", type=Path, default=PROJECT.parent / ".demo", help="folder to work in, made anew")
    parser.add_argument("--steps", default="600", help="steps to train")
    parser.add_argument("--every", default="50", help="steps between two checkpoints")
    arguments = parser.parse_args()
    tour = Tour(arguments.place.absolute())
    try:
        tour.take(["--steps", arguments.steps, "--every", arguments.every])
    except Failed as error:
        print(f"\nThe demo failed: {error}", file=sys.stderr)
        return 1
    finally:
        tour.unmount()
    return 0


if __name__ == "__main__":
    sys.exit(main())
