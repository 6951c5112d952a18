#!/usr/bin/env python3
"""How small and how fast do codecs make each stream of real checkpoints, on one core, in 1 MiB blocks in memory?

    python benchmarks/corpus.py hf-bf16 hf-fp32 --out corpus
    python benchmarks/bench_codecs.py corpus/hf-bf16 corpus/hf-fp32 [--mib 16] [--repeat 5] [--only NAME]

Streams are the weights, exp_avg and exp_avg_sq of two neighbouring checkpoints: on their own, and against the
earlier one. Ours takes part as the kernel alone, in each variant that runs here, and as `encode` and `decode`
with all that they do (samples, the race, verification). Peers are what is installed of zstandard, blosc2, zipnn,
z4ai and openzl, and the published scheme for deltas (XOR, byte planes, zstd -1). Speeds are GB of original bytes per
second of processor time, the median of repeats in which all contestants take turns, so that the ratios between
them hold on a busy machine too. Every payload is decoded and compared. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import peer_codec
import zstandard

from gpu_train_cas.codecs import Encoded, Grid, Reference, Role, decode, encode, kernel, planes
from gpu_train_cas.codecs.payload import ELEMENTS
from gpu_train_cas.formats import FileSource, Tensor, layout

BLOCK_BYTES = 1 << 20
SMALLEST_BYTES = 64 << 10  # smaller tensors are not cut on their own
DTYPES = {"BF16": ("bfloat16", 2), "F32": ("float32", 4)}


@dataclass(frozen=True, slots=True)
class Block:
    """One block and what it may be coded against."""

    data: bytes
    base: bytes
    sibling: Reference | None
    grid: Grid | None

    @property
    def sizes(self) -> bytes | None:
        """A sibling that gives contexts, for the kernel alone."""
        return bytes(self.sibling.data) if self.sibling is not None and self.sibling.role is Role.SIZES else None


@dataclass(frozen=True, slots=True)
class Contestant:
    """A way to code a block, and back; `delta`: against the base."""

    name: str
    delta: bool
    pack: Callable[[Block, str], object]
    unpack: Callable[[object, Block, str], object]
    size: Callable[[object], int] = len  # type: ignore[assignment]


# ---- streams


Tensors = dict[str, dict[str, tuple[Tensor, bytes]]]


def tensors(folder: Path) -> Tensors:
    """The tensors of a checkpoint and their bytes, by class and by a name that moments of one parameter share."""
    found: Tensors = {"weights": {}, "exp_avg": {}, "exp_avg_sq": {}}
    for path in (folder / "model.safetensors", folder / "optimizer.pt"):
        fd = os.open(path, os.O_RDONLY)
        source = FileSource(fd)
        shape = layout(source, path.name)
        assert shape is not None, path
        for tensor in shape.tensors:
            name, _, kind = tensor.name.rpartition(".")
            if path.suffix == ".safetensors":
                name, kind = tensor.name, "weights"
            if kind in found and tensor.length >= SMALLEST_BYTES:
                found[kind][name] = (tensor, source.pread(tensor.length, tensor.offset))
        os.close(fd)
    return found


def streams(corpus: Path, mib: int) -> Iterator[tuple[str, str, list[Block]]]:
    """Name, type and blocks of each stream of a checkpoint, with the one before as base, cut as the store cuts."""
    folders = sorted((p for p in corpus.glob("checkpoint-*")), key=lambda p: int(p.name.rpartition("-")[2]))
    earlier, before, after = (
        tensors(folder) for folder in (folders[:3] if len(folders) > 2 else folders[:1] + folders[:2])
    )
    for kind, of in after.items():
        blocks = []
        for name, (tensor, data) in of.items():
            row = tensor.shape[-1] if len(tensor.shape) > 1 else 0
            for at in range(0, len(data), BLOCK_BYTES):
                cut = slice(at, at + BLOCK_BYTES)
                grid = Grid(row, at // DTYPES[tensor.dtype][1] % row, kind != "weights") if row else None
                helper = sibling_of(kind, name, tensor.dtype, earlier, after)
                sibling = Reference(b"d" * 32, helper[0][cut], helper[1]) if helper is not None else None
                blocks.append(Block(data[cut], before[kind][name][1][cut], sibling, grid))
        chosen = blocks[:: max(1, len(blocks) // mib)][:mib]
        yield f"{corpus.name} {kind}", next(iter(of.values()))[0].dtype, chosen


def sibling_of(kind: str, name: str, dtype: str, earlier: Tensors, now: Tensors) -> tuple[bytes, Role] | None:
    """What helps beside the base, as the store chooses it."""
    if dtype == "F32":
        helpers = {"weights": (earlier["weights"], Role.EARLIER), "exp_avg_sq": (now["exp_avg"], Role.FIRST_MOMENT)}
    else:
        helpers = {"exp_avg": (now["exp_avg_sq"], Role.SIZES)}
    found, role = helpers.get(kind, ({}, Role.SIZES))
    return (found[name][1], role) if name in found else None


# ---- ours


def ours() -> Iterator[Contestant]:
    digest = b"d" * 32

    def race(delta: bool) -> Contestant:
        return Contestant(
            "encode/decode",
            delta,
            lambda block, dtype: encode(
                block.data,
                dtype,
                base=Reference(digest, block.base) if delta else None,
                sibling=block.sibling,
                grid=block.grid,
            ),
            lambda stored, block, dtype: decode(
                stored.codec,
                stored.payload,
                len(block.data),
                base=block.base,
                sibling=block.sibling.data if block.sibling is not None else None,
            ),
            lambda stored: len(stored.payload) if isinstance(stored, Encoded) else 0,
        )

    def raw_kernel(name: str, delta: bool, contexts: str) -> Contestant:
        source = {"": 0, "sibling": 2, "grid": 4}[contexts] + (1 if delta else 0)

        def pack(block: Block, dtype: str) -> object:
            other = block.sizes if contexts == "sibling" else None
            by_grid = contexts == "grid" and block.grid is not None and block.grid.row * 16 <= len(block.data)
            made = kernel._kernel.encode(
                block.data, ELEMENTS[dtype], delta, source if by_grid or contexts != "grid" else 0,
                block.base if delta else None, other, digest if other else None, None,
                *(block.grid[:2] if by_grid and block.grid is not None else (0, 0)), len(block.data) * 5 // 4, name,
            )  # fmt: skip
            return None if made is None else memoryview(made)

        def unpack(payload: object, block: Block, dtype: str) -> object:
            other = block.sizes if contexts == "sibling" else None
            made = kernel._kernel.decode(payload, len(block.data), block.base if delta else None, other, name)
            assert not isinstance(made, int), made
            return memoryview(made)

        return Contestant(f"kernel {name} {contexts}".strip(), delta, pack, unpack)

    for delta in (False, True):
        for name in kernel.variants():
            if name != kernel.NUMPY:
                yield from (raw_kernel(name, delta, c) for c in ("", "sibling", *(() if delta else ("grid",))))
        yield race(delta)
    yield Contestant(
        "planes, numpy",
        False,
        lambda block, dtype: planes.encode(block.data, dtype, 2 * len(block.data)),
        lambda payload, block, dtype: planes.decode(payload, len(block.data)),
    )


# ---- peers


def peers() -> Iterator[Contestant]:
    for level in (1, 3):
        coder, decoder = zstandard.ZstdCompressor(level=level), zstandard.ZstdDecompressor()
        yield Contestant(
            f"zstd -{level}", False, lambda b, _, c=coder: c.compress(b.data), lambda p, *_, d=decoder: d.decompress(p)
        )
    yield xor_planes()
    for module, make in (("blosc2", blosc2), ("zipnn", zipnn), ("z4ai", z4ai), ("openzl", openzl)):
        if importlib.util.find_spec(module):
            yield from make()


def xor_planes() -> Contestant:
    coder, decoder = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()

    def pack(block: Block, dtype: str) -> object:
        width = DTYPES[dtype][1]
        mixed = np.frombuffer(block.data, np.uint8) ^ np.frombuffer(block.base, np.uint8)
        return [coder.compress(np.ascontiguousarray(mixed[i::width])) for i in range(width)]

    def unpack(parts: object, block: Block, dtype: str) -> object:
        width = DTYPES[dtype][1]
        mixed = np.empty(len(block.data), np.uint8)
        for i, part in enumerate(parts):  # type: ignore[arg-type, var-annotated]
            mixed[i::width] = np.frombuffer(decoder.decompress(part), np.uint8)
        return (mixed ^ np.frombuffer(block.base, np.uint8)).data

    return Contestant("XOR, planes, zstd -1", True, pack, unpack, lambda parts: sum(map(len, parts)))  # type: ignore[call-overload]


def blosc2() -> Iterator[Contestant]:
    import blosc2 as library

    library.set_nthreads(1)
    for name, filters in (("shuffle", library.Filter.SHUFFLE), ("bitshuffle", library.Filter.BITSHUFFLE)):
        yield Contestant(
            f"blosc2 zstd {name}",
            False,
            lambda b, dtype, f=filters: library.compress(
                b.data, typesize=DTYPES[dtype][1], clevel=1, filter=f, codec=library.Codec.ZSTD
            ),
            lambda p, *_: library.decompress(p),
        )


def of_files(name: str, codec: tuple[peer_codec.Pack, peer_codec.Unpack], *, delta: bool) -> Contestant:
    pack, unpack = codec
    return Contestant(
        name,
        delta,
        lambda b, dtype: pack(b.data, DTYPES[dtype][0], b.base if delta else None),
        lambda p, b, _: unpack(p, b.base if delta else None),  # type: ignore[arg-type]
    )


def zipnn() -> Iterator[Contestant]:
    yield of_files("zipnn", peer_codec.zipnn_codec(), delta=False)


def z4ai() -> Iterator[Contestant]:
    for delta in (False, True):
        yield of_files("z4ai", peer_codec.z4ai_codec(), delta=delta)


def openzl() -> Iterator[Contestant]:
    from openzl import ext

    def graph(dtype: str) -> object:
        compressor = ext.Compressor()
        split = {"BF16": ext.nodes.BFloat16Deconstruct, "F32": ext.nodes.Float32Deconstruct}[dtype]()
        compressor.set_parameter(ext.CParam.FormatVersion, ext.MAX_FORMAT_VERSION)
        compressor.select_starting_graph(split(compressor, ext.graphs.Store(), ext.graphs.Entropy()))
        return compressor

    made = {dtype: graph(dtype) for dtype in DTYPES}

    def pack(block: Block, dtype: str) -> object:
        context = ext.CCtx()
        context.ref_compressor(made[dtype])
        words = np.frombuffer(block.data, f"<u{DTYPES[dtype][1]}")
        return context.compress([ext.Input(ext.Type.Numeric, words)])

    yield Contestant(
        "openzl",
        False,
        pack,
        lambda p, *_: bytes(ext.DCtx().decompress(p)[0].content.as_bytes()),  # type: ignore[arg-type]
    )


# ---- measuring


def measure(contestants: list[Contestant], blocks: list[Block], dtype: str, repeat: int) -> list[dict[str, object]]:
    packed: list[list[float]] = [[] for _ in contestants]
    unpacked: list[list[float]] = [[] for _ in contestants]
    sizes = [0] * len(contestants)
    for turn in range(repeat + 1):
        for index, who in enumerate(contestants):
            start = time.process_time()
            payloads = [who.pack(block, dtype) for block in blocks]
            middle = time.process_time()
            if any(payload is None for payload in payloads):  # not shorter than the block: there is nothing to time
                continue
            plain = [who.unpack(p, block, dtype) for p, block in zip(payloads, blocks, strict=True)]
            end = time.process_time()
            if turn == 0:  # warms up, and proves
                assert all(memoryview(p) == b.data for p, b in zip(plain, blocks, strict=True)), who.name  # type: ignore[arg-type]
                sizes[index] = sum(map(who.size, payloads))
                continue
            packed[index].append(middle - start)
            unpacked[index].append(end - middle)
    total = sum(len(block.data) for block in blocks)
    return [
        {
            "codec": who.name,
            "delta": who.delta,
            "ratio": round(sizes[index] / total, 4),
            "encode_gb_s": round(total / median(packed[index]) / 1e9, 3),
            "decode_gb_s": round(total / median(unpacked[index]) / 1e9, 3),
        }
        for index, who in enumerate(contestants)
        if packed[index]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("corpus", type=Path, nargs="+", help="a folder of HF Trainer checkpoints (hf-bf16, hf-fp32)")
    parser.add_argument("--mib", type=int, default=16, help="blocks of up to 1 MiB per stream, evenly spread")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", default="", help="measure streams with this in their names")
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    everyone = [*ours(), *peers()]
    print(f"kernel: {kernel.variant()}")
    for name, dtype, blocks in (stream for corpus in options.corpus for stream in streams(corpus, options.mib)):
        if options.only not in name or not blocks:
            continue
        able = [c for c in everyone if "sibling" not in c.name or blocks[0].sizes]
        for delta in (False, True):
            found = measure([c for c in able if c.delta == delta], blocks, dtype, options.repeat)
            print(f"\n{name}{' against the checkpoint before' if delta else ''}, {len(blocks)} blocks")
            print(f"  {'':24} {'ratio':>7} {'encode':>8} {'decode':>8}   GB/s")
            for row in found:
                print(f"  {row['codec']:24} {row['ratio']:7.4f} {row['encode_gb_s']:8.3f} {row['decode_gb_s']:8.3f}")
                rows.append({"stream": name, **row})
    print()
    print(json.dumps({"bench": "codecs", "machine": platform.processor() or platform.machine(), "rows": rows}))


if __name__ == "__main__":
    main()
