"""Codecs: every bit pattern comes back, nothing grows, damage is named, and a lying codec harms nobody."""

from __future__ import annotations

import logging
import re
import struct
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_train_cas.codecs import Codec, Encoded, decode, encode, encode_object, kernel
from gpu_train_cas.errors import Damaged
from gpu_train_cas.formats import ITEM_BYTES

MIB = 1 << 20
DTYPES = [*ITEM_BYTES, "Q4_K", ""]
FLOATS = ["BF16", "F16", "F32", "F64", "C64", "C128"]


def noise(length: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(length)


def weights(dtype: str, length: int = MIB, seed: int = 0) -> bytes:
    """Normally distributed values of deviation 0.02, as a tensor of that type holds them."""
    drawn = np.random.default_rng(seed).standard_normal(length // 2 + 8) * 0.02
    if dtype == "BF16":
        stored = (drawn.astype(np.float32).view(np.uint32) >> 16).astype("<u2")
    else:
        stored = drawn.astype({"F16": "<f2", "F64": "<f8", "C128": "<f8"}.get(dtype, "<f4"))
    return stored.tobytes()[:length]


def round_trip(block: bytes, dtype: str = "") -> Encoded:
    stored = encode(block, dtype)
    assert bytes(decode(stored.codec, bytes(stored.payload), len(block))) == block
    assert len(stored.payload) <= len(block)
    return stored


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 8, 9, 15, 17, 255, 4097, 65536, 300_001, MIB])
def test_every_type_and_length_comes_back(dtype: str, length: int) -> None:
    for block in (noise(length), bytes(length), b"\xff" * length, weights(dtype, length)):
        round_trip(block, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_all_16_bit_patterns_come_back(dtype: str) -> None:
    """Every BF16 and F16: NaNs with payloads, infinities, subnormals and negative zero among them."""
    block = np.arange(1 << 16, dtype="<u2").tobytes()
    round_trip(block, dtype)


@given(
    dtype=st.sampled_from(DTYPES),
    pattern=st.binary(min_size=1, max_size=300),
    repeats=st.integers(1, 300),
    edits=st.lists(st.tuples(st.integers(0, 89_999), st.integers(0, 255)), max_size=20),
    cut=st.integers(0, 16),
)
@settings(max_examples=300, deadline=None)
def test_arbitrary_bytes_come_back(
    dtype: str, pattern: bytes, repeats: int, edits: list[tuple[int, int]], cut: int
) -> None:
    block = bytearray(pattern * repeats)
    for place, value in edits:
        block[place % len(block)] = value
    round_trip(bytes(block[: max(0, len(block) - cut)]), dtype)


def test_a_memoryview_serves_as_well_as_bytes() -> None:
    block = weights("BF16")
    whole = memoryview(b"x" + block + b"y")[1:-1]
    stored = encode(whole, "BF16")
    assert stored == encode(block, "BF16")
    assert bytes(decode(stored.codec, memoryview(stored.payload), MIB)) == block


# ---- who wins


@pytest.mark.parametrize(
    ("dtype", "at_most"), [("BF16", 0.67), ("F32", 0.84), ("F16", 0.85), ("F64", 0.90), ("C64", 0.84)]
)
def test_weights_are_stored_as_planes(dtype: str, at_most: float) -> None:
    stored = round_trip(weights(dtype), dtype)
    assert stored.codec is Codec.FLOAT
    assert len(stored.payload) < at_most * MIB


def test_text_is_stored_as_zstd() -> None:
    text = b"".join(b"step %d loss %.4f\n" % (n, 3.0 / (n + 1)) for n in range(20_000))
    stored = round_trip(text)
    assert stored.codec is Codec.ZSTD
    assert len(stored.payload) < 0.4 * len(text)


def test_noise_is_stored_raw_and_not_copied() -> None:
    block = noise(MIB)
    for dtype in ("", "BF16", "F32", "U8"):
        stored = encode(block, dtype)
        assert stored.codec is Codec.RAW
        assert stored.payload is block


def test_token_ids_lose_their_empty_planes() -> None:
    ids = np.random.default_rng(1).integers(0, 32_000, MIB // 8).astype("<i8").tobytes()
    assert len(round_trip(ids, "I64").payload) < 0.26 * MIB


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_block_of_one_value_takes_almost_nothing(dtype: str) -> None:
    for value in (bytes(8), b"\0\0\x80\x3f" * 2, b"\x80\x3f" * 4):
        assert len(round_trip(value * (MIB // 8), dtype).payload) <= 128
        assert len(round_trip(value * (MIB // 8) + value[:5], dtype).payload) < 160


def test_usual_blocks_are_encoded_and_decoded_without_numpy() -> None:
    """It takes longer to import than most commands take."""
    child = """
import os, struct, sys
from gpu_train_cas.codecs import Codec, Reference, decode, encode, encode_object, kernel
noise = os.urandom(1 << 18)
weights = b"".join(noise[i : i + 3] + b"\\x3c" for i in range(0, len(noise), 4))
near = b"".join(noise[i : i + 1] + weights[i + 1 : i + 4] for i in range(0, len(weights), 4))
base = Reference(b"b" * 32, near)
blocks = [(weights, "F32", None), (weights, "F32", base), (bytes(1 << 20), "F32", None)]
found = set()
for block, dtype, base in [*blocks, (noise, "F32", None), (noise, "", None)]:
    stored = encode(block, dtype, base=base)
    found.add(stored.codec)
    assert bytes(decode(stored.codec, stored.payload, len(block), base=base and base.data)) == block
encode_object(b"manifest" * 100)
assert found == {Codec.FLOAT, Codec.DELTA, Codec.RAW}, found
ours = [(name, vars(module)) for name, module in sys.modules.items() if name.startswith("gpu_train_cas.codecs")]
print([name for name, known in ours if sys.modules.get("numpy", "absent") in known.values()])
"""
    if not kernel.writes():
        pytest.skip("no native kernel")
    done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=False)
    assert (done.stderr, done.stdout) == ("", "[]\n")


def test_zstd_wins_where_rows_repeat_out_of_order() -> None:
    rows = np.frombuffer(noise(16 * 256), np.uint8).reshape(16, 256)
    block = rows[np.random.default_rng(1).integers(0, 16, MIB // 256)].tobytes()
    stored = round_trip(block, "F32")
    assert stored.codec is Codec.ZSTD
    assert len(stored.payload) < 0.05 * MIB


def test_float_data_of_an_unknown_type_is_never_worse_than_raw() -> None:
    assert len(round_trip(weights("BF16"), "").payload) <= MIB


def test_objects_are_zstd_or_raw() -> None:
    assert encode_object(b"name" * 100).codec is Codec.ZSTD
    short = encode_object(b"\x01")
    assert (short.codec, short.payload) == (Codec.RAW, b"\x01")
    mixed = noise(200_000) + bytes(20_000) + noise(200_000)  # a sample could miss the middle
    assert encode_object(mixed).codec is Codec.ZSTD


# ---- a codec that lies


class Liar:
    """Offers a short payload that decodes to something else."""

    codec = Codec.FLOAT
    proves = False

    def __init__(self, decoded: bytes | Exception) -> None:
        self.decoded = decoded

    def propose(self, block: bytes | memoryview, dtype: str, limit: int) -> bytes | None:
        return b"short"

    def decode(self, payload: bytes | memoryview, length: int) -> bytes | memoryview:
        if isinstance(self.decoded, Exception):
            raise self.decoded
        return self.decoded


class Greedy(Liar):
    """Offers a payload longer than the block."""

    def propose(self, block: bytes | memoryview, dtype: str, limit: int) -> bytes | None:
        return bytes(block) + b"!"


@pytest.mark.parametrize("length", [6, 8, 100, 4096, 4099])
def test_a_lying_codec_is_refused_and_the_block_stored_raw(length: int, caplog: pytest.LogCaptureFixture) -> None:
    block = noise(length)
    first, last = bytearray(block), bytearray(block)
    first[0] ^= 1
    last[-1] ^= 0x80
    for lie in (bytes(first), bytes(last), block[:-1], block + b"\0", b"", Damaged("no"), IndexError("bug")):
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            assert encode(block, "F32", entrants=[Liar(lie)]) == Encoded(Codec.RAW, block)
        assert "codec FLOAT did not give a block" in caplog.text


def test_a_codec_that_finds_its_own_fault_is_passed_over_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Contrite(Liar):
        proves = True

        def propose(self, block: bytes | memoryview, dtype: str, limit: int) -> bytes | None:
            raise Damaged("it decodes to something else")

    block = noise(100)
    assert encode(block, "F32", entrants=[Contrite(b"")]) == Encoded(Codec.RAW, block)
    assert "codec FLOAT did not give a block" in caplog.text


def test_an_honest_codec_takes_the_place_of_a_lying_one() -> None:
    class HonestZstd:
        codec = Codec.ZSTD
        proves = False

        def propose(self, block: bytes | memoryview, dtype: str, limit: int) -> bytes | None:
            return zstandard.ZstdCompressor().compress(block)

        def decode(self, payload: bytes | memoryview, length: int) -> bytes | memoryview:
            return decode(Codec.ZSTD, payload, length)

    text = b"word " * 1000
    stored = encode(text, entrants=[HonestZstd(), Liar(b"")])
    assert stored.codec is Codec.ZSTD
    assert bytes(decode(stored.codec, stored.payload, len(text))) == text


def test_a_payload_that_is_longer_than_the_block_is_ignored() -> None:
    assert encode(b"block", entrants=[Greedy(b"block")]) == Encoded(Codec.RAW, b"block")


# ---- damage


def stored_samples() -> list[tuple[Encoded, int]]:
    blocks = [
        (weights("BF16", 20_001), "BF16"), (weights("F32", 40_003), "F32"), (weights("F64", 30_007), "F64"),
        (np.arange(5000, dtype="<i8").tobytes(), "I64"), (b"all work and no play " * 500, ""), (bytes(5000), ""),
    ]  # fmt: skip
    stored = [(encode(block, dtype), len(block)) for block, dtype in blocks]
    return [(Encoded(e.codec, bytes(e.payload)), length) for e, length in stored]


SAMPLES = stored_samples()


def decoded_or_damaged(codec: int, payload: bytes, length: int) -> None:
    """Wrong bytes are for the block's digest to find; anything but `length` bytes or Damaged is a fault."""
    try:
        data = decode(codec, payload, length)
    except Damaged:
        return
    assert len(data) == length


def test_the_samples_cover_the_codecs() -> None:
    assert {stored.codec for stored, _ in SAMPLES} == {Codec.ZSTD, Codec.FLOAT}


@given(
    sample=st.sampled_from(SAMPLES),
    flips=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 255)), min_size=1, max_size=4),
    anywhere=st.integers(0, 1 << 20),
)
@settings(max_examples=500, deadline=None)
def test_flipped_bytes_are_damage_or_the_right_length(
    sample: tuple[Encoded, int], flips: list[tuple[int, int]], anywhere: int
) -> None:
    stored, length = sample
    payload = bytearray(stored.payload)
    for place, mask in flips:  # mostly in the headers
        payload[place % len(payload)] ^= mask
    decoded_or_damaged(stored.codec, bytes(payload), length)
    payload[anywhere % len(payload)] ^= 0x55
    decoded_or_damaged(stored.codec, bytes(payload), length)


@given(sample=st.sampled_from(SAMPLES), cut=st.floats(0, 1, exclude_max=True))
@settings(deadline=None)
def test_a_payload_cut_short_is_damaged(sample: tuple[Encoded, int], cut: float) -> None:
    stored, length = sample
    with pytest.raises(Damaged):
        decode(stored.codec, bytes(stored.payload)[: int(len(stored.payload) * cut)], length)


@pytest.mark.parametrize("sample", SAMPLES)
def test_more_bytes_or_another_length_are_damage(sample: tuple[Encoded, int]) -> None:
    stored, length = sample
    with pytest.raises(Damaged):
        decode(stored.codec, bytes(stored.payload) + b"\0", length)
    for other in (0, 1, length - 1, length + 1, length + 8, 2 * length):
        with pytest.raises(Damaged):
            decode(stored.codec, stored.payload, other)


@given(codec=st.integers(-1, 300), payload=st.binary(max_size=200), length=st.integers(0, 5000))
def test_arbitrary_payloads_are_damage_or_the_right_length(codec: int, payload: bytes, length: int) -> None:
    decoded_or_damaged(codec, payload, length)


@pytest.mark.parametrize("codec", [4, 255])
def test_codecs_not_known_are_refused_by_name(codec: int) -> None:
    with pytest.raises(Damaged, match=f"codec {int(codec)} is not known"):
        decode(codec, b"payload", 7)


FLOAT_TABLE = struct.Struct("<BB")
PLANE = struct.Struct("<BI")


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"", "ends within its header"),
        (b"\0", "ends within its header"),
        (FLOAT_TABLE.pack(9, 2) + PLANE.pack(2, 1) * 2 + b"ab", "mode 9"),
        (FLOAT_TABLE.pack(0, 3) + PLANE.pack(2, 1) * 3 + b"abc", "element 0x3"),
        (FLOAT_TABLE.pack(0, 0xC2) + PLANE.pack(2, 1) * 2 + b"ab", "element 0xc2"),
        (FLOAT_TABLE.pack(0, 2) + PLANE.pack(2, 1), "ends within its table"),
        (FLOAT_TABLE.pack(0, 2) + PLANE.pack(2, 1) + PLANE.pack(2, 1 << 31) + b"ab", "does not have the length"),
        (FLOAT_TABLE.pack(0, 2) + PLANE.pack(7, 1) * 2 + b"ab", "plane of method 7"),
        (FLOAT_TABLE.pack(0, 2) + PLANE.pack(0, 1) * 2 + b"ab", "plane of method 0 and 1 bytes"),
        (FLOAT_TABLE.pack(0, 2) + PLANE.pack(1, 1) * 2 + b"ab", "does not start with a frame"),
    ],
)  # fmt: skip
def test_damage_in_a_float_table_is_named(payload: bytes, says: str) -> None:
    with pytest.raises(Damaged, match=says):
        decode(Codec.FLOAT, payload, 64)


def test_the_example_of_the_spec_decodes() -> None:
    spec = Path(__file__).parents[2] / "cas" / "spec" / "codecs.md"
    example = spec.read_text().partition("Example: the BF16 values 1.0, -1.0, 1.0, 1.5")[2].partition("\n## ")[0]
    payload = bytes.fromhex("".join(re.findall(r"^\| `([0-9a-f ]+)` \|", example, re.MULTILINE)))
    assert bytes(decode(Codec.FLOAT, payload, 9)) == bytes.fromhex("803f 80bf 803f c03f aa")


# ---- bombs


def peak_bytes(codec: int, payload: bytes, length: int) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(Damaged):
            decode(codec, payload, length)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_zip_bomb_allocates_nothing() -> None:
    bomb = zstandard.ZstdCompressor(level=3).compress(bytes(256 * MIB))
    assert peak_bytes(Codec.ZSTD, bomb, MIB) < MIB
    plane = FLOAT_TABLE.pack(0, 2) + PLANE.pack(1, len(bomb)) + PLANE.pack(2, 1) + bomb + b"\0"
    assert peak_bytes(Codec.FLOAT, plane, MIB) < MIB


def test_a_bomb_that_hides_its_size_is_refused() -> None:
    hidden = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64 * MIB))
    assert peak_bytes(Codec.ZSTD, hidden, MIB) < MIB


def test_a_frame_that_lies_about_its_size_is_refused_within_that_size() -> None:
    frame = bytearray(zstandard.ZstdCompressor(level=3).compress(bytes(64 * MIB)))
    at = frame.index(struct.pack("<I", 64 * MIB))
    frame[at : at + 4] = struct.pack("<I", MIB)
    assert peak_bytes(Codec.ZSTD, bytes(frame), MIB) < 3 * MIB


def test_two_frames_and_skippable_frames_are_refused() -> None:
    frame = zstandard.ZstdCompressor().compress(b"x" * 1000)
    skippable = struct.pack("<II", 0x184D2A50, 1000) + bytes(1000)
    for payload in (frame + frame, skippable, skippable + frame, frame + skippable):
        with pytest.raises(Damaged):
            decode(Codec.ZSTD, payload, 1000)


# ---- threads


def test_threads_do_not_disturb_each_other() -> None:
    blocks = [(weights("BF16", MIB - n, n), "BF16") for n in range(3)]
    blocks += [(weights("F32", MIB, 7), "F32"), (b"text %d " % 5 * 90_000, ""), (noise(MIB), "F32")]
    expected = [encode(block, dtype) for block, dtype in blocks]
    faults: list[str] = []
    start = threading.Barrier(4)

    def work(offset: int) -> None:
        start.wait()
        for turn in range(18):
            which = (turn + offset) % len(blocks)
            block, dtype = blocks[which]
            stored = encode(block, dtype)
            if stored != expected[which]:
                faults.append(f"encode {which}")
            if bytes(decode(stored.codec, stored.payload, len(block))) != block:
                faults.append(f"decode {which}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
