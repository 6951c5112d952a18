import struct

import numpy as np
import pytest

from gpu_train_cas.formats import BytesSource, FormatError, layout, parse, self_proof
from gpu_train_cas.formats.gguf import _TYPES

gguf = pytest.importorskip("gguf")


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def built(rows=(), keys=(), version=3, tensors=None, data=b"") -> bytes:
    """A file by hand: rows are (name, dims innermost first, type, offset), keys raw key-value bytes."""
    head = struct.pack("<4sIQQ", b"GGUF", version, len(rows) if tensors is None else tensors, len(keys)) + b"".join(
        keys
    )
    for name, dims, kind, offset in rows:
        head += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
    return head + bytes(-len(head) % 32) + data


@pytest.fixture
def model(tmp_path):
    """What the library writes: (bytes, {name: array})."""
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_uint32("llama.block_count", 2)
    writer.add_array("tokenizer.ggml.tokens", ["a", "bc", "d" * 5000])
    writer.add_array("tokenizer.ggml.scores", [0.5, 1.5, 2.5])
    writer.add_string("tokenizer.chat_template", "x" * 5000)
    writer.add_bool("flag", True)
    rng = np.random.default_rng(0)
    arrays = {
        "a.weight": rng.standard_normal((4, 6)).astype("f4"), "b.weight": rng.standard_normal((3, 5)).astype("f2"),
        "c": np.arange(7, dtype="f8"), "d": np.arange(5, dtype="i1"), "e": np.arange(5, dtype="i4"),
        "f": np.arange(3, dtype="i8"), "g": np.arange(3, dtype="i2"),
    }  # fmt: skip
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    arrays["q"] = gguf.quants.quantize(rng.standard_normal((2, 256)).astype("f4"), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("q", arrays["q"], raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    arrays["h"] = np.arange(6, dtype="u2").view("u1").reshape(2, 6)
    writer.add_tensor("h", arrays["h"], raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes(), arrays


def test_what_the_library_writes(model, located):
    data, arrays = model
    found = located(data)
    kinds = dict(zip("abcdefgqh", ("F32", "F16", "F64", "I8", "I32", "I64", "I16", "Q8_0", "BF16"), strict=True))
    assert {name[0]: dtype for name, (dtype, _, _) in found.items()} == kinds
    assert all(raw == arrays[name].tobytes() for name, (_, _, raw) in found.items())
    assert (found["a.weight"][1], found["q"][1], found["h"][1]) == ((4, 6), (2, 256), (2, 3))
    told = parse(BytesSource(data))
    assert told.format == "gguf"
    assert told.metadata["general.name"] == "tiny"
    assert (told.metadata["llama.block_count"], told.metadata["flag"]) == ("2", "True")
    assert "tokenizer.chat_template" not in told.metadata
    assert self_proof(BytesSource(data)) is True


def test_every_type_that_the_library_knows():
    sizes = gguf.constants.GGML_QUANT_SIZES
    assert {(t.value, t.name, *sizes[t]) for t in gguf.GGMLQuantizationType} <= {(n, *t) for n, t in _TYPES.items()}


def test_cut_short(model):
    data, _ = model
    for cut in (5, 23, 60, 5000, len(data) // 2, len(data) - 64):
        source = BytesSource(data[:cut])
        with pytest.raises(FormatError, match="past"):
            parse(source, "m.gguf")
        assert layout(source, "m.gguf") is None
        assert self_proof(source, "m.gguf") is False


def test_no_tensors_at_all():
    assert self_proof(BytesSource(built())) is True
    assert parse(BytesSource(built())).tensors == ()


def test_an_alignment_of_its_own():
    keys = [text("general.alignment") + struct.pack("<II", 4, 64)]
    data = built([("a", (4,), 24, 0)], keys)
    data += bytes(-len(data) % 64) + b"abcd"
    (tensor,) = parse(BytesSource(data)).tensors
    assert data[tensor.offset :] == b"abcd"


def test_an_unknown_type_keeps_its_place():
    data = built([("new", (8,), 999, 0), ("a", (4,), 24, 32), ("end", (8,), 999, 64)], data=bytes(100))
    assert [(t.name, t.dtype, t.length) for t in parse(BytesSource(data)).tensors] == [
        ("new", "", 32), ("a", "I8", 4), ("end", "", 36),
    ]  # fmt: skip


def nested(depth: int) -> bytes:
    return text("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * depth + struct.pack("<IQ", 4, 0)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (built(version=1), "version 1"),
        (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "version"),
        (built(tensors=2**63), "beyond"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 2**40), "beyond"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q", 2**63), "longer"),
        (built(keys=[text("k") + struct.pack("<IQ", 8, 2**63)]), "past"),
        (built(keys=[text("k") + struct.pack("<IIQ", 9, 4, 2**62)]), "past"),
        (built(keys=[text("k") + struct.pack("<IIQ", 9, 8, 2**62)]), "beyond"),
        (built(keys=[text("k") + struct.pack("<I", 77)]), "beyond"),
        (built(keys=[nested(100)]), "beyond"),
        (built(keys=[text("general.alignment") + struct.pack("<II", 4, 0)], rows=[("a", (1,), 24, 0)]), "alignment"),
        (built(keys=[text("general.alignment") + struct.pack("<IQ", 8, 1) + b"-"], rows=[("a", (1,), 24, 0)]), "align"),
        (built([("a", (1,) * 9, 24, 0)]), "dimensions"),
        (built([("a", (33,), 2, 0)], data=bytes(99)), "even"),
        (built([("a", (2**63, 2**63), 0, 0)]), "past"),
        (built([("a", (0, 2**64 - 1), 0, 0)]), "no tensor can have"),
        (built([("a", (8,), 24, 0), ("b", (8,), 24, 4)], data=bytes(99)), "overlaps"),
        (built([("a", (8,), 24, 2**63)], data=bytes(99)), "past"),
    ],
)
def test_broken_files_are_refused(data, says):
    with pytest.raises(FormatError, match=says):
        parse(BytesSource(data))
    assert self_proof(BytesSource(data)) is not True


def test_arrays_of_arrays_are_passed_over():
    assert parse(BytesSource(built(keys=[nested(3)]))).tensors == ()
