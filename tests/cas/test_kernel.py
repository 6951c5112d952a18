"""The float kernel: every variant writes the twin's bytes and reads them back, and damage never gets past it."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

from gpu_train_cas.codecs import (
    Codec,
    Grid,
    Reference,
    Role,
    decode,
    encode,
    kernel,
    sibling_of,
    twin,
    twin_model,
)
from gpu_train_cas.codecs.payload import ELEMENTS, FLOAT, GROUPS_MAX, HEADER_BYTES, LINE, SQUARE, rows_of, width_of
from gpu_train_cas.errors import Damaged, UsageError

MIB = 1 << 20
NATIVE = [name for name in kernel.variants() if name != kernel.NUMPY]
SEED = 3

each_variant = pytest.mark.parametrize("variant", NATIVE)

# ---- blocks of every sort, and payloads damaged in every way

SPECIAL = {
    2: [0, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0xFFFF, 0x7FFF, 1, 0x8001, 0x7F, 0x3F80, 0xBF80, 0x7C00, 0xFC00],
    4: [0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFFFFFFF, 0x7FFFFFFF, 1, 0x80000001, 0x7FFFFF, 0x3F800000],
    8: [
        0,
        1 << 63,
        0x7FF << 52,
        0xFFF << 52,
        0x7FF8 << 48,
        (1 << 64) - 1,
        (1 << 63) - 1,
        1,
        (1 << 63) | 1,
        0x3FF << 52,
    ],
    1: [0, 0x80, 0x7F, 0xFF, 1, 0x81, 0x38],
}
"""Zeros, infinities, NaNs with and without payload, denormals, ones: as words of each width."""

KINDS = ["noise", "constant", "special", "normal", "positive", "few", "zeros"]
RELATIONS = ["other", "same", "sparse", "near", "far", "close signs"]


@dataclass(frozen=True)
class Case:
    """One call of an encoder."""

    block: bytes
    element: int
    tokens: bool
    source: int
    base: bytes | None
    sibling: bytes | None
    prediction: bytes | None = None
    row: int = 0
    first: int = 0

    def reference(self) -> bytes:
        """What every variant must write."""
        digest = None if self.sibling is None else b"d" * 32
        made = twin.encode(
            self.block,
            self.element,
            self.tokens,
            self.source,
            self.base,
            self.sibling,
            digest,
            self.prediction,
            self.row,
            self.first,
            1 << 40,
        )
        assert made is not None
        return made


def words(rng: np.random.Generator, count: int, width: int, kind: str) -> np.ndarray:
    unsigned = np.dtype(f"<u{width}")
    noise = np.frombuffer(rng.bytes(count * width), unsigned)
    if kind == "constant":
        return np.repeat(noise[:1], count)
    if kind == "special":
        return rng.choice(np.array(SPECIAL[width], unsigned), count)
    if kind == "few":
        return np.where(rng.random(count) < 0.95, noise[:1].repeat(count), noise)
    if kind == "zeros":
        return np.where(rng.random(count) < 0.3, 0, words(rng, count, width, "normal")).astype(unsigned)
    if kind in ("normal", "positive"):
        values = rng.standard_normal(count) * 10.0 ** rng.integers(-30, 10)
        values = np.abs(values) if kind == "positive" else values
        if width == 8:
            return values.view(unsigned)
        return (values.astype("<f4").view("<u4") >> (32 - 8 * width)).astype(unsigned)
    return noise


def related(rng: np.random.Generator, base: np.ndarray, relation: str, kind: str) -> np.ndarray:
    count, width = len(base), base.itemsize
    steps = {"near": (-3, 4), "far": (-(1 << (4 * width - 1)), 1 << (4 * width - 1))}
    if relation == "same":
        return base
    if relation == "sparse":
        return np.where(rng.random(count) < 0.06, words(rng, count, width, "noise"), base)
    if relation in steps:
        return base + rng.integers(*steps[relation], count).astype(base.dtype)
    if relation == "close signs":
        return base ^ (rng.random(count) < 0.5).astype(base.dtype) << (8 * width - 1)
    return words(rng, count, width, kind)


def case(rng: np.random.Generator, element: int, count: int, tail: int) -> Case:
    """A block of `count` elements and `tail` bytes with everything else drawn."""
    width = width_of(element)
    kind, relation = str(rng.choice(KINDS)), str(rng.choice(RELATIONS))
    base = words(rng, count, width, str(rng.choice(KINDS)))
    sibling = words(rng, count, width, str(rng.choice(KINDS)))
    with np.errstate(over="ignore"):
        block = related(rng, base, relation, kind)
    whole = width > 1 and not element & FLOAT
    tokens = bool(rng.integers(2)) or whole
    source = int(rng.integers(5))
    size_bytes = count * width + tail
    if source == 4 and size_bytes < 16:
        source = 0
    row = int(rng.integers(1, size_bytes // 16 + 1)) if source == 4 else 0
    needs_base = bool(source & 1) or (tokens and rng.random() < 0.8)
    prediction = None
    if element == ELEMENTS["F32"] and tokens and needs_base and source < 2 and rng.random() < 0.7:
        prediction = predicted(rng, count)
    return Case(
        block.astype(f"<u{width}").tobytes() + rng.bytes(tail),
        element,
        tokens,
        source,
        base.astype(f"<u{width}").tobytes() + rng.bytes(tail) if needs_base else None,
        sibling.astype(f"<u{width}").tobytes() + rng.bytes(tail) if source & 2 or prediction else None,
        prediction,
        row,
        int(rng.integers(row)) if row else 0,
    )


PREDICTION = struct.Struct("<III4f")


def predicted(rng: np.random.Generator, count: int) -> bytes:
    """A prediction for `count` elements, sound and with any coefficients."""
    kind = int(rng.choice([LINE, SQUARE]))
    row = int(rng.choice([0, 1, 3, 16, 384, 3 * count]))
    first = int(rng.integers(row)) if row else 0
    coefficients = (float(rng.choice([0, 1, -0.0, 0.37, -2.5, 1e-40, 3e38])) for _ in range(4))
    rows = kind * rows_of(count, row, first) if row else 0
    return PREDICTION.pack(kind, row, first, *coefficients) + rng.bytes(rows)


def cases(seed: int, count: int, most_elements: int = 700) -> Iterator[Case]:
    """`count` cases of up to that many elements."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        element = int(rng.integers(8))
        yield case(rng, element, int(rng.integers(1, most_elements)), int(rng.integers(width_of(element))))


