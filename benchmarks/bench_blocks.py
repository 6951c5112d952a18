"""How small and how fast are blocks of each kind of data, encoded (with verification) and decoded on one core?

    python benchmarks/bench_blocks.py [--seconds 0.5] [--mib 8] [--only NAME] [--file MODEL.safetensors]...

Prints a table and one JSON line. The streams are made here: weights drawn from a normal distribution of
deviation 0.02, Adam moments with scales that differ by row and column, token ids, text, and the extremes. With
--file, the tensors of real containers are measured too, as stored and (F32) cut to BF16.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from gpu_train_cas.chunking import BLOCK_BYTES, blocks
from gpu_train_cas.codecs import decode, encode
from gpu_train_cas.digest import digest_of
from gpu_train_cas.formats import FileSource, layout

Stream = tuple[str, str, bytes]


def bf16(values: np.ndarray) -> bytes:
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()


def streams(size: int) -> Iterator[Stream]:
    rng = np.random.default_rng(0)
    count = size // 2
    rows = count // 1024
    weights = rng.standard_normal(count, np.float32) * np.float32(0.02)
    scales = np.exp(rng.standard_normal((rows, 1)) * 1.5 + rng.standard_normal((1, 1024)) * 0.7)
    moment = (rng.standard_normal((rows, 1024)) * scales * 1e-5).astype(np.float32).ravel()
    second = ((rng.standard_normal((rows, 1024)) * scales * 1e-5) ** 2).astype(np.float32).ravel()
    yield "bf16 weights", "BF16", bf16(weights)
    yield "bf16 exp_avg", "BF16", bf16(moment)
    yield "bf16 exp_avg_sq", "BF16", bf16(second)
    half = count // 2
    yield "fp32 weights", "F32", weights[:half].tobytes()
    yield "fp32 exp_avg", "F32", moment[:half].tobytes()
    yield "fp32 exp_avg_sq", "F32", second[:half].tobytes()
    yield "fp32 of bf16", "F32", (weights[:half].view(np.uint32) & np.uint32(0xFFFF0000)).tobytes()
    sparse = (moment[:half].reshape(-1, 1024) * (rng.random((half // 1024, 1)) < 0.05)).astype(np.float32)
    yield "fp32 sparse rows", "F32", sparse.tobytes()
    yield "fp16 weights", "F16", weights.astype(np.float16).tobytes()
    yield "fp64 weights", "F64", weights[: count // 4].astype(np.float64).tobytes()
    yield "int64 ids", "I64", np.minimum(rng.zipf(1.3, count // 4), 31999).astype("<i8").tobytes()
    yield "text", "", text(size)
    yield "zeros", "F32", bytes(size)
    yield "random", "", rng.bytes(size)
    yield "random as bf16", "BF16", rng.bytes(size)


def text(size: int) -> bytes:
    found = b""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        found += path.read_bytes()
        if len(found) >= size:
            break
    return (found * (size // len(found) + 1))[:size]


def real(path: Path) -> Iterator[Stream]:
    """The tensor blocks of a file by type, and its F32 weights rounded to BF16."""
    by_type: dict[str, list[bytes]] = {}
    fd = os.open(path, os.O_RDONLY)
    source = FileSource(fd)
    for span in blocks(source, layout(source, path.name)):
        if span.data is not None and span.dtype and len(span.data) == BLOCK_BYTES:
            by_type.setdefault(span.dtype, []).append(bytes(span.data))
    os.close(fd)
    for dtype, datas in by_type.items():
        yield f"{path.name} {dtype}", dtype, b"".join(datas)
        if dtype == "F32":
            yield f"{path.name} as BF16", "BF16", bf16(np.frombuffer(b"".join(datas), np.float32))


def rate(work: Callable[[], object], size: int, seconds: float) -> float:
    """MB/s of the best pass, in time of this thread on its core, so that a busy machine counts for little."""
    best, deadline = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < deadline or best == float("inf"):
        started = time.thread_time()
        work()
        best = min(best, time.thread_time() - started)
    return size / max(best, 1e-6) / 1e6


def measure(name: str, dtype: str, data: bytes, seconds: float) -> dict[str, object]:
    cut = [data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES)]
    stored = [(encode(block, dtype), len(block)) for block in cut]
    assert all(decode(e.codec, e.payload, n) == b for (e, n), b in zip(stored, cut, strict=True)), name
    return {
        "stream": name,
        "codec": "/".join(sorted({e.codec.name.lower() for e, _ in stored})),
        "ratio": round(sum(len(e.payload) for e, _ in stored) / len(data), 4),
        "encode_mb_s": round(rate(lambda: [encode(b, dtype) for b in cut], len(data), seconds)),
        "decode_mb_s": round(rate(lambda: [decode(e.codec, e.payload, n) for e, n in stored], len(data), seconds)),
        "hash_mb_s": round(rate(lambda: [digest_of(b) for b in cut], len(data), seconds)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.5, help="how long each figure is measured")
    parser.add_argument("--mib", type=int, default=8, help="size of each stream made here")
    parser.add_argument("--file", type=Path, action="append", default=[], help="a container of real weights")
    parser.add_argument("--only", default="", help="measure streams with this in their names")
    options = parser.parse_args()
    rows = []
    print(f"{'stream':32} {'codec':>9} {'ratio':>7} {'encode':>8} {'decode':>8} {'blake3':>8}   MB/s, one core")
    made = list(streams(options.mib << 20))
    for name, dtype, data in [*made, *(stream for path in options.file for stream in real(path))]:
        if options.only not in name:
            continue
        row = measure(name, dtype, data, options.seconds)
        rows.append(row)
        print(
            f"{row['stream']:32} {row['codec']:>9} {row['ratio']:7.4f} {row['encode_mb_s']:8}"
            f" {row['decode_mb_s']:8} {row['hash_mb_s']:8}"
        )
    print(json.dumps({"bench": "blocks", "machine": platform.processor() or platform.machine(), "rows": rows}))


if __name__ == "__main__":
    main()
