import collections
import io
import os
import pickle
import zipfile

import pytest

from gpu_train_cas.formats import BytesSource, FormatError, UnknownFormat, layout, parse, self_proof

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns of its own parts: quantised, sparse, distributed


def saved(state, **options) -> bytes:
    out = io.BytesIO()
    torch.save(state, out, **options)
    return out.getvalue()


def raw(tensor) -> bytes:
    """The bytes of the whole storage."""
    return bytes(tensor.untyped_storage().tolist())


def test_a_model_and_its_optimizer(located):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.ones(2, 8, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 7, "args": {"lr": 0.1}}
    expected = {f"model.{k}": v for k, v in state["model"].items()}
    for i, moments in state["optimizer"]["state"].items():
        expected |= {f"optimizer.state.{i}.{k}": v for k, v in moments.items()}
    data = saved(state)
    found = located(data)
    assert found.keys() == expected.keys()
    assert len(found) == 4 + 4 * 3
    for name, tensor in expected.items():
        assert found[name] == ("F32" if name.endswith("step") else "BF16", tuple(tensor.shape), raw(tensor))
    assert parse(BytesSource(data)).format == "torch"
    assert self_proof(BytesSource(data)) is True


KINDS = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "bool": "BOOL",
    "complex64": "C64", "complex128": "C128", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_type(located, protocol):
    state = {name: torch.arange(1, 7).reshape(2, 3).to(getattr(torch, name)) for name in KINDS}
    found = located(saved(state, pickle_protocol=protocol))
    for name, kind in KINDS.items():
        assert found[name] == (kind, (2, 3), raw(state[name]))


def test_shapes_views_and_shared_storages(located):
    base, column = torch.arange(24.0), torch.arange(12.0).reshape(3, 4)
    state = {
        "part": base[4:8], "whole": base.reshape(4, 6), "tied": base.reshape(4, 6), "transposed": column.t(),
        "empty": torch.zeros(0, 3), "scalar": torch.tensor(5, dtype=torch.int16), "slice": torch.arange(10)[2:5],
        "expanded": torch.ones(1).expand(5), "one": torch.ones(1, 1, 2),
    }  # fmt: skip
    found = located(saved(state))
    shapes = {name: shape for name, (_, shape, _) in found.items()}
    assert shapes == {
        "whole": (4, 6), "transposed": (12,), "empty": (0, 3), "scalar": (), "slice": (10,), "expanded": (1,),
        "one": (1, 1, 2),
    }  # fmt: skip
    assert all(data == raw(state[name]) for name, (_, _, data) in found.items())


class Stateful:
    def __init__(self):
        self.ema, self.items = torch.ones(3), [torch.zeros(2), (torch.zeros(1), {"deep": torch.ones(4)})]


class Slotted:
    __slots__ = ("w",)

    def __init__(self):
        self.w = torch.ones(2)


def test_names_in_objects_of_all_sorts(located):
    module = torch.nn.Sequential(collections.OrderedDict(block=torch.nn.BatchNorm1d(2)))
    state = collections.OrderedDict(
        trainer=Stateful(), slotted=Slotted(), module=module, many=collections.deque([torch.ones(1)]),
        parameter=torch.nn.Parameter(torch.ones(2)), by=collections.defaultdict(list, {3: [torch.ones(6)]}),
        sets={("a", 1): torch.ones(5)},
    )  # fmt: skip
    assert located(saved(state)).keys() == {
        "trainer.ema", "trainer.items.0", "trainer.items.1.0", "trainer.items.1.1.deep", "slotted.w",
        "module.block.weight", "module.block.bias", "module.block.running_mean", "module.block.running_var",
        "module.block.num_batches_tracked", "many.0", "parameter", "by.3.0", "sets.?",
    }  # fmt: skip