FIELDS = struct.Struct("<6BH5I")


def damaged(rng: np.random.Generator, payload: bytes, other: bytes) -> bytes:
    """A payload with a fault of one of many sorts; `other` is one to splice with."""
    data = bytearray(payload)
    match int(rng.integers(10)):
        case 0:  # a few bits anywhere
            for place in rng.integers(0, len(data), rng.integers(1, 4)):
                data[place] ^= 1 << int(rng.integers(8))
        case 1:  # cut short
            del data[int(rng.integers(len(data))) :]
        case 2:  # longer
            data += rng.bytes(int(rng.integers(1, 300)))
        case 3:  # a byte of the header
            data[int(rng.integers(HEADER_BYTES))] = int(rng.integers(256))
        case 4:  # the front of one, the back of another
            at = int(rng.integers(min(len(data), len(other))))
            data[at:] = other[at:]
        case 5:  # one field up and another down, so that the length still fits
            fields = list(FIELDS.unpack_from(data))
            up, down = (int(n) for n in rng.choice([8, 9], 2, replace=False))
            amount = int(rng.integers(1, 9))
            fields[up] = min(fields[up] + amount, (1 << 32) - 1)
            fields[down] = max(fields[down] - amount, 0)
            data[: FIELDS.size] = FIELDS.pack(*fields)
        case 6:  # a run of bytes replaced
            at, size = int(rng.integers(len(data))), int(rng.integers(1, 80))
            data[at : at + size] = rng.bytes(len(data[at : at + size]))
        case 7:  # lane states
            at = len(data) - 4 * int(rng.integers(1, 65))
            data[at : at + 4] = struct.pack(
                "<I", int(rng.choice([0, 1, 0x7FFF, 0x8000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]))
            )
        case 8:  # what stands where predictions do
            at = HEADER_BYTES + 32 + 4 * int(rng.integers(7))
            data[at : at + 4] = struct.pack("<I", int(rng.choice([0, 1, 2, 3, 5, 400, 0x7F800000, 0xFFFFFFFF])))
        case _:  # a header of random fields over the rest
            fields = [1, *(int(rng.integers(n)) for n in (9, 5, 18, 5, 18)), *rng.integers(0, 4096, 6)]
            data[: FIELDS.size] = FIELDS.pack(*(int(f) for f in fields))
    return bytes(data)


