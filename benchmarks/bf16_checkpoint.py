#!/usr/bin/env python3
"""Make a checkpoint of BF16 weights: bf16_checkpoint.py PATH MIB SEED writes a safetensors file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

TENSOR_BYTES = 32 << 20


def tensors(count: int, seed: int) -> Iterator[bytes]:
    """BF16 weights, deviation 0.02, as the layers of a trained model are."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        values = rng.standard_normal(TENSOR_BYTES // 2, np.float32) * np.float32(0.02)
        yield (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def write_checkpoint(path: Path, mib: int, seed: int) -> None:
    """A safetensors file of about that size."""
    count = max(1, (mib << 20) // TENSOR_BYTES)
    header = {
        f"layers.{i}.weight": {
            "dtype": "BF16",
            "shape": [TENSOR_BYTES // 2 // 4096, 4096],
            "data_offsets": [i * TENSOR_BYTES, (i + 1) * TENSOR_BYTES],
        }
        for i in range(count)
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True)
    with path.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for data in tensors(count, seed):
            out.write(data)


if __name__ == "__main__":
    write_checkpoint(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
