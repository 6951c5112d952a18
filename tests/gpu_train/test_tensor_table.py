"""What the tables tell of real files of every container, stored; and that broken ones cost only themselves."""

from __future__ import annotations

import io
import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_train.shard_index import read_index
from gpu_train.tensor_stats import stats_of
from gpu_train.tensor_table import StoredTensor, TensorTable, sound, table_of
from gpu_train.training_state import is_weight, training_state
from gpu_train.workspace import Workspace
from gpu_train_cas import Layout, Record, Tensor
from gpu_train_cas.errors import Damaged
from gpu_train_cas.formats import BytesSource

torch = pytest.importorskip("torch")
gguf = pytest.importorskip("gguf")
Write = Callable[..., None]
Look = Callable[[Path], TensorTable]


@pytest.fixture
def look(workspace: Workspace) -> Look:
    """Stores a checkpoint's folder and gives its table."""

    def look(folder: Path) -> TensorTable:
        with workspace.store.writer("test") as writer:
            root = writer.add_tree(folder).root
            with writer.commit() as txn:
                txn.put_record(Record("checkpoint", "job", folder.name, 1, root))
        return table_of(workspace.store.reader, root)

    return look


def shapes(table: TensorTable) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {tensor.name: (tensor.dtype, tensor.shape) for tensor in table.tensors}


