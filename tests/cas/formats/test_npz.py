import io

import numpy as np

from gpu_train_cas.formats import BytesSource, layout, parse, self_proof


def test_stored_arrays(located):
    arrays = {"w": np.arange(12.0).reshape(3, 4), "b/c": np.ones(5, "i2"), "nothing": np.zeros(0, "f4")}
    out = io.BytesIO()
    np.savez(out, **arrays)
    data = out.getvalue()
    found = located(data)
    assert found == {
        "w": ("F64", (3, 4), arrays["w"].tobytes()),
        "b/c": ("I16", (5,), arrays["b/c"].tobytes()),
        "nothing": ("F32", (0,), b""),
    }
    assert parse(BytesSource(data)).format == "npz"
    assert self_proof(BytesSource(data)) is True
    assert self_proof(BytesSource(data[:-1])) is False


def test_deflated_arrays_are_opaque():
    out = io.BytesIO()
    np.savez_compressed(out, w=np.zeros(1000))
    found = layout(BytesSource(out.getvalue()))
    assert found is not None
    assert found.tensors == ()
    assert self_proof(BytesSource(out.getvalue())) is True


def test_objects_are_opaque_and_spoil_nothing(located):
    out = io.BytesIO()
    np.savez(out, config=np.array({"lr": 0.1}, object), w=np.ones(3))
    assert located(out.getvalue()) == {"w": ("F64", (3,), np.ones(3).tobytes())}