def test_sparse_quantised_and_bare_storages(located):
    coo = torch.eye(3).to_sparse().coalesce()
    csr = torch.eye(3).to_sparse_csr()
    quantised = torch.quantize_per_tensor(torch.ones(3), 0.1, 1, torch.qint8)
    found = located(saved({"coo": coo, "csr": csr, "q": quantised, "s": torch.ones(4).untyped_storage()}))
    assert found["coo.indices"] == ("I64", (2, 3), raw(coo.indices()))
    assert found["coo.values"] == ("F32", (3,), raw(coo.values()))
    assert found["csr.crow_indices"] == ("I64", (4,), raw(csr.crow_indices()))
    assert found["csr.values"] == ("F32", (3,), raw(csr.values()))
    assert found["q"][:2] == ("I8", (3,))
    assert found["s"] == ("", (16,), raw(torch.ones(4)))


def test_torchscript(located):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(3, 2)
            self.register_buffer("table", torch.arange(4))

        def forward(self, x):
            return self.inner(x) + torch.tensor([1.5, 2.5])

    out = io.BytesIO()
    net = Net()
    torch.jit.save(torch.jit.trace(net, torch.ones(1, 3)), out)
    found = located(out.getvalue(), "net.pt")
    assert found["inner.weight"] == ("F32", (2, 3), raw(net.inner.weight))
    assert found["table"] == ("I64", (4,), raw(net.table))
    assert ("F32", (2,), raw(torch.tensor([1.5, 2.5]))) in found.values(), "a constant of the code"


@pytest.mark.parametrize("state", [{"lr": 0.1, "steps": list(range(1000))}, None, "text", []])
def test_no_tensors_at_all(state):
    data = saved(state)
    assert parse(BytesSource(data)).tensors == ()
    assert self_proof(BytesSource(data)) is True


def test_a_tensor_alone(located):
    assert located(saved(torch.ones(2))) == {"item-0": ("F32", (2,), raw(torch.ones(2)))}


def test_the_old_format_is_opaque():
    data = saved({"w": torch.ones(2)}, _use_new_zipfile_serialization=False)
    assert layout(BytesSource(data), "x.pt") is None
    assert self_proof(BytesSource(data), "x.pt") is None
    with pytest.raises(UnknownFormat, match=r"x\.pt"):
        parse(BytesSource(data), "x.pt")


def test_a_distributed_checkpoint(located, tmp_path):
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    model = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(5, dtype=torch.bfloat16), "n": torch.arange(4)}
    extra = [torch.full((7,), 3.0), {"k": 1}]
    dcp.save({"model": model, "extra": extra, "lr": 0.1}, checkpoint_id=tmp_path, no_dist=True)
    with open(tmp_path / ".metadata", "rb") as file:
        stored = pickle.load(file).storage_data
    (path,) = tmp_path.glob("*.distcp")
    data = path.read_bytes()
    found = layout(BytesSource(data), path.name)
    expected = {f"model.{k}": v for k, v in model.items()} | {"extra.0": extra[0]}
    places = {index.fqn: (where.offset, where.offset + where.length) for index, where in stored.items()}
    assert len(found.tensors) == 4
    for name, tensor in expected.items():  # an item's tensors lie where .metadata says that the item does
        start, end = places[name]
        (one,) = [t for t in found.tensors if start <= t.offset < end]
        assert one.name.startswith("item-")
        assert data[one.offset : one.offset + one.length] == raw(tensor)
        assert one.shape == tuple(tensor.shape)
    assert self_proof(BytesSource(data), path.name) is True
    assert self_proof(BytesSource(data[:-1]), path.name) is False
    assert layout(BytesSource(data[:-1]), path.name) is None


def test_sharded_tensors(located, tmp_path):
    dist = pytest.importorskip("torch.distributed")
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        whole = torch.arange(12.0).reshape(3, 4)
        data = saved({"d": distribute_tensor(whole, init_device_mesh("cpu", (1,)), [Shard(0)])})
    finally:
        dist.destroy_process_group()
    assert located(data)["d"] == ("F32", (3, 4), raw(whole))


def several(*states) -> bytes:
    return b"".join(saved(state) for state in states)


def test_items_have_their_place_in_their_names(located):
    data = several(torch.ones(2), {"k": 1}, {"a": torch.zeros(3)})
    assert located(data).keys() == {"item-0", "item-2.a"}
    assert located(saved({"a": torch.zeros(3)}), "__0_0.distcp").keys() == {"item-0.a"}


