"""Saying what goes wrong beside a training without stopping it: each kind of trouble once, through `logging`.

Light on purpose: a training script ends up here.
"""

from __future__ import annotations

LOGGER = "gpu_train"

_said: set[str] = set()


def complain(kind: str, text: str) -> None:
    """Log a warning, the first time that one of this kind comes up in this process."""
    if kind in _said:
        return
    _said.add(kind)
    import logging  # noqa: PLC0415  `import gpu_train` must cost a training nothing

    logging.getLogger(LOGGER).warning("gpu-train: %s", text)
