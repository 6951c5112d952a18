import json
import struct

import numpy as np
import pytest

from gpu_train_cas.formats import BytesSource, FormatError, Tensor, Unsupported, layout, parse, self_proof
from gpu_train_cas.formats.safetensors import MAX_TENSORS

writer = pytest.importorskip("safetensors.numpy")


def header(text: str | bytes, data: bytes = b"") -> bytes:
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(raw)) + raw + data


def entry(dtype="U8", shape=(4,), first=0, last=4) -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [first, last]}


def refused(data: bytes, says: str) -> None:
    source = BytesSource(data)
    with pytest.raises(FormatError, match=says):
        parse(source, "model.safetensors")
    assert layout(source, "model.safetensors") is None
    assert self_proof(source, "model.safetensors") is False


def test_everything_that_the_library_writes(located):
    names = {
        "F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1",
        "U64": "u8", "U32": "u4", "U16": "u2", "U8": "u1", "BOOL": "?",
    }  # fmt: skip
    rng = np.random.default_rng(0)
    arrays = {f"model.{d}": rng.integers(0, 2, (3, 5)).astype(code) for d, code in names.items()}
    arrays |= {
        "empty": np.zeros((0, 4), "f4"),
        "scalar": np.array(7.0, "f4"),
        'with "quotes" \\ and é': np.ones(2, "i1"),
    }
    data = writer.save(arrays, metadata={"format": "pt", "note": 'a "quoted" {brace}, ü'})
    found = located(data)
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        dtype, shape, raw = found[name]
        assert (shape, raw) == (array.shape, array.tobytes())
        assert dtype == (name.removeprefix("model.") if name.startswith("model.") else dtype)
    told = parse(BytesSource(data))
    assert (told.format, dict(told.metadata)) == ("safetensors", {"format": "pt", "note": 'a "quoted" {brace}, ü'})
    assert self_proof(BytesSource(data), "x.safetensors") is True


def test_types_that_numpy_lacks(located):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save

    kinds = {
        "BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64,
    }  # fmt: skip
    tensors = {name: torch.arange(6).reshape(2, 3).to(dtype) for name, dtype in kinds.items()}
    for name, (dtype, shape, raw) in located(save(tensors)).items():
        assert (name, (2, 3)) == (dtype, shape)
        assert raw == bytes(tensors[name].view(torch.uint8).numpy().tobytes())


def test_no_tensors_at_all():
    data = writer.save({})
    assert parse(BytesSource(data), "x").tensors == ()
    assert self_proof(BytesSource(data), "x.safetensors") is True


def test_an_unknown_type_keeps_its_place():
    data = header(json.dumps({"a": entry("F4", (8,))}), b"abcd")
    assert parse(BytesSource(data)).tensors == (Tensor("a", "", (8,), len(data) - 4, 4),)


def test_gaps_are_opaque_and_prove_nothing():
    data = header(json.dumps({"b": entry(first=8, last=12), "a": entry()}), bytes(12))
    assert [t.name for t in parse(BytesSource(data)).tensors] == ["a", "b"]
    assert self_proof(BytesSource(data), "x.safetensors") is None


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 9, 40, -1])
def test_a_truncated_file_is_refused(cut):
    refused(writer.save({"a": np.arange(100.0), "b": np.ones(3)})[:cut], "past|end")


def test_a_file_that_goes_on_does_not_prove_itself():
    data = writer.save({"a": np.arange(10.0)}) + b"more"
    assert self_proof(BytesSource(data), "x.safetensors") is None


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 100_000_001])
def test_a_header_of_absurd_length_is_refused(length):
    refused(struct.pack("<Q", length) + b"{" + bytes(100), "longer than")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (json.dumps({"a": entry(), "b": entry(first=2, last=6)}), "overlaps"),
        (json.dumps({"a": entry(first=4, last=0)}), "cannot be"),
        (json.dumps({"a": entry(first=-4, last=0)}), "cannot be"),
        (json.dumps({"a": entry(shape=(5,))}), "not the 5"),
        (json.dumps({"a": entry(shape=(2**40, 2**40))}), "not the"),
        (json.dumps({"a": entry(shape=(-2, -2))}), "cannot be"),
        (json.dumps({"a": entry(shape=(4.0,))}), "cannot be"),
        (json.dumps({"a": entry(shape=(True,) * 65, last=1)}), "cannot be"),
        (json.dumps({"a": entry("?", shape=(1,) * 65)}), "no tensor can have"),
        (json.dumps({"a": entry(shape=(2**63,), last=2**63)}), "cannot be"),
        (json.dumps({"a": entry(last=10**9, shape=(10**9,))}), "past the file"),
        (json.dumps({"a": {"dtype": "U8", "shape": [4]}}), "lacks"),
        (json.dumps({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0]}}), "lacks"),
        (json.dumps({"a": {"dtype": 1, "shape": [4], "data_offsets": [0, 4]}}), "cannot be"),
        ('{"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}}', "twice"),
        ('{"a":' + json.dumps(entry()) + ',"a":' + json.dumps(entry()) + "}", "twice"),
        ('{"__metadata__":{"a":"b"},"__metadata__":{}}', "twice"),
        ('{"__metadata__":{"a":1}}', "broken"),
        ('{"a":{"dtype":"U8","shape":' + "[" * 3000 + "}}", "no JSON"),
        ('{"a":' + json.dumps(entry()) + ",}", "broken"),
        ('{"a":' + json.dumps(entry()) + "} x", "goes on"),
        ('{"a":[1,2]}', "broken"),
        ("{" * 100_000, "broken"),
        ('{"a' + "\\" * 100_001, "broken"),
        (b'{"\xff":' + json.dumps(entry()).encode() + b"}", "no JSON"),
        ("[]", "begin with"),
        ('{"a":' + json.dumps(entry()).replace("[4]", "[" + "9" * 4000 + "]") + "}", "cannot be"),
    ],
)
def test_a_broken_header_is_refused(text, says):
    refused(header(text, bytes(8)), says)


def test_a_lone_surrogate_in_a_name_becomes_a_question_mark():
    data = header('{"a\\ud800":' + json.dumps(entry()) + "}", bytes(4))
    assert parse(BytesSource(data)).tensors[0].name == "a?"


def test_too_many_tensors_are_refused():
    many = {str(n): entry("U8", (0,), 0, 0) for n in range(MAX_TENSORS + 1)}
    source = BytesSource(header(json.dumps(many)))
    with pytest.raises(Unsupported, match=f"more than {MAX_TENSORS}"):
        parse(source)


@pytest.mark.parametrize("spaces", ["", "    "])
def test_padding_behind_the_header_is_no_matter(spaces):
    data = header('{\n "a" : ' + json.dumps(entry(), indent=2) + "\n}" + spaces, bytes(4))
    assert parse(BytesSource(data)).tensors[0].length == 4
