"""Real files, damaged at random: whatever happens, a layout keeps its promises or there is none."""

import contextlib
import functools
import io
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_train_cas.formats import BytesSource, FormatError, UnknownFormat, layout, parse, self_proof
from gpu_train_cas.formats.pickle import read
from gpu_train_cas.formats.state import views

torch = pytest.importorskip("torch")
gguf = pytest.importorskip("gguf")
numpy_writer = pytest.importorskip("safetensors.numpy")

NAMES = ["x.safetensors", "x.pt", "x.distcp", "x.npy", "x.npz", "x.gguf", ""]


@functools.cache
def files() -> tuple[bytes, ...]:
    """One real file of each kind, small enough that a random byte often hits something that matters."""
    arrays = {"w": np.arange(12.0).reshape(3, 4), "b": np.ones(3, "i2"), "empty": np.zeros((0, 2), "f4")}
    npy, npz, pt, items = io.BytesIO(), io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(npy, arrays["w"])
    np.savez(npz, **arrays)
    torch.save({"model": {k: torch.from_numpy(v) for k, v in arrays.items()}, "lr": [0.1, {"a": (1, None)}]}, pt)
    for item in ({"a": torch.ones(3)}, [1, 2], torch.zeros(2)):
        torch.save(item, items)
    return (
        numpy_writer.save(arrays, {"k": "v"}),
        npy.getvalue(),
        npz.getvalue(),
        pt.getvalue(),
        items.getvalue(),
        table(),
    )


def table() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_array("tokens", ["a", "b"])
        writer.add_tensor("a", np.ones((2, 3), "f4"))
        writer.add_tensor("b", np.ones(5, "f2"))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


@st.composite
def damaged(draw) -> bytes:
    data = bytearray(draw(st.sampled_from(files())))
    places = st.integers(0, len(data))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(places)
        what = draw(st.sampled_from(["flip", "write", "truncate", "splice", "repeat", "remove"]))
        if what == "flip" and at < len(data):
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif what == "write":
            data[at : at + 8] = draw(
                st.sampled_from([b"\xff" * 8, bytes(8), b"\xff\xff", b"\x7f", b"{", b"PK\x05\x06"])
            )
        elif what == "truncate":
            del data[at:]
        elif what == "splice":
            other = draw(st.sampled_from(files()))
            data[at:at] = other[draw(st.integers(0, len(other))) :]
        elif what == "repeat":
            data[at:at] = data[draw(places) : at]
        else:
            del data[at : at + draw(st.integers(1, 64))]
    return bytes(data)


@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=damaged(), name=st.sampled_from(NAMES))
def test_damage_never_breaks_a_promise(sound, data, name):
    source = BytesSource(data)
    sound(layout(source, name), len(data))
    assert self_proof(source, name) in (True, False, None)
    with contextlib.suppress(UnknownFormat):
        try:
            parse(source, name)
        except FormatError as e:
            assert "not foreseen" not in str(e), "the net under the parsers is for what no test has found"


@pytest.mark.parametrize("index", range(6))
def test_no_prefix_is_complete(index, sound):
    """A file still being written is a prefix of itself."""
    data = files()[index]
    assert self_proof(BytesSource(data)) is True
    padding = 32 if index == 5 else 0  # behind a GGUF's last tensor
    for cut in range(1, len(data) - padding):
        proved = self_proof(BytesSource(data[:cut]))
        assert proved is not True or index == 4, cut
        sound(layout(BytesSource(data[:cut])), cut)


@settings(max_examples=600, deadline=None)
@given(data=st.binary(max_size=200))
def test_any_bytes_make_a_pickle_or_an_error(data):
    with contextlib.suppress(FormatError):
        list(views(read(data + b".")))
