"""What the fake trainers share: files as real libraries write them, and waiting for the other side."""

import io
import json
import os
import random
import struct
import time
import zipfile
from pathlib import Path

OUT = Path(os.environ.get("GPU_TRAIN_CHECKPOINT_DIR", "checkpoints"))
DEADLINE_S = 60


def wait_for(condition) -> None:
    """Until the condition holds; fails loudly when it never does."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the test never let this trainer go on")
        time.sleep(0.005)


def wait_for_file(name: str) -> None:
    """Until the test has made that file in the working directory."""
    wait_for(lambda: Path(name).exists())


def is_pinned(folder: Path) -> bool:
    """Whether every file below a folder (or the file) has a second link."""
    files = [folder] if folder.is_file() else [p for p in folder.rglob("*") if p.is_file()]
    return all(p.stat().st_nlink > 1 for p in files)


def safetensors(seed: int, floats: int = 4096) -> bytes:
    data = random.Random(seed).randbytes(floats * 4)
    header = json.dumps({"w": {"dtype": "F32", "shape": [floats], "data_offsets": [0, len(data)]}}).encode()
    return struct.pack("<Q", len(header)) + header + data


def torch_zip(seed: int, floats: int = 4096) -> bytes:
    """An archive as torch.save lays it out (the pickle is a stand-in; nobody here loads it)."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
        archive.writestr("archive/data/0", random.Random(seed).randbytes(floats * 4))
        archive.writestr("archive/version", b"3\n")
    return buffer.getvalue()
