"""Writes checkpoints that live for a moment only, in the ways of the frameworks, and keeps a list of what it finished.

    rotating.py KIND VERSIONS LIFETIME_MS [KILOBYTES]

KIND is one of the functions of `WRITERS`. Each finished version is a line in written.jsonl in the working directory:
its name below the checkpoint folder, a digest of its files, and from when to when it was there (monotonic seconds).
It goes on until a file called "stop" is there when VERSIONS is 0.
"""

import hashlib
import itertools
import json
import random
import shutil
import sys
import time
from pathlib import Path

from writing import OUT, safetensors, torch_zip


def folder(step, floats):
    """A folder as the Hugging Face Trainer writes it, in its order, removed like by its rotation."""
    path = OUT / f"checkpoint-{step}"
    path.mkdir()
    fill(path, step, floats)
    return path, lambda: shutil.rmtree(path)


def fill(path, step, floats):
    """Write the files of the Hugging Face Trainer, in its order."""
    (path / "model.safetensors").write_bytes(safetensors(step, floats))
    (path / "config.json").write_text('{"model_type": "fake"}')
    (path / "training_args.bin").write_bytes(torch_zip(0, 16))
    (path / "optimizer.pt").write_bytes(torch_zip(step + 1, floats))
    (path / "scheduler.pt").write_bytes(torch_zip(step + 2, 16))
    (path / "rng_state.pth").write_bytes(torch_zip(step + 3, 16))
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": []}))


def single(step, floats):
    """A file with the step in its name, written where it lies and deleted."""
    path = OUT / f"model-{step:06d}.pt"
    path.write_bytes(torch_zip(step, floats))
    return path, path.unlink


def move(step, floats):
    """A file written elsewhere and moved in, as Lightning does, and deleted."""
    temporary = Path("being-written.ckpt")
    temporary.write_bytes(torch_zip(step, floats))
    path = OUT / f"epoch=0-step={step}.ckpt"
    temporary.rename(path)
    return path, path.unlink


def replace(step, floats):
    """A file written beside the one before it, and moved over that."""
    path = OUT / "last.ckpt"
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(torch_zip(step, floats))
    temporary.replace(path)
    return path, lambda: None


def in_place(step, floats):
    """One file, written over in place, as nanoGPT does."""
    path = OUT / "ckpt.pt"
    data = torch_zip(step, floats)
    with open(path, "wb") as file:
        file.write(data[: len(data) // 2])
        file.flush()
        file.write(data[len(data) // 2 :])
    return path, lambda: None


def again(step, floats):
    """A folder that is written over in place, in the Trainer's order."""
    path = OUT / "checkpoint-0"
    path.mkdir(exist_ok=True)
    fill(path, step, floats)
    return path, lambda: None


WRITERS = (folder, single, move, replace, in_place, again)


def digest_of(path):
    """A digest of a file, or of all files in a folder with their names."""
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(path.parent)}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def live(seconds):
    """Pass the time; short times exactly, which sleeping is not."""
    end = time.perf_counter() + seconds
    if seconds > 0.004:
        time.sleep(seconds - 0.002)
    while time.perf_counter() < end:
        pass


def until_stopped():
    """Steps, as long as nobody has said that it is enough."""
    for step in itertools.count(1):
        if Path("stop").exists():
            return
        yield step


def main(kind, versions, lifetime_s, floats):
    write = next(w for w in WRITERS if w.__name__ == kind)
    with open("written.jsonl", "w") as written:
        for step in range(1, versions + 1) if versions else until_stopped():
            since = time.monotonic()
            path, remove = write(step, floats)
            began = time.perf_counter()
            line = {"name": path.name, "digest": digest_of(path)}
            live(lifetime_s - (time.perf_counter() - began))
            remove()
            print(json.dumps({**line, "from": since, "to": time.monotonic()}), file=written, flush=True)
            time.sleep(random.Random(step).uniform(0, 0.01))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]) / 1000, int([*sys.argv, 64][4]) * 256)
