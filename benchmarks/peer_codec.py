#!/usr/bin/env python3
"""The peers that code one file at a time, zipnn and z4ai, made to store and restore whole folders.

    peer_codec.py CODEC in SRC OUT [EARLIER]      code every file below SRC into OUT
    peer_codec.py CODEC out SRC OUT               and back

CODEC is zipnn, z4ai, or z4ai-delta: chains of XOR deltas, each file against the latest file of its name and size
in an earlier snapshot. Generous to it: it reads that file from its source folder, and restores go in order, each
on top of what is restored already. EARLIER are the names of the snapshots before, oldest first, joined by colons.
Prints "@seconds WALL CPU" without the imports.
"""

from __future__ import annotations

import json
import pickle
import shutil
import struct
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

SAFETENSORS = {
    "BF16": "bfloat16", "F16": "float16", "F32": "float32", "F8_E4M3": "fp8_e4m3", "F8_E5M2": "fp8_e5m2",
    "I8": "int8",
}  # fmt: skip
TORCH = {"BFloat16Storage": "bfloat16", "HalfStorage": "float16", "FloatStorage": "float32"}
ITEM_BYTES = {"Double": 8, "Long": 8, "Float": 4, "Int": 4, "BFloat16": 2, "Half": 2}
Z4AI = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
SMALLEST = 65536  # bytes; a smaller file is left alone
Pack = Callable[[bytes, str, bytes | None], bytes]
Unpack = Callable[[bytes, bytes | None], bytes]


def safetensors_types(path: Path) -> dict[str, int]:
    """Bytes per dtype, by the file's header."""
    sizes: dict[str, int] = {}
    with path.open("rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    for name, row in header.items():
        if name != "__metadata__":
            start, end = row["data_offsets"]
            sizes[row["dtype"]] = sizes.get(row["dtype"], 0) + end - start
    return sizes


def torch_types(path: Path) -> dict[str, int]:
    """Bytes per storage type of a torch zip file; empty where that cannot be told."""
    sizes: dict[str, int] = {}

    class Types(pickle.Unpickler):  # reads the storages' types and sizes, makes none of the objects
        def find_class(self, module: str, name: str) -> Any:
            def nothing(*_: Any, **__: Any) -> None:
                return None

            return type(name, (dict,), {"__init__": nothing, "__call__": nothing, "__setstate__": nothing})

        def persistent_load(self, pid: Any) -> Any:
            kind = pid[1].__name__
            sizes[kind] = sizes.get(kind, 0) + ITEM_BYTES.get(kind[:-7], 1) * pid[4]
            return {}

    try:
        with zipfile.ZipFile(path) as archive:
            Types(archive.open(next(n for n in archive.namelist() if n.endswith("/data.pkl")))).load()
    except Exception:
        return {}
    return sizes


def dtype_of(path: Path) -> str | None:
    """The type that most bytes of a checkpoint file have, or None where the codecs cannot tell."""
    if path.stat().st_size < SMALLEST:
        return None
    if path.suffix == ".safetensors":
        sizes = safetensors_types(path)
    elif path.suffix == ".distcp":  # a row of torch files; their types are not looked up
        return "float32"
    elif path.suffix in (".pt", ".pth", ".bin", ".ckpt") and zipfile.is_zipfile(path):
        sizes = torch_types(path)
    else:
        return None
    most = max(sizes, key=lambda name: sizes[name], default="")
    return SAFETENSORS.get(most) or TORCH.get(most)


def knows(codec: str, dtype: str | None) -> bool:
    """Whether a codec codes this type at all."""
    return dtype in Z4AI if codec == "zipnn" else dtype is not None


def zipnn_codec() -> tuple[Pack, Unpack]:
    from zipnn import ZipNN

    # ZipNN 0.5.4 reorders its input in place, so it gets a buffer of its own, and it overruns its own buffers
    # where the length is no multiple of the element size, so the last 0-3 bytes go beside it.
    def pack(data: bytes, dtype: str, base: bytes | None) -> bytes:
        n = len(data) & ~3
        body: bytes = ZipNN(bytearray_dtype=dtype, input_format="byte").compress(bytearray(data[:n]))
        return bytes([len(data) - n]) + data[n:] + body

    def unpack(data: bytes, base: bytes | None) -> bytes:
        rest: bytes = ZipNN(input_format="byte").decompress(data[1 + data[0] :])
        return rest + data[1 : 1 + data[0]]

    return pack, unpack


def z4ai_codec() -> tuple[Pack, Unpack]:
    import z4ai

    def pack(data: bytes, dtype: str, base: bytes | None) -> bytes:
        dtype = Z4AI.get(dtype, dtype)
        coded: bytes = (
            z4ai.compress(data, dtype=dtype) if base is None else z4ai.compress_delta(data, base, dtype=dtype)
        )
        return coded

    def unpack(data: bytes, base: bytes | None) -> bytes:
        plain: bytes = z4ai.decompress(data) if base is None else z4ai.decompress_delta(data, base)
        return plain

    return pack, unpack


def base_of(path: Path, source: Path, earlier: list[str]) -> str:
    """The earlier file to take the difference to, relative to the folder of all snapshots, or ''."""
    relative, size = path.relative_to(source), path.stat().st_size
    for name in reversed(earlier):
        old = [source.parent / name / relative]
        if not old[0].is_file():  # such as epoch=0-step=N.ckpt: the only one with that ending
            old = list(old[0].parent.glob("*" + relative.suffix)) if relative.suffix == ".ckpt" else []
        if len(old) == 1 and old[0].stat().st_size == size:
            return old[0].relative_to(source.parent).as_posix()
    return ""


def main(codec: str, way: str, source: Path, out: Path, earlier: list[str]) -> None:
    pack, unpack = zipnn_codec() if codec == "zipnn" else z4ai_codec()
    start, cpu = time.perf_counter(), time.process_time()
    for path in sorted(p for p in source.rglob("*") if p.is_file()):
        to = out / path.relative_to(source)
        to.parent.mkdir(parents=True, exist_ok=True)
        dtype = dtype_of(path) if way == "in" else None
        if dtype and knows(codec, dtype):
            base = base_of(path, source, earlier)
            reference = (source.parent / base).read_bytes() if base else None
            body = pack(path.read_bytes(), dtype, reference)
            name = base.encode()
            Path(f"{to}.packed").write_bytes(struct.pack("<H", len(name)) + name + body)
        elif way == "out" and path.suffix == ".packed":
            data = path.read_bytes()
            at = 2 + struct.unpack_from("<H", data)[0]
            base = data[2:at].decode()
            reference = (out.parent / base).read_bytes() if base else None
            to.with_suffix("").write_bytes(unpack(data[at:], reference))
        else:
            shutil.copyfile(path, to)
    print(f"@seconds {time.perf_counter() - start:.6f} {time.process_time() - cpu:.6f}")


if __name__ == "__main__":
    codec, way, source, out = sys.argv[1:5]
    before = sys.argv[5].split(":") if len(sys.argv) > 5 and sys.argv[5] else []
    main(codec, way, Path(source), Path(out), before)