def lengthened(case: Case, length: int) -> Case:
    """The same references for a block of another length."""
    fit = lambda data: None if data is None else (data * (length // max(len(data), 1) + 1))[:length]  # noqa: E731
    return replace(case, base=fit(case.base), sibling=fit(case.sibling))


# ---- kernels


@pytest.fixture
def force(monkeypatch: pytest.MonkeyPatch) -> Iterator[functools.partial[None]]:
    """Choose the kernel for this test."""

    def chosen(name: str) -> None:
        monkeypatch.setenv(kernel.VARIABLE, name)
        kernel.variant.cache_clear()

    yield functools.partial(chosen)
    kernel.variant.cache_clear()


def native_encode(of: Case, variant: str) -> bytes | None:
    digest = None if of.sibling is None else b"d" * 32
    made = kernel._kernel.encode(
        of.block, of.element, of.tokens, of.source, of.base, of.sibling, digest, of.prediction, of.row, of.first,
        1 << 40, variant,
    )  # fmt: skip
    return None if made is None else bytes(made)


def native_decode(payload: bytes, length: int, of: Case, variant: str) -> bytes | None:
    """The block, or None where the payload is damaged."""
    made = kernel._kernel.decode(payload, length, of.base, of.sibling, variant)
    return None if isinstance(made, int) else bytes(made)


def twin_decode(payload: bytes, length: int, of: Case) -> bytes | None:
    try:
        return twin.decode(payload, length, of.base, of.sibling)
    except Damaged:
        return None


def check(of: Case, variants: list[str]) -> None:
    expected = of.reference()
    assert twin.decode(expected, len(of.block), of.base, of.sibling) == of.block
    for variant in variants:
        made = native_encode(of, variant)
        assert made is None or made == expected, variant
        assert (made is not None) == (len(expected) < len(of.block) + len(of.block) // 4 + 1024), variant
        assert native_decode(expected, len(of.block), of, variant) == of.block, variant
        assert kernel._kernel.prove(expected, of.block, of.base, of.sibling, variant) == 0, variant


def test_the_native_kernel_is_there_when_a_compiler_is() -> None:
    assert NATIVE or shutil.which("cc") is None or shutil.which("gcc") is None


# ---- the same bytes


@pytest.mark.parametrize("element", range(8))
def test_every_small_length_is_the_same_everywhere(element: int) -> None:
    width = width_of(element)
    rng = np.random.default_rng(SEED + element)
    for length in range(width, 201):
        check(case(rng, element, length // width, length % width), NATIVE)


@pytest.mark.parametrize("element", range(8))
@pytest.mark.parametrize("count", [255, 1023, 4095, 4096, 4097, 4160, 8191, 12345])
def test_lengths_around_groups_and_chunks(element: int, count: int) -> None:
    rng = np.random.default_rng(count + element)
    for _ in range(2):
        check(case(rng, element, count, int(rng.integers(width_of(element)))), NATIVE)


@pytest.mark.parametrize("element", [0, 4, 5, 6])
@pytest.mark.parametrize("count", [65_535, 65_536, 65_537, 131_073])
def test_lengths_from_which_only_some_elements_are_counted(element: int, count: int) -> None:
    check(case(np.random.default_rng(count + element), element, count, 0), NATIVE)


@pytest.mark.parametrize(("element", "tokens", "source"), [(5, True, 1), (6, True, 1), (5, False, 4), (6, False, 0)])
def test_symbols_that_were_not_counted_have_a_place(element: int, tokens: bool, source: int) -> None:
    """Rare ones, of one parity only, beside those that are counted: in long blocks every other run is."""
    rng, width, count = np.random.default_rng(element), width_of(element), 150_000
    base = words(rng, count, width, "normal")
    step = rng.integers(0, 3, count) * 2 + (rng.random(count) < 0.5) * 40
    rare = rng.random(count) < 2e-4
    step[rare] = rng.integers(0, 1 << (8 * width - 8), int(rare.sum()))
    block = (base + step.astype(base.dtype)).tobytes()
    row = (384, 7) if source == 4 else (0, 0)
    check(Case(block, element, tokens, source, base.tobytes() if tokens else None, None, None, *row), NATIVE)


@pytest.mark.parametrize("dtype", ["BF16", "F32", "F64"])
@pytest.mark.parametrize("kind", KINDS)
def test_whole_blocks_against_every_sort_of_base(dtype: str, kind: str) -> None:
    element = ELEMENTS[dtype]
    width = width_of(element)
    rng = np.random.default_rng(len(kind))
    block, base, sibling = (words(rng, 20_000, width, k).tobytes() for k in (kind, "normal", "positive"))
    check(Case(block, element, False, 0, None, None), NATIVE)
    check(Case(block, element, True, 3, base, sibling), NATIVE)


def test_every_16_bit_pattern_against_every_other() -> None:
    patterns = np.arange(1 << 16, dtype="<u2")
    for turn in (1, 0x7FFF, 0x8001, 40_503):
        check(Case((patterns * turn).astype("<u2").tobytes(), 5, True, 1, patterns.tobytes(), None), NATIVE)


@each_variant
def test_as_many_groups_as_the_format_allows_are_read(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other encoders may make more than this one, also far apart."""
    monkeypatch.setattr(twin_model, "GROUPS_MADE", GROUPS_MAX)
    rng, most = np.random.default_rng(SEED), 0
    for element, sparse in itertools.product((5, 6), (False, True)):
        count, width = 60_000, width_of(element)
        base = words(rng, count, width, "noise")
        exponents = base >> (8 * width - 9) & 255
        step = (exponents // 16 + rng.integers(0, 3, count)).astype(base.dtype)  # of 16 ranges each has its own steps
        block = np.where(rng.random(count) < (0.2 if sparse else 1), base ^ step, base)
        of = Case(block.tobytes(), element, True, 1, base.tobytes(), None)
        made = of.reference()
        most = max(most, made[5])
        assert native_decode(made, len(of.block), of, variant) == of.block
    assert most > twin_model.GROUPS_MADE // 2


@pytest.mark.long
def test_many_more_cases_are_the_same_everywhere() -> None:
    for of in cases(SEED, 20_000, 9000):
        check(of, NATIVE)


# ---- damage


def fuzz(variant: str, seed: int, count: int, twin_every: int) -> tuple[int, int]:
    """Decode `count` damaged payloads; every `twin_every`-th must be judged alike by the twin. Returns how many
    were refused, and how many decoded (to bytes that only a digest can tell from the right ones)."""
    rng = np.random.default_rng(seed)
    sources = [(of, of.reference()) for of in cases(seed, 60)]
    refused = 0
    for turn in range(count):
        (of, payload), (_, other) = (sources[int(rng.integers(len(sources)))] for _ in range(2))
        length = len(of.block)
        if rng.random() < 0.1:
            length = max(0, length + int(rng.integers(-20, 20)))
            of = lengthened(of, length)
        bad = damaged(rng, payload, other)
        found = native_decode(bad, length, of, variant)
        assert found is None or len(found) == length
        refused += found is None
        if length == len(of.block):
            proof = kernel._kernel.prove(bad, of.block, of.base, of.sibling, variant)
            assert (proof == 0) == (found == of.block)
        if turn % twin_every == 0:
            assert twin_decode(bad, length, of) == found
    return refused, count - refused


@each_variant
def test_damaged_payloads_are_refused_or_decode_as_the_twin_does(variant: str) -> None:
    refused, decoded = fuzz(variant, SEED, 10_000, 20)
    assert refused > 5000
    assert decoded > 0  # raw bits have no redundancy: their damage is for the digest


@pytest.mark.long
@pytest.mark.timeout(3600)
@each_variant
def test_a_million_damaged_payloads(variant: str) -> None:
    for part in range(100):
        fuzz(variant, 1000 + part, 10_000, 500)


def test_the_twin_refuses_damage_by_name_only() -> None:
    """Whatever is wrong, it is `Damaged`: no other error and no endless loop."""
    rng = np.random.default_rng(SEED)
    sources = [(of, of.reference()) for of in cases(SEED + 1, 20, 200)]
    for _ in range(1500):
        (of, payload), (_, other) = (sources[int(rng.integers(len(sources)))] for _ in range(2))
        twin_decode(damaged(rng, payload, other), len(of.block), of)


@each_variant
def test_cut_payloads_are_refused(variant: str) -> None:
    for of in cases(SEED + 2, 12, 300):
        payload = of.reference()
        for size in range(len(payload)):
            assert native_decode(payload[:size], len(of.block), of, variant) is None


@each_variant
def test_a_payload_of_another_block_is_not_proven(variant: str) -> None:
    """Wherever the blocks part: the decoder compares a chunk at a time, and the bytes after the last element."""
    for of in cases(SEED + 4, 150, 9000):
        payload, places = of.reference(), np.random.default_rng(len(of.block)).integers(0, len(of.block), 3)
        for place in (0, len(of.block) - 1, *places):
            other = bytearray(of.block)
            other[place] ^= 1
            assert kernel._kernel.prove(payload, other, of.base, of.sibling, variant) == 7
        assert kernel._kernel.prove(payload, of.block + b"!", None, None, variant) != 0


@each_variant
def test_missing_and_unfit_references_are_refused(variant: str) -> None:
    of = next(c for c in cases(SEED, 500) if c.source == 3 and c.element & FLOAT)
    payload, length = of.reference(), len(of.block)
    assert kernel._kernel.decode(payload, length, None, of.sibling, variant) == 2
    assert kernel._kernel.decode(payload, length, of.base, None, variant) == 2
    with pytest.raises(ValueError, match="bytes where"):
        kernel._kernel.decode(payload, length, of.base + b"!", of.sibling, variant)  # type: ignore[operator]
    with pytest.raises(Damaged, match="with a base of"):
        kernel.decode(payload, len(of.block), base=b"!", sibling=of.sibling)


def test_arguments_that_do_not_go_together_are_refused() -> None:
    if not NATIVE:
        pytest.skip("no native kernel")
    block, line = bytes(64), PREDICTION.pack(LINE, 0, 0, 0.5, 0, 0, 0)
    for arguments in (
        (8, False, 0, None, None, None, None), (5, False, 4, None, None, None, None),
        (5, False, 1, None, None, None, None), (5, False, 2, None, block, None, None),
        (1, False, 0, None, None, None, None), (5, False, 0, None, block, b"d" * 32, None),
        (5, True, 1, block, block, b"d" * 32, line), (6, False, 1, block, block, b"d" * 32, line),
        (6, True, 1, block, None, None, line), (6, True, 2, block, block, b"d" * 32, line),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="do not go together"):
            kernel._kernel.encode(block, *arguments, 0, 0, 1000, None)
    strange = ((3, 0, 0, 0, 0, 0, 0), (1, 2, 2, 0, 0, 0, 0), (1, 0, 0, float("inf"), 0, 0, 0), (1, 4, 0, 0, 0, 0, 0))
    for wrong in (b"", line[:-1], line + b"x", *(PREDICTION.pack(*fields) for fields in strange)):
        with pytest.raises(ValueError, match="no prediction"):
            kernel._kernel.encode(block, 6, True, 1, block, block, b"d" * 32, wrong, 0, 0, 1000, None)
    with pytest.raises(ValueError, match="does not run"):
        kernel._kernel.encode(block, 5, False, 0, None, None, None, None, 0, 0, 1000, "pentium")
    for arguments in (
        (8, None, None, None, 0, 0, 0), (5, None, block, None, 0, 0, 0), (5, None, None, None, 0, 4, 4),
        (5, block, block, b"d" * 32, LINE, 0, 0), (6, None, block, b"d" * 32, LINE, 0, 0),
        (6, block, None, None, SQUARE, 0, 0), (6, block, block, b"d" * 32, 3, 0, 0),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="do not go together"):
            kernel._kernel.pack(block, *arguments, False, 1000, None)
    with pytest.raises(ValueError, match="less than no bytes"):
        kernel._kernel.decode(block, -1, None, None, None)


# ---- which kernel


def test_the_environment_forces_a_kernel(force: functools.partial[None], caplog: pytest.LogCaptureFixture) -> None:
    block = words(np.random.default_rng(1), 5000, 2, "normal").tobytes()
    written = {}
    for name in kernel.variants():
        with caplog.at_level(logging.DEBUG, logger="gpu_train_cas.codecs.kernel"):
            force(name)
            assert kernel.variant() == name
        assert f"float kernel: {name}" in caplog.text
        written[name] = bytes(kernel.encode(block, 5, 1 << 20, tokens=False) or b"")
        assert bytes(kernel.decode(written[name], len(block))) == block
    assert len(set(written.values())) == 1


def test_a_kernel_that_is_not_there_is_named(force: functools.partial[None]) -> None:
    force("abacus")
    with pytest.raises(UsageError, match=r"GPU_TRAIN_KERNEL=abacus: no such kernel runs here; it can be .*numpy"):
        kernel.variant()


def test_without_a_native_kernel_blocks_are_planes_and_payloads_are_still_read(force: functools.partial[None]) -> None:
    block = words(np.random.default_rng(2), 50_000, 2, "normal").tobytes()
    base = Reference(b"b" * 32, block[2:] + b"ab")
    native = [encode(block, "BF16"), encode(block, "BF16", base=base)]
    force(kernel.NUMPY)
    stored = encode(block, "BF16", base=base)
    assert stored.codec is Codec.FLOAT
    assert stored.payload[0] == 0
    for each in [stored, *native]:
        data = base.data if each.codec is Codec.DELTA else None
        assert bytes(decode(each.codec, each.payload, len(block), base=data)) == block


# ---- how a block is packed


def test_every_variant_packs_in_the_same_way() -> None:
    """Samples are judged in whole numbers. Plain C leaves blocks without contexts to planes."""
    for of in cases(SEED + 5, 300, 40_000):
        digest = None if of.sibling is None else b"d" * 32
        predicts = 0 if of.prediction is None else of.prediction[0]
        packed = []
        for variant in NATIVE:
            limit = len(of.block)
            made, bits = kernel._kernel.pack(
                of.block,
                of.element,
                of.base,
                of.sibling,
                digest,
                predicts,
                of.row,
                of.first,
                of.row % 2,
                limit,
                variant,
            )
            assert not bits & kernel._kernel.WRONG
            assert made is None or len(memoryview(made)) < limit
            if variant != "scalar" or (made is not None and bits & kernel._kernel.DELTA):
                packed.append((None if made is None else bytes(made), bits & ~kernel._kernel.REGULAR))
            if made is not None:
                base = of.base if bits & kernel._kernel.DELTA else None
                assert native_decode(bytes(made), limit, replace(of, base=base), variant) == of.block
        assert len(set(packed)) <= 1


# ---- in the race


def trained(seed: int, count: int = MIB // 4) -> tuple[bytes, bytes, bytes, bytes]:
    """An FP32 first moment before and after, and the second moment before and after, as Adam makes them."""
    rng = np.random.default_rng(seed)
    scale = np.exp(rng.standard_normal(count) * 3 - 12)
    before = rng.standard_normal(count) * scale
    after = 0.7 * before + 0.2 * rng.standard_normal(count) * scale
    second = [(scale**2 * rng.gamma(4, 0.25, count)).astype("<f4").tobytes() for _ in range(2)]
    return before.astype("<f4").tobytes(), after.astype("<f4").tobytes(), second[0], second[1]


needs_native = pytest.mark.skipif(not NATIVE, reason="deltas are written by the native kernel only")


@needs_native
def test_a_block_near_its_base_is_stored_as_delta() -> None:
    rng = np.random.default_rng(4)
    before = (rng.standard_normal(MIB // 2) * 0.02).astype("<f4").view("<u4") >> 16
    after = before + (rng.random(MIB // 2) < 0.05)
    base = Reference(b"b" * 32, before.astype("<u2").tobytes())
    block = after.astype("<u2").tobytes()
    stored = encode(block, "BF16", base=base)
    assert (stored.codec, stored.base, stored.sibling) == (Codec.DELTA, base.digest, None)
    assert len(stored.payload) < 0.04 * MIB
    assert bytes(decode(stored.codec, stored.payload, MIB, base=base.data)) == block
    with pytest.raises(Damaged, match="without its base"):
        decode(stored.codec, stored.payload, MIB)


@needs_native
def test_a_base_that_does_not_help_is_not_used() -> None:
    block, other = (words(np.random.default_rng(n), MIB // 4, 4, "normal").tobytes() for n in (5, 6))
    stored = encode(block, "F32", base=Reference(b"b" * 32, other))
    assert (stored.codec, stored.base) == (Codec.FLOAT, None)
    short = encode(block, "F32", base=Reference(b"b" * 32, block[:-4]))
    assert (short.codec, short.base) == (Codec.FLOAT, None)


@needs_native
def test_a_sibling_helps_alone_and_beside_a_base() -> None:
    before, block, _, second = trained(7)
    base, sibling = Reference(b"b" * 32, before), Reference(b"s" * 32, second)
    plain, with_sibling = encode(block, "F32"), encode(block, "F32", sibling=sibling)
    delta, both = encode(block, "F32", base=base), encode(block, "F32", base=base, sibling=sibling)
    sizes = [len(stored.payload) for stored in (plain, with_sibling, delta, both)]
    assert sizes[1] < 0.99 * sizes[0]
    assert sizes[3] < sizes[2] < 0.99 * sizes[0]
    assert (with_sibling.codec, with_sibling.sibling) == (Codec.FLOAT, sibling.digest)
    assert (both.codec, both.base, both.sibling) == (Codec.DELTA, base.digest, sibling.digest)
    for stored in (with_sibling, both):
        assert sibling_of(stored.payload[: HEADER_BYTES + 32]) == sibling.digest
        assert bytes(decode(stored.codec, stored.payload, MIB, base=before, sibling=second)) == block
        with pytest.raises(Damaged, match="needs another block"):
            decode(stored.codec, stored.payload, MIB, base=before)
    assert sibling_of(plain.payload) is None
    assert sibling_of(b"") is None


def heading(seed: int, rows: int = 512, row: int = 512) -> list[np.ndarray]:
    """Three states of F32 weights that go on in the direction that each row has."""
    rng = np.random.default_rng(seed)
    first = rng.standard_normal((rows, row)) * 0.02
    step, pace = rng.standard_normal((rows, row)) * 1e-4, rng.random((rows, 1))
    noise = rng.standard_normal((rows, row)) * 2e-6
    return [state.astype("<f4") for state in (first, first + step, first + step * (1 + pace) + noise)]


@needs_native
def test_a_tensor_is_predicted_from_where_it_was_heading() -> None:
    before, base, now = (state.tobytes() for state in heading(5))
    plain = encode(now, "F32", base=Reference(b"b" * 32, base))
    earlier = Reference(b"e" * 32, before, Role.EARLIER)
    flat = encode(now, "F32", base=Reference(b"b" * 32, base), sibling=earlier)
    by_rows = encode(now, "F32", base=Reference(b"b" * 32, base), sibling=earlier, grid=Grid(512, 0, False))
    assert (by_rows.codec, by_rows.base, by_rows.sibling) == (Codec.DELTA, b"b" * 32, b"e" * 32)
    assert len(by_rows.payload) < 0.97 * len(flat.payload) < 0.97 * 0.97 * len(plain.payload)
    for stored in (flat, by_rows):
        assert bytes(decode(stored.codec, stored.payload, MIB, base=base, sibling=before)) == now
        assert twin.decode(stored.payload, MIB, base, before) == now
    shifted = encode(now, "F32", base=Reference(b"b" * 32, base), sibling=earlier, grid=Grid(512, 100, False))
    assert bytes(decode(shifted.codec, shifted.payload, MIB, base=base, sibling=before)) == now


@needs_native
def test_a_second_moment_is_predicted_from_the_first() -> None:
    rng = np.random.default_rng(6)
    scale = np.exp(rng.standard_normal(MIB // 4)) * 1e-4
    first = (rng.standard_normal(MIB // 4) * scale).astype("<f4")
    before = (scale**2 * rng.gamma(2, 0.5, MIB // 4)).astype("<f4")
    now = (0.98 * before + 0.02 * first**2 * (1 + rng.random(MIB // 4) * 0.02)).astype("<f4").tobytes()
    base, sibling = Reference(b"b" * 32, before.tobytes()), Reference(b"m" * 32, first.tobytes(), Role.FIRST_MOMENT)
    plain, predicted = encode(now, "F32", base=base), encode(now, "F32", base=base, sibling=sibling)
    assert predicted.sibling == b"m" * 32
    assert len(predicted.payload) < 0.9 * len(plain.payload)
    assert bytes(decode(predicted.codec, predicted.payload, MIB, base=base.data, sibling=sibling.data)) == now


@needs_native
@pytest.mark.parametrize("role", [Role.EARLIER, Role.FIRST_MOMENT])
def test_a_prediction_that_says_nothing_is_not_used(role: Role) -> None:
    before, base, now = (state.tobytes() for state in heading(7))
    for useless in (np.random.default_rng(8).bytes(MIB), bytes(MIB), base, b"\xff" * MIB):
        stored = encode(now, "F32", base=Reference(b"b" * 32, base), sibling=Reference(b"u" * 32, useless, role))
        assert (stored.codec, stored.sibling) == (Codec.DELTA, None)
    other = encode(now, "BF16", base=Reference(b"b" * 32, base), sibling=Reference(b"e" * 32, before, role))
    assert other.sibling is None


@needs_native
def test_predictions_do_not_depend_on_how_the_thread_treats_denormals() -> None:
    torch = pytest.importorskip("torch")
    tiny = (np.arange(1, MIB // 4 + 1, dtype="<u4") % 5000).tobytes()  # all of them denormal, as F32
    line = PREDICTION.pack(LINE, 0, 0, 0.5, 0, 0, 0)
    before = np.frombuffer(tiny, "<u4") // 2
    arguments = (True, 1, tiny, before.astype("<u4").tobytes(), b"d" * 32, line, 0, 0, 1 << 40)
    expected = {name: bytes(kernel._kernel.encode(tiny, 6, *arguments, name)) for name in NATIVE}
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush denormals")
    try:
        assert {name: bytes(kernel._kernel.encode(tiny, 6, *arguments, name)) for name in NATIVE} == expected
    finally:
        torch.set_flush_denormal(False)
    assert expected[NATIVE[0]] == twin.encode(tiny, 6, *arguments)


@needs_native
def test_a_wrong_base_gives_wrong_bytes_or_damage_but_never_the_block() -> None:
    before, block, second, _ = trained(8)
    stored = encode(block, "F32", base=Reference(b"b" * 32, before))
    for wrong in (second, bytes(MIB), before[4:] + b"abcd"):
        with contextlib.suppress(Damaged):
            assert bytes(decode(stored.codec, stored.payload, MIB, base=wrong)) != block


@needs_native
def test_moments_take_rows_and_columns_as_contexts() -> None:
    rng = np.random.default_rng(9)
    row = 384
    scale = np.exp(rng.standard_normal((MIB // 2 // row + 1, 1)) * 1.5 + rng.standard_normal((1, row)))
    second = (scale * rng.gamma(2, 0.5, scale.shape) * 1e-8).astype("<f4").view("<u4") >> 16
    block = second.astype("<u2").tobytes()[100 * 2 : 100 * 2 + MIB]
    plain, by_grid = encode(block, "BF16"), encode(block, "BF16", grid=Grid(row, 100))
    assert (by_grid.codec, by_grid.base, by_grid.sibling) == (Codec.FLOAT, None, None)
    assert len(by_grid.payload) < 0.9 * len(plain.payload)
    assert bytes(decode(by_grid.codec, by_grid.payload, MIB)) == block
    for useless in ((1 << 20, 5), (7, 3)):
        assert len(encode(block, "BF16", grid=Grid(*useless)).payload) < 1.01 * len(plain.payload)


@needs_native
@pytest.mark.parametrize(("row", "count"), [(12_000, MIB // 2), (1 << 18, MIB // 2), (48, 30_000), (5, 4_000)])
def test_rows_of_every_length_are_weighed_against_a_base(row: int, count: int) -> None:
    rng = np.random.default_rng(row)
    scale = np.exp(rng.standard_normal((count // row + 2, 1)) * 1.5 + rng.standard_normal((1, row))).ravel()
    second = (scale[row // 3 :][:count] * rng.gamma(2, 0.5, count) * 1e-8).astype("<f4").view("<u4") >> 16
    block, near = second.astype("<u2").tobytes(), (second ^ (rng.random(count) < 0.1)).astype("<u2").tobytes()
    far = rng.permutation(second).astype("<u2").tobytes()
    grid = Grid(row, row // 3)
    by_grid = encode(block, "BF16", grid=grid)
    for base, codec in ((near, Codec.DELTA), (far, Codec.FLOAT)):
        stored = encode(block, "BF16", grid=grid, base=Reference(b"b" * 32, base))
        assert (stored.codec is Codec.DELTA) == (codec is Codec.DELTA)
        assert len(stored.payload) <= len(by_grid.payload)
        assert bytes(decode(stored.codec, stored.payload, len(block), base=base)) == block


@needs_native
def test_numbers_that_were_cast_up_are_planes_also_beside_a_base() -> None:
    rng = np.random.default_rng(11)
    before = (rng.standard_normal(MIB // 4) * 0.02).astype("<f4").view("<u4") & 0xFFFF0000
    after = before + (rng.integers(-40, 40, MIB // 4).astype("<i4") << 16).astype("<u4")
    base = Reference(b"b" * 32, before.astype("<u4").tobytes())
    for stored in (encode(after.tobytes(), "F32"), encode(after.tobytes(), "F32", base=base)):
        assert stored.codec is Codec.FLOAT
        assert stored.payload[0] == 0
        assert len(stored.payload) < 0.36 * MIB
        assert bytes(decode(stored.codec, stored.payload, MIB)) == after.tobytes()


@needs_native
def test_mantissas_of_weights_and_moments_pass_for_noise() -> None:
    rng = np.random.default_rng(12)
    values = rng.standard_normal(MIB // 4).astype("<f4") * 0.02
    rows = np.where(np.arange(MIB // 4) // 512 % 3 == 0, values, 0)
    for block in (values, np.abs(values), rows, values.astype("<f2"), values.view("<u4") >> 16):
        dtype, data = {4: "F32", 2: "F16"}[block.itemsize], block.tobytes()
        if block.dtype.kind == "u":
            dtype, data = "BF16", block.astype("<u2").tobytes()
        _, bits = kernel._kernel.pack(data, ELEMENTS[dtype], None, None, None, 0, 0, 0, 0, len(data), NATIVE[0])
        assert not bits & (kernel._kernel.REGULAR | kernel._kernel.REPEATS | kernel._kernel.CONSTANT)


@needs_native
def test_zeros_in_a_block_cost_next_to_nothing() -> None:
    rng = np.random.default_rng(10)
    values = (rng.standard_normal((512, 512)) * 0.02).astype("<f4")
    values[rng.random(512) < 0.5] = 0
    stored = encode(values.tobytes(), "F32", grid=Grid(512, 0))
    assert stored.codec is Codec.FLOAT
    assert len(stored.payload) < 0.84 * np.count_nonzero(values) * 4 + 4096
    assert bytes(decode(stored.codec, stored.payload, MIB)) == values.tobytes()


# ---- planes


@needs_native
@pytest.mark.parametrize("width", [2, 4, 8])
@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("count", [1, 3, 64, 100_001])
def test_planes_are_the_same_with_and_without_a_native_kernel(
    width: int, rotated: bool, count: int, force: functools.partial[None]
) -> None:
    block, tail = np.random.default_rng(count).bytes(count * width), b"tail"[: width - 1]
    force(kernel.variants()[0])
    native = [bytes(plane) for plane in kernel.split(block + tail, width, rotated)]
    whole: list[kernel.Buffer] = [*native]
    constant: list[kernel.Buffer] = [b"c", *native[1:]]
    joined = [bytes(kernel.join(planes, count, rotated, tail)) for planes in (whole, constant)]
    assert joined[0] == block + tail
    assert [bytes(p) for p in kernel.split(joined[1], width, rotated)] == [b"c" * count, *native[1:]]
    force(kernel.NUMPY)
    assert [bytes(plane) for plane in kernel.split(block + tail, width, rotated)] == native
    assert [bytes(kernel.join(planes, count, rotated, tail)) for planes in (whole, constant)] == joined


@needs_native
def test_planes_that_do_not_fit_are_refused() -> None:
    for planes, count, width in (([b"ab"], 2, 2), ([b"ab", b"abc"], 2, 2), ([b"ab"] * 3, 2, 3), ([b"", b""], 0, 2)):
        with pytest.raises(ValueError, match="plane"):
            kernel._kernel.join(planes, count, width, False, b"")
    with pytest.raises(TypeError):
        kernel._kernel.join([b"ab", "ab"], 2, 2, False, b"")  # type: ignore[list-item]
    with pytest.raises(ValueError, match="no planes"):
        kernel._kernel.split(b"abc", 3, False)
