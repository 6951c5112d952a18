"""Elements of tensors as numbers that numpy can reckon with, also where numpy has no such type (BF16, 8-bit floats)."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_train.tensors import NUMPY

INTEGERS = {"I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8"}
COMPLEX = {"C64": "<f4", "C128": "<f8"}
_EIGHT_BITS = {"F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}


def numbers(data: bytes | memoryview, dtype: str) -> NDArray[Any]:
    """The elements as numbers; `dtype` must be a key of `NUMPY`.

    Integers, F64, F32 and F16 as they are; BOOL as 0 and 1 (any byte but 0 is 1); BF16 and 8-bit floats as F32; complex
    numbers as pairs of floats.
    """
    found: NDArray[Any]
    if dtype == "BF16":
        found = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
        return found
    if dtype in _EIGHT_BITS:
        return np.asarray(values_of(dtype)[np.frombuffer(data, np.uint8)])
    if dtype == "BOOL":
        found = (np.frombuffer(data, np.uint8) != 0).view(np.uint8)
        return found
    found = np.frombuffer(data, COMPLEX.get(dtype) or NUMPY[dtype])
    return found


def sum_of_squares(values: NDArray[np.float64]) -> float:
    """Without BLAS, which would put threads of its own on each of ours."""
    return float(np.square(values).sum())


@functools.cache
def values_of(dtype: str) -> NDArray[np.float32]:
    """What each of the 256 bytes means in an 8-bit float.

    OCP 8-bit Floating Point Specification, 1.0; for E8M0 OCP Microscaling Formats (MX), 1.0; FNUZ (no infinities, one
    zero, biased by one more): arXiv:2206.02915.
    """
    return (_powers() if dtype == "F8_E8M0" else _floats(3 if "E4M3" in dtype else 2, dtype.endswith("FNUZ"))).astype(
        np.float32
    )


def _powers() -> NDArray[np.float64]:
    values = np.ldexp(1.0, np.arange(256) - 127)
    values[255] = np.nan
    return values


def _floats(mantissa_bits: int, unsigned_zero: bool) -> NDArray[np.float64]:
    byte = np.arange(256)
    bias = (7 if mantissa_bits == 3 else 15) + unsigned_zero
    exponent, mantissa = (byte & 0x7F) >> mantissa_bits, byte & ((1 << mantissa_bits) - 1)
    ones = np.where(exponent > 0, mantissa + (1 << mantissa_bits), mantissa)
    values: NDArray[np.float64] = np.ldexp(ones.astype(np.float64), np.maximum(exponent, 1) - bias - mantissa_bits)
    values *= np.where(byte & 0x80, -1.0, 1.0)
    if unsigned_zero:
        values[0x80] = np.nan
    elif mantissa_bits == 3:
        values[[0x7F, 0xFF]] = np.nan
    else:
        values[exponent == 31] = np.nan
        values[[0x7C, 0xFC]] = np.inf, -np.inf
    return values
