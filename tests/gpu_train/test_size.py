from __future__ import annotations

import pytest

from gpu_train.size import AUTO, bytes_of, size_of, size_text


@pytest.mark.parametrize(
    ("said", "size_bytes"),
    [(0, 0), (4096, 4096), ("512", 512), ("7 B", 7), ("3k", 3072), ("500 MB", 500_000_000), ("20 GiB", 20 << 30),
     (" 1.5T ", 3 << 39), ("2PiB", 2 << 50)],
)  # fmt: skip
def test_sizes_as_people_write_them(said: object, size_bytes: int) -> None:
    assert bytes_of(size_of(said)) == size_bytes


def test_auto_leaves_it_to_the_program() -> None:
    assert size_of("Auto") == AUTO
    assert bytes_of(AUTO) is None


@pytest.mark.parametrize("said", [-1, True, 1.5, None, "", "much", "-3G", "5 XB", "1 GiB 2", []])
def test_what_is_no_size(said: object) -> None:
    with pytest.raises(ValueError, match='"20 GiB", or "auto" is expected'):
        size_of(said)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 << 19, "2.5 MiB"), (1 << 60, "1024.0 PiB")],
)
def test_sizes_in_messages(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text
