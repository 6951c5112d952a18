"""Taking a part of a saved state out: torch loads the rest bit for bit, and says that the part is not there."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpu_train_cas.formats import BytesSource, Cut, FormatError, cut_state, layout
from gpu_train_cas.formats.archive import read_archive
from gpu_train_cas.formats.picklecut import LEFT_OVER, without_keys
from gpu_train_cas.formats.torchcut import _central_entry, _directory, _local_header


def is_optimizer(key: str) -> bool:
    return "optim" in key


def saved(state: object, **options: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer, **options)  # type: ignore[arg-type]
    return buffer.getvalue()


def applied(data: bytes, cut: Cut) -> bytes:
    made = bytearray(data[: cut.kept_bytes])
    for start, end in cut.holes:
        made[start:end] = bytes(end - start)
    return bytes(made) + cut.tail


def cut(data: bytes) -> bytes:
    found = cut_state(BytesSource(data), "x.pt", is_optimizer)
    assert found is not None
    return applied(data, found)


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(200, 200), torch.nn.LayerNorm(200))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 200)).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("order", ["last", "first", "middle", "only two", "single"])
@pytest.mark.parametrize("load", [{}, {"weights_only": False}, {"mmap": True}], ids=str)
def test_torch_loads_the_rest(tmp_path: Path, order: str, load: dict[str, bool]) -> None:
    model, optimizer = trained()
    weights, state = model.state_dict(), optimizer.state_dict()
    states: dict[str, dict[str, object]] = {
        "last": {"epoch": 1, "state_dict": weights, "optimizer_states": [state]},
        "first": {"optimizer": state, "state_dict": weights, "hparams": {"optimizer": "adamw", "lr": 0.1}},
        "middle": {"state_dict": weights, "optimizer": state, "step": 3, "lr_schedulers": [{"last_epoch": 2}]},
        "only two": {"optimizer": state, "state_dict": weights},
        "single": {"state_dict": weights, "optimizer_name": "adamw", "optim": state},
    }
    whole = states[order]
    data = saved(whole)
    made = cut(data)
    (tmp_path / "thin.pt").write_bytes(made)
    loaded = torch.load(tmp_path / "thin.pt", **load)
    gone = {key for key in whole if is_optimizer(key) and key != "optimizer_name"}
    assert set(loaded) - {LEFT_OVER} == set(whole) - gone
    for key in set(whole) - gone - {"state_dict"}:
        assert loaded[key] == whole[key]
    assert all(torch.equal(loaded["state_dict"][k], weights[k]) for k in weights)
    assert list(loaded["state_dict"]) == list(weights)
    with zipfile.ZipFile(tmp_path / "thin.pt") as archive:
        assert archive.testzip() is None
    names = {t.name for t in layout(BytesSource(made), "x.pt").tensors}
    assert names == {f"state_dict.{k}" for k in weights}
    assert torch.load(io.BytesIO(made), map_location="meta")["state_dict"]["0.weight"].shape == (200, 200)


def test_the_bytes_of_the_weights_stay_where_they_are() -> None:
    model, optimizer = trained()
    data = saved({"optimizer": optimizer.state_dict(), "model": model.state_dict()})
    before, after = (layout(BytesSource(d), "x.pt").tensors for d in (data, cut(data)))
    kept = [t for t in before if t.name.startswith("model.")]
    assert [(t.name, t.offset, t.length) for t in kept] == [(t.name, t.offset, t.length) for t in after]
    assert sum(end - start for start, end in cut_state(BytesSource(data), "", is_optimizer).holes) > 2 * 160_000


def test_a_storage_that_both_need_stays() -> None:
    tensor = torch.arange(30_000.0)
    data = saved({"model": {"w": tensor}, "optimizer": {"master": tensor, "m": torch.ones(30_000)}})
    made = cut(data)
    assert torch.equal(torch.load(io.BytesIO(made))["model"]["w"], tensor)
    assert len(cut_state(BytesSource(data), "", is_optimizer).holes) == 2  # the old pickle, and m


def test_what_has_no_such_part_is_not_touched() -> None:
    model, _ = trained()
    for state in (model.state_dict(), {"model": model.state_dict(), "optimizer_name": "x"}, {"optimizer": None}):
        assert cut_state(BytesSource(saved(state)), "x.pt", is_optimizer) is None
    assert cut_state(BytesSource(b"no archive"), "x.pt", is_optimizer) is None


def test_what_cannot_be_cut_says_why(tmp_path: Path) -> None:
    model, optimizer = trained()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    with pytest.raises(FormatError, match="not of protocol 2"):
        cut(saved(state, pickle_protocol=4))
    shared = [1, 2, 3]
    with pytest.raises(FormatError, match="what is kept shares a"):
        cut(saved({"optimizer": {"m": torch.ones(9), "l": shared}, "after": shared}))
    good = saved(state)
    (tmp_path / "script.pt").write_bytes(good)
    with zipfile.ZipFile(tmp_path / "script.pt", "a") as archive:
        archive.writestr("archive/code/module.py", b"")
    with pytest.raises(FormatError, match="it is a TorchScript archive"):
        cut((tmp_path / "script.pt").read_bytes())
    with pytest.raises(FormatError, match="does not begin where its file does"):
        cut(b"PK\x03\x04" + good)


class Far:
    """A long file of which only the end is there."""

    def __init__(self, at: int, tail: bytes) -> None:
        self.at, self.tail, self.size_bytes = at, tail, at + len(tail)

    def pread(self, length: int, offset: int) -> bytes:
        assert offset >= self.at
        return self.tail[offset - self.at : offset - self.at + length]


@pytest.mark.parametrize("at", [1000, (1 << 32) - 1, 5 << 30])
def test_a_directory_far_behind_the_start_is_read_as_it_was_meant(at: int) -> None:
    data = b"pickle"
    head = _local_header("archive/data.pkl", data)
    tail = head + data + _directory([_central_entry("archive/data.pkl", data, at)], at + len(head) + len(data))
    source = Far(at, tail)
    archive = read_archive(source, source.size_bytes)
    (record,) = archive.records
    assert (record.name, record.header, record.size_bytes) == ("archive/data.pkl", at, 6)
    assert archive.inflate(source, record, 100) == data


numbers = st.one_of(st.integers(-(2**40), 2**40), st.floats(allow_nan=False))
leaves = st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=5))
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=4), inner, max_size=4),
        st.tuples(inner, inner), st.builds(lambda x: [x, x], inner),
    ),
    max_leaves=12,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["a", "b", "c", "optim", "optimizer", "d", "e"]), trees, max_size=7), st.data())
def test_any_pickled_dict_without_some_keys_is_that_dict_without_them(state: dict[str, object], data) -> None:
    if state and data.draw(st.booleans()):  # values that several keys share
        keys = sorted(state)
        state[data.draw(st.sampled_from(keys))] = state[data.draw(st.sampled_from(keys))]
    pickled = pickle.dumps(state, protocol=2)
    try:
        made, gone = without_keys(pickled, is_optimizer)
    except FormatError as e:
        assert "shares" in str(e)
        return
    assert gone == [key for key in state if is_optimizer(key)]
    left = pickle.loads(made)
    left.pop(LEFT_OVER, None)
    assert left == {key: value for key, value in state.items() if not is_optimizer(key)}
    assert list(left) == [key for key in state if not is_optimizer(key)]


@given(st.binary(max_size=60))
def test_garbage_is_refused(data: bytes) -> None:
    for start in (b"", b"\x80\x02", b"\x80\x02}"):
        try:
            without_keys(start + data, is_optimizer)
        except FormatError:
            continue
