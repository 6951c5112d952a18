"""Which training step a checkpoint's name tells, and the order in which people read names."""

from __future__ import annotations

import re

VERSION_MARK = "~"
"""Between a checkpoint's name and its version: `ckpt.pt~2` is the second content seen under `ckpt.pt`."""

_LABELLED = re.compile(
    r"(?:step|iter(?:ation)?|ckpt|checkpoint|(?<![a-z])ba)s?[-_= ]?([0-9]{1,15})(?![0-9])", re.IGNORECASE
)
_NUMBER = re.compile(r"(?<![0-9A-Za-z])(?<![0-9]\.)([0-9]{1,15})(?![0-9A-Za-z]|\.[0-9])")
_NOT_STEPS = re.compile(
    r"(?:epoch|ep|rank|seed|version|part|shard|fold|run|state|states|v)[-_= ]?[0-9]+"
    r"|[0-9]+-of-[0-9]+|=[-+]?[0-9]*\.[0-9]+",
    re.IGNORECASE,
)
_SUFFIX = re.compile(r"(\.(?![0-9])[A-Za-z0-9]+)+$")
_VERSIONED = re.compile(r"(?:-v[0-9]+)$")
_DIGITS = re.compile(r"([0-9]+)")


def step_of(name: str) -> int | None:
    """The last step-like number of a checkpoint's name, or None.

    `checkpoint-500`, `global_step500`, `iter_0000500`, `epoch=3-step=500.ckpt`, `run/lora-000500.safetensors`
    and `500` all give 500. A number that is an epoch, a rank, a seed, a shard, a metric or a date is none.
    """
    parts = split_version(name)[0].split("/")
    for at, part in enumerate(reversed(parts)):
        stem = _VERSIONED.sub("", _SUFFIX.sub("", part))
        numbers = _LABELLED.findall(stem)
        if not numbers and at == 0:  # a bare number in a folder's name above is anything but a step
            numbers = _NUMBER.findall(_NOT_STEPS.sub(" ", stem))
        numbers = [n for n in numbers if not _is_date(n)]
        if numbers:
            return int(numbers[-1])
    return None


def _is_date(digits: str) -> bool:
    return len(digits) in (8, 14) and digits[:2] in ("19", "20") and digits[4:6] <= "12" and digits[6:8] <= "31"


def natural_key(name: str) -> tuple[tuple[str | tuple[int, str], ...], str]:
    """A sort key under which `checkpoint-1000` comes after `checkpoint-200`, and equal only for equal names."""
    parts = _DIGITS.split(name)
    key: list[str | tuple[int, str]] = []
    for at, part in enumerate(parts):
        # Digits compare by length without leading zeros, then as text: no int(), so no limit on their number.
        key.append((len(part.lstrip("0")), part.lstrip("0")) if at % 2 else part)
    return tuple(key), name


def split_version(name: str) -> tuple[str, int | None]:
    """A checkpoint's name without its version, and the version when the name tells one."""
    base, mark, digits = name.rpartition(VERSION_MARK)
    if mark and base and digits.isdecimal() and digits.isascii() and int(digits) >= 1:
        return base, int(digits)
    return name, None


def with_version(base: str, version: int) -> str:
    """The name of that version of `base`; the first one bears the plain name."""
    return base if version == 1 else f"{base}{VERSION_MARK}{version}"