def test_what_lies_before_the_understood_items_is_opaque(located):
    data = b"PK\x03\x04 something else " + several(torch.ones(2), torch.zeros(3))
    assert [v[1] for v in located(data).values()] == [(2,), (3,)]
    broken = bytearray(several(torch.ones(2), torch.ones(3), torch.ones(4)))
    middle = len(saved(torch.ones(2)))
    broken[middle : middle + 4] = b"nope"  # the local header of its data.pkl
    assert [v[1] for v in located(bytes(broken)).values()] == [(2,), (12,), (4,)]


def rewritten(data: bytes, change, method=zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            new.writestr(info.filename, change(info.filename, old.read(info)), method)
    return out.getvalue()


def test_big_endian_archives_have_no_types(located):
    data = rewritten(saved({"a": torch.ones(3)}), lambda n, d: b"big" if n.endswith("byteorder") else d)
    assert located(data)["a"][:2] == ("", (12,))


def test_deflated_storages_are_opaque():
    found = layout(BytesSource(rewritten(saved({"a": torch.ones(3)}), lambda n, d: d, zipfile.ZIP_DEFLATED)))
    assert found is not None
    assert found.tensors == ()


def test_a_deflated_pickle_still_gives_the_names(located):
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved({"a": torch.ones(3)}))) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            method = zipfile.ZIP_DEFLATED if info.filename.endswith(".pkl") else zipfile.ZIP_STORED
            new.writestr(info.filename, old.read(info), method)
    assert located(out.getvalue())["a"] == ("F32", (3,), raw(torch.ones(3)))


@pytest.mark.parametrize("pickled", [b"", b"garbage", b"N" * 100, bytes(40 << 20)], ids=["none", "bad", "open", "huge"])
def test_an_unreadable_pickle_leaves_the_storages(located, pickled):
    data = rewritten(saved({"a": torch.ones(3)}), lambda n, d: pickled if n.endswith(".pkl") else d)
    assert located(data) == {"data/0": ("", (12,), raw(torch.ones(3)))}


def test_a_pickle_that_lies_about_sizes_is_not_believed(located):
    data = rewritten(saved({"a": torch.ones(3)}), lambda n, d: d + bytes(4) if n.endswith("data/0") else d)
    assert located(data)["a"][:2] == ("", (16,))


def test_a_malicious_archive_has_no_effect(located, tmp_path):
    mark = tmp_path / "mark"

    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {mark}",)

    assert located(saved({"a": torch.ones(3), "evil": Evil()})).keys() == {"a"}
    assert not mark.exists()


def test_overlapping_records_are_refused():
    data = bytearray(saved({"a": torch.ones(3), "b": torch.zeros(3)}))
    first, second = (data.rindex(b"/data/" + key) - 46 - len("archive") for key in (b"0", b"1"))
    data[second + 42 : second + 46] = data[first + 42 : first + 46]
    with pytest.raises(FormatError, match="overlaps"):
        parse(BytesSource(data))


def laughs() -> bytes:
    """A pickle of lists of lists, each one held ten times by the next: 10 ** 60 paths to one tensor."""
    pid = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x03tQ"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + pid + b"K\0K\x03\x85K\x01\x85\x89NtR"
    levels = b"".join(b"q\x01](" + b"h\x01" * 10 + b"e" for _ in range(60))
    return b"\x80\x02" + tensor + levels + b"."


def test_shared_lists_are_walked_once(located):
    data = rewritten(saved({"a": torch.ones(3)}), lambda n, d: laughs() if n.endswith(".pkl") else d)
    assert located(data) == {".".join("0" * 60): ("F32", (3,), raw(torch.ones(3)))}


def test_depth_beyond_the_limit_loses_only_the_name(located):
    state = torch.ones(3)
    for _ in range(150):
        state = [state]
    assert located(saved(state)) == {"data/0": ("", (12,), raw(torch.ones(3)))}


def test_endless_names_are_cut(located):
    state = torch.ones(3)
    for _ in range(50):
        state = {"x" * 10_000: state}
    ((name, value),) = located(saved(state)).items()
    assert len(name) == 1024
    assert value[0] == "F32"
