"""Writes like the Hugging Face Trainer with save_total_limit=1: checkpoint-N in its order of files, then rotation."""

import json
import os
import shutil
import sys

from writing import OUT, is_pinned, safetensors, torch_zip, wait_for

steps = int(os.environ.get("STEPS", "3"))
history = []
for step in range(10, 10 * steps + 1, 10):
    folder = OUT / f"checkpoint-{step}"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(safetensors(step))
    # What is all there when it is first seen, and deleted at once, may be the rest of something; this is not.
    wait_for(lambda folder=folder: is_pinned(folder))
    (folder / "config.json").write_text('{"model_type": "fake"}')
    (folder / "training_args.bin").write_bytes(torch_zip(0, 16))
    (folder / "optimizer.pt").write_bytes(torch_zip(step + 1))
    (folder / "scheduler.pt").write_bytes(torch_zip(step + 2, 16))
    (folder / "rng_state.pth").write_bytes(torch_zip(step + 3, 16))
    history.append({"epoch": step / 100, "loss": 1 / step, "learning_rate": 0.1, "step": step})
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": history}))
    print("saved", step)
    # Rotation comes at once; all that is asked of the agent is that it has seen the files.
    wait_for(lambda folder=folder: is_pinned(folder))
    for other in OUT.glob("checkpoint-*"):
        if other != folder or step == 10 * steps:
            shutil.rmtree(other)
sys.exit(int(os.environ.get("CODE", "0")))
