"""What a removal frees, in words and for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_train_cli.output import warn
from gpu_train_cli.text import size

if TYPE_CHECKING:
    from gpu_train_cas import Forecast


def freed_fields(forecast: Forecast) -> dict[str, object]:
    """The numbers for programs; bytes as stored."""
    return {
        "freed_bytes": forecast.freed_bytes,
        "shared_bytes": forecast.shared_bytes,
        "held_bytes": forecast.held_bytes,
    }


def freed_words(forecast: Forecast, trash_days: float) -> str:
    """The same in a sentence: what becomes free at the most, when, and what does not."""
    words = f"`gpu-train gc` frees at most {size(forecast.freed_bytes)} of it, {trash_days:g} days from now"
    if forecast.shared_bytes:
        words += f"; {size(forecast.shared_bytes)} is shared with what stays"
    if forecast.held_bytes:
        words += f"; {size(forecast.held_bytes)} is needed to decode what stays"
    return words


def warn_unknown(forecast: Forecast) -> None:
    """Say of each record that cannot be read that it stands in gc's way."""
    for text in forecast.unknown:
        warn(f"{text}; gc frees nothing while that is so")