def test_every_container(look: Look, tmp_path: Path, safetensors: Write) -> None:
    folder = tmp_path / "checkpoint-1"
    arrays = {"w": np.ones((300, 100), np.float32), "b": np.ones(3, np.uint16)}
    safetensors(folder / "model.safetensors", arrays)
    torch.save({"state_dict": {"layer.w": torch.ones(4, 5, dtype=torch.bfloat16)}}, folder / "epoch.ckpt")
    np.savez(folder / "more.npz", x=np.arange(6).reshape(2, 3), flag=np.array([True]))
    np.savez_compressed(folder / "packed.npz", y=np.zeros(9))
    np.save(folder / "one.npy", np.zeros((2, 2), np.complex64))
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    quantised = gguf.quants.quantize(np.ones((4, 64), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("blk.0.w", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (folder / "training_args.bin").write_bytes(pickle.dumps({"old": 1}))
    table = look(folder)
    assert shapes(table) == {
        "w": ("F32", (300, 100)), "b": ("BF16", (3,)), "state_dict.layer.w": ("BF16", (4, 5)), "x": ("I64", (2, 3)),
        "flag": ("BOOL", (1,)), "array": ("C64", (2, 2)), "blk.0.w": ("Q8_0", (4, 64)),
    }  # fmt: skip
    sizes = {tensor.name: tensor.size_bytes for tensor in table.tensors}
    assert (sizes["w"], sizes["blk.0.w"]) == (120_000, 4 * 64 // 32 * 34)
    assert {(t.path, t.damaged) for t in table.troubles} == {("packed.npz", False), ("training_args.bin", False)}
    figures = {tensor.name: stats for tensor, stats in stats_of(table, table.tensors)}
    assert figures["blk.0.w"] is None
    assert figures["w"].norm == pytest.approx(math.sqrt(30_000))


def test_a_sharded_set_is_compared_with_its_index(look: Look, tmp_path: Path, safetensors: Write) -> None:
    folder = tmp_path / "checkpoint-1"
    weight_map = {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-2.safetensors", "d": "gone.st"}
    safetensors(folder / "model-1.safetensors", {"a": np.ones(5, np.float32)})
    safetensors(folder / "model-2.safetensors", {"b": np.ones(5, np.float32)})
    index = {"metadata": {"total_size": 40}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    table = look(folder)
    assert set(shapes(table)) == {"a", "b"}
    assert {trouble.path for trouble in table.troubles} == {"model-2.safetensors", "gone.st"}
    assert "'c'" in next(t.reason for t in table.troubles if t.path == "model-2.safetensors")
    with pytest.raises(Damaged):
        table.insist()
    read = read_index(BytesSource(json.dumps(index).encode()))
    assert (read.total_bytes, dict(read.files)) == (40, weight_map)


def parts_of_ranks(folder: Path) -> None:
    """Two files as two ranks write them: `rows` cut along its first dimension, `columns` along its second."""
    from torch.distributed.checkpoint import metadata as dcp
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    whole = {"model.rows": torch.arange(24.0).reshape(6, 4), "model.columns": torch.arange(8.0).reshape(2, 4)}
    cuts = {
        "model.rows": [((0, 0), (4, 4)), ((4, 0), (2, 4))], "model.columns": [((0, 0), (2, 3)), ((0, 3), (2, 1))]
    }  # fmt: skip
    folder.mkdir(parents=True)
    storage, about = {}, {}
    for name, tensor in whole.items():
        chunks = [dcp.ChunkStorageMetadata(torch.Size(at), torch.Size(size)) for at, size in cuts[name]]
        properties = dcp.TensorProperties.create_from_tensor(tensor)
        about[name] = dcp.TensorStorageMetadata(properties, tensor.size(), chunks)
    for rank in (0, 1):
        stream = io.BytesIO()
        for name, tensor in whole.items():
            at, size = cuts[name][rank]
            before = stream.tell()
            part = tensor[at[0] : at[0] + size[0], at[1] : at[1] + size[1]].contiguous().clone()
            torch.save(part, stream)
            info = _StorageInfo(f"__{rank}_0.distcp", before, stream.tell() - before)
            storage[dcp.MetadataIndex(name, torch.Size(at), rank)] = info
        (folder / f"__{rank}_0.distcp").write_bytes(stream.getvalue())
    (folder / ".metadata").write_bytes(pickle.dumps(dcp.Metadata(about, None, storage)))


@pytest.mark.filterwarnings("ignore")
def test_parts_of_a_distributed_checkpoint_are_one_tensor_again(look: Look, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-1"
    parts_of_ranks(folder)
    from torch.distributed.checkpoint import load

    state = {"model.rows": torch.zeros(6, 4), "model.columns": torch.zeros(2, 4)}
    load(state, checkpoint_id=folder, no_dist=True)  # what was written is what torch reads
    assert state["model.rows"].flatten().tolist() == list(range(24))
    table = look(folder)
    assert table.troubles == []
    rows = next(tensor for tensor in table.tensors if tensor.name == "model.rows")
    assert (rows.shape, len(rows.parts)) == ((6, 4), 2)
    assert np.frombuffer(table.pread(rows, 96, 0), "<f4").tolist() == list(range(24))
    assert np.frombuffer(table.pread(rows, 24, 52), "<f4").tolist() == list(range(13, 19))
    columns = {name: shape for name, (_, shape) in shapes(table).items() if "columns" in name}
    assert columns == {"model.columns[0:2,0:3]": (2, 3), "model.columns[0:2,3:4]": (2, 1)}


@pytest.mark.parametrize(
    ("write", "use"),
    [
        ("model.safetensors optimizer.pt scheduler.pt rng_state.pth", "resume: the states"),
        ("model.safetensors optimizer.pt", "resume; it has no state of a scheduler and of random"),
        ("model.safetensors", "serve, not resume"),
        ("optimizer.pt", "neither"),
        ("lightning.ckpt", "resume; it has no state of random number generators"),
        ("model_optim_rng.pt", "resume: the states"),
    ],
)
def test_what_a_checkpoint_is_good_for(look: Look, tmp_path: Path, safetensors: Write, write: str, use: str) -> None:
    folder = tmp_path / "checkpoint-1"
    safetensors(folder / "model.safetensors", {"w": np.ones(9, np.float32)})
    weights, moments = {"w": torch.ones(3)}, {"state": {0: {"exp_avg": torch.ones(3)}}}
    torch.save(moments, folder / "optimizer.pt")
    torch.save({"last_epoch": 1}, folder / "scheduler.pt")
    torch.save(torch.get_rng_state(), folder / "rng_state.pth")
    lightning = {"state_dict": weights, "optimizer_states": [moments], "lr_schedulers": [{"last_epoch": 1}]}
    torch.save(lightning, folder / "lightning.ckpt")
    megatron = {"model": weights, "optimizer": moments, "opt_param_scheduler": {"n": 1}, "rng_state": [{"seed": 1}]}
    torch.save(megatron, folder / "model_optim_rng.pt")
    for path in folder.iterdir():
        if path.name not in write.split():
            path.unlink()
    table = look(folder)
    assert str(training_state(table)).startswith(use)
    weighed = sum(tensor.elements for tensor in table.tensors if is_weight(tensor))
    assert weighed == (0 if use == "neither" else 9 if "model.safetensors" in write else 3)


def test_broken_files_are_told_of_and_the_rest_is_shown(look: Look, tmp_path: Path, safetensors: Write) -> None:
    folder = tmp_path / "checkpoint-1"
    safetensors(folder / "good.safetensors", {"w": np.ones(9, np.float32)})
    header = b'{"w":{"dtype":"F32","shape":[9223372036854775807,9223372036854775807],"data_offsets":[0,4]}}'
    (folder / "bad.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    (folder / "long.safetensors").write_bytes((1 << 62).to_bytes(8, "little") + b"{" + bytes(100))
    (folder / "deep.safetensors.index.json").write_bytes(b'{"weight_map": {"a": ' + b"[" * 100_000)
    (folder / "cut.gguf").write_bytes(b"GGUF\3\0\0\0" + b"\xff" * 16)
    stream = io.BytesIO()
    torch.save({"w": torch.ones(1000)}, stream)
    broken = stream.getvalue().replace(b"torch._utils", b"torch._\xffq\n()", 1)  # within data.pkl
    (folder / "evil.pt").write_bytes(broken)
    (folder / "cut.npz").write_bytes(b"PK\3\4" + bytes(40))
    table = look(folder)
    assert "w" in shapes(table)
    damaged = {trouble.path for trouble in table.troubles if trouble.damaged}
    assert damaged >= {"bad.safetensors", "long.safetensors", "deep.safetensors.index.json", "evil.pt", "cut.npz"}
    assert any(trouble.path == "cut.gguf" for trouble in table.troubles)


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=60), st.integers(0, 200), st.integers(0, 200))
def test_any_index_is_read_or_refused(noise: bytes, at: int, gone: int) -> None:
    good = json.dumps(
        {"metadata": {"total_size": 4}, "weight_map": {f"w{i}": "a.safetensors" for i in range(5)}}
    ).encode()
    data = good[:at] + noise + good[at + gone :]
    try:
        index = read_index(BytesSource(data))
    except Damaged:
        return
    assert all(isinstance(word, str) for pair in index.files.items() for word in pair)


@pytest.mark.parametrize(
    "wrong",
    [
        Tensor("w", "F32", (2,), 0, 2**70), Tensor("w", "F32", (2,), -8, 8), Tensor("w", "F32", (2,), 0.5, 8),
        Tensor("w", "F32", ("2",), 0, 8), Tensor(7, "F32", (2,), 0, 8), Tensor("w", None, (2,), 0, 8),
        Tensor("w", "F32", (2,), None, 8),
    ],
    ids=str,
)  # fmt: skip
def test_a_table_that_cannot_be_true_is_damage(wrong: Tensor) -> None:
    """Manifests in packs from elsewhere may say anything."""
    with pytest.raises(Damaged, match="table of its tensors cannot be"):
        sound(Layout("torch", (Tensor("a", "U8", (4,), 0, 4), wrong)), 100)
    unlike = Tensor("w", "F32", (2**60, 2**60), 8, 8)
    assert sound(Layout("torch", (unlike,)), 100).tensors == (unlike._replace(dtype=""),)


def test_bytes_of_a_tensor_in_parts() -> None:
    """Parts of no bytes and reads across several parts."""

    class Memory:
        def pread(self, length: int, offset: int) -> bytes:
            return bytes(range(256))[offset : offset + length]

    from gpu_train.tensor_table import Part

    table = TensorTable(files={"f": Memory()})  # type: ignore[dict-item]
    tensor = StoredTensor("w", "U8", (9,), (Part("f", 0, 4), Part("f", 7, 0), Part("f", 10, 5)))
    for start in range(10):
        for length in range(10):
            expected = [0, 1, 2, 3, 10, 11, 12, 13, 14][start : start + length]
            assert list(table.pread(tensor, length, start)) == expected
