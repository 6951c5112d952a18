"""Tensors of a checkpoint as arrays, decoded in parallel, without restoring files: `gpu_train.load_tensors`."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_train.ref import Ref
from gpu_train.workspace import Workspace
from gpu_train_cas import BlockRef, Entry, EntryKind, Manifest, Reader, Tensor
from gpu_train_cas.digest import HOLE
from gpu_train_cas.errors import Damaged, NotFound, UsageError

NUMPY = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "C64": "<c8", "C128": "<c16", "I64": "<i8", "I32": "<i4", "I16": "<i2",
    "I8": "i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?", "BF16": "<u2",
    "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1", "F8_E4M3FNUZ": "u1", "F8_E5M2FNUZ": "u1",
}  # fmt: skip
"""numpy has no BF16 and no 8-bit floats: their bits come as unsigned integers."""

TORCH = {
    "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip
_NEAR = 3


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A tensor, and the memory that its bytes go to."""

    tensor: Tensor
    data: NDArray[np.uint8]


def load_tensors(
    ref: Ref | str, names: Collection[str] | None = None, *, device: str | None = None,
    home: Path | str | None = None, threads: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The tensors of a checkpoint, or of the file or folder in it that the ref's path names, by their names.

    Every block is decoded once, in parallel, and proven; nothing of the files is executed. Without `device`
    they are numpy arrays (BF16 and 8-bit floats as unsigned integers of their bits), with `device` torch tensors
    there.

    Args:
        ref: such as "JOB@latest" or "JOB@latest/model.safetensors".
        names: only these; by default all.
        device: where torch is to put them: "cpu", "cuda:0".
        home: the home, by default the environment's.
        threads: how many decode; by default one per core.

    Raises:
        NotFound: when the job, the checkpoint, the path or a name is not there.
        UsageError: when two files have a tensor of the same name (name one of them), or `device` needs torch and it
            is not installed.
        Damaged: when a block is.
    """
    torch = _torch() if device is not None else None
    with Workspace.open(home, create=False) as workspace:
        checkpoint, path = workspace.checkpoints.resolve(ref)
        if checkpoint.record is None:
            raise NotFound(f"{checkpoint.ref} has no bytes")
        reader = workspace.store.reader
        with workspace.store.reading(checkpoint.record, "load_tensors") as record:
            root = reader.lookup(record.root, os.fsencode(path))
            files = [(found, manifest) for found, manifest in _files(reader, root, path) if manifest.tensors]
            plan = _plan(files, None if names is None else set(names), str(ref))
            jobs = [(ref, inside) for (_, manifest), wanted in plan for ref, inside in _by_block(manifest, wanted)]
            with ThreadPoolExecutor(threads or os.cpu_count() or 1, thread_name_prefix="load") as pool:
                for _ in pool.map(lambda job: _fill(reader, *job), jobs):
                    pass
    found = {one.tensor.name: one for _, wanted in plan for one in wanted}
    return {name: _array(one, torch, device) for name, one in found.items()}


def _files(reader: Reader, root: Entry, path: str) -> Iterator[tuple[str, Manifest]]:
    if root.kind is EntryKind.FILE:
        yield path, reader.manifest(root)
        return
    for found, entry in reader.walk(root):
        if entry.kind is EntryKind.FILE and entry.manifest is not None:
            yield os.fsdecode(found), reader.manifest(entry)


def _plan(
    files: Sequence[tuple[str, Manifest]], names: set[str] | None, ref: str
) -> list[tuple[tuple[str, Manifest], list[_Wanted]]]:
    """What is to be read of each file."""
    where: dict[str, str] = {}
    plan = []
    for path, manifest in files:
        wanted = []
        for tensor in manifest.tensors:
            if names is not None and tensor.name not in names:
                continue
            if tensor.name in where:
                raise UsageError(
                    f"tensor {tensor.name!r} of {ref} is in {where[tensor.name]} and in {path}; "
                    f"name the file: REF/{path}"
                )
            where[tensor.name] = path
            wanted.append(_Wanted(tensor, np.empty(tensor.length, np.uint8)))
        plan.append(((path, manifest), wanted))
    missing = sorted((names or set()) - where.keys())
    if missing:
        known = [t.name for _, manifest in files for t in manifest.tensors][:_NEAR]
        raise NotFound(
            f"{ref} has no tensor {missing[0]!r}" + (f"; there are {', '.join(known)}, ..." if known else "")
        )
    return plan


def _by_block(manifest: Manifest, wanted: Sequence[_Wanted]) -> Iterator[tuple[BlockRef, list[_Wanted]]]:
    """Each block that holds something wanted, with what that is: a block of small tensors is read once for all."""
    blocks: dict[int, tuple[BlockRef, list[_Wanted]]] = {}
    for one in wanted:
        for ref in manifest.covering(one.tensor.offset, one.tensor.offset + one.tensor.length):
            blocks.setdefault(ref.start, (ref, []))[1].append(one)
    yield from blocks.values()


def _fill(reader: Reader, ref: BlockRef, wanted: Sequence[_Wanted]) -> None:
    """Decode a block and copy its parts to where they belong."""
    block = bytes(0) if ref.digest == HOLE else reader.block(ref.digest, keep=False)
    if ref.digest != HOLE and len(block) != ref.end - ref.start:
        raise Damaged(f"{ref.digest.hex()[:16]}: a block of another length than its manifest says")
    data = np.frombuffer(block, np.uint8)
    for one in wanted:
        first = max(ref.start, one.tensor.offset)
        last = min(ref.end, one.tensor.offset + one.tensor.length)
        into = one.data[first - one.tensor.offset : last - one.tensor.offset]
        if ref.digest == HOLE:
            into[:] = 0
        else:
            into[:] = data[first - ref.start : last - ref.start]


def _array(one: _Wanted, torch: Any, device: str | None) -> Any:
    """The bytes as an array of the tensor's type and shape; of bytes where the type is not known."""
    dtype = NUMPY.get(one.tensor.dtype)
    array = one.data if dtype is None else one.data.view(dtype).reshape(one.tensor.shape)
    if torch is None:
        return array
    if one.tensor.dtype in TORCH:
        own = getattr(torch, TORCH[one.tensor.dtype])
        return torch.from_numpy(one.data).view(own).reshape(one.tensor.shape).to(device)
    return torch.from_numpy(array).to(device)


def _torch() -> Any:
    try:
        import torch  # noqa: PLC0415  optional, and a second to load
    except ImportError as e:
        raise UsageError("load_tensors(device=...) needs torch; `pip install torch`, or leave device out") from e
    return torch
