import io
import struct
import warnings

import numpy as np
import pytest

from gpu_train_cas.formats import BytesSource, FormatError, layout, parse, self_proof


def saved(array, version=None) -> bytes:
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        np.lib.format.write_array(out, np.asarray(array), version)
    return out.getvalue()


def told(header: str, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize(
    ("code", "dtype"),
    [
        ("f8", "F64"), ("f4", "F32"), ("f2", "F16"), ("i8", "I64"), ("i4", "I32"), ("i2", "I16"), ("i1", "I8"),
        ("u8", "U64"), ("u4", "U32"), ("u2", "U16"), ("u1", "U8"), ("?", "BOOL"), ("c8", "C64"), ("c16", "C128"),
    ],
)  # fmt: skip
def test_plain_arrays(located, version, code, dtype):
    array = np.arange(12).reshape(3, 4).astype(code)
    data = saved(array, version)
    assert located(data) == {"array": (dtype, (3, 4), array.tobytes())}
    assert self_proof(BytesSource(data)) is True


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (2, 0, 5)])
def test_small_shapes(located, shape):
    array = np.ones(shape, "f4")
    assert located(saved(array)) == {"array": ("F32", shape, array.tobytes())}


def test_columns_first_is_a_flat_run(located):
    array = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    assert located(saved(array)) == {"array": ("F64", (12,), array.tobytes("F"))}
    column = np.asfortranarray(np.arange(3.0).reshape(3, 1))
    assert located(saved(column))["array"][1] == (3, 1)


@pytest.mark.parametrize("code", [">f4", "U5", "S3", "V7", "M8[ns]", "m8[s]", "f16"])
def test_other_types_are_so_many_bytes(located, code):
    array = np.zeros(6, code)
    assert located(saved(array)) == {"array": ("", (array.nbytes,), array.tobytes())}
    assert self_proof(BytesSource(saved(array))) is True


def test_objects_and_records_are_opaque_and_prove_nothing():
    out = io.BytesIO()
    np.save(out, np.array([None, {}], object), allow_pickle=True)
    for data in (out.getvalue(), saved(np.zeros(3, [("a", "f4"), ("b", "i8")]))):
        assert layout(BytesSource(data), "x.npy") is None
        assert self_proof(BytesSource(data), "x.npy") is None


@pytest.mark.parametrize("cut", [7, 11, 50, -1])
def test_cut_short(cut):
    source = BytesSource(saved(np.arange(100.0))[:cut])
    with pytest.raises(FormatError):
        parse(source, "x.npy")
    assert layout(source) is None
    assert self_proof(source, "x.npy") is False


def test_more_behind_the_array_is_opaque():
    data = saved(np.arange(3.0)) * 2
    assert parse(BytesSource(data)).tensors[0].length == 24
    assert self_proof(BytesSource(data)) is None


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 5000 + ",), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9," * 100 + "), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1 2,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (999999999999999999,), }",
        "{'descr': '<f4', 'fortran_order': __import__('os'), 'shape': (), }",
        "(" * 9000,
        "-" * 9000 + "1",
    ],
)
def test_hostile_headers(header):
    with pytest.raises(FormatError):
        parse(BytesSource(told(header, b"abcd")))


def test_an_overlong_header_is_refused():
    with pytest.raises(FormatError, match="longer than"):
        parse(BytesSource(b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + bytes(100)))
