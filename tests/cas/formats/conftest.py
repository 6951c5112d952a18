import pytest

from gpu_train_cas.formats import BytesSource, Layout, parse


@pytest.fixture
def located():
    """A container's bytes -> {name: (dtype, shape, bytes)}, through `parse`."""

    def located(data: bytes, name: str = "") -> dict[str, tuple[str, tuple[int, ...], bytes]]:
        layout = parse(BytesSource(data), name)
        found = {t.name: (t.dtype, t.shape, data[t.offset : t.offset + t.length]) for t in layout.tensors}
        assert len(found) == len(layout.tensors), "names are unique"
        return found

    return located


@pytest.fixture
def sound():
    """Checks what every layout promises, whatever the file was."""

    def sound(layout: Layout | None, size_bytes: int) -> None:
        end = 0
        for tensor in layout.tensors if layout is not None else ():
            assert end <= tensor.offset <= tensor.offset + tensor.length <= size_bytes
            assert all(0 <= n < 2**63 for n in tensor.shape)
            tensor.name.encode("utf-8")
            end = tensor.offset + tensor.length

    return sound
