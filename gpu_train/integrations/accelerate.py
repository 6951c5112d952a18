"""Accelerate: save the state of a training and commit it.

    from gpu_train.integrations.accelerate import save_state
    save_state(accelerator, gpu_train.checkpoint_dir() / f"checkpoint-{step}", step=step, metrics={"loss": loss})

Call it on every rank, in place of `accelerator.save_state`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from gpu_train.integrations import handover


def save_state(
    accelerator: Accelerator, output_dir: str | os.PathLike[str] | None = None, *, step: int | None = None,
    metrics: Mapping[str, Any] | None = None, tags: Mapping[str, str] | None = None, wait: bool = False,
    **options: Any,
) -> Path:  # fmt: skip
    """`accelerator.save_state`, then a commit by the first rank once all ranks have written; where it was saved.

    Args:
        accelerator: the training's.
        output_dir: None with `automatic_checkpoint_naming`, whose names count saves; give a step then.
        step, metrics, tags: of the checkpoint, as for `gpu_train.commit`; what is no number is left out.
        wait: return only once it is stored and verified.
        options: for `accelerator.save_state`.
    """
    where = accelerator.save_state(None if output_dir is None else os.fspath(output_dir), **options)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        handover.commit(where, step=step, metrics=metrics, tags=tags, wait=wait)
    return Path(where)
