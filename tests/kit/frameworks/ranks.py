"""Two ranks that save with Accelerate and with every writer for torch.distributed.checkpoint, and delete at once.

With the word `process`, instead, one asynchronous save in a process of its own.
"""

import json
import shutil
import sys

import tiny  # noqa: F401  one thread
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

import gpu_train
from gpu_train.integrations.accelerate import save_state
from gpu_train.integrations.dcp import (
    GpuTrainFsspecWriter,
    GpuTrainHuggingFaceWriter,
    GpuTrainWriter,
    commit_after,
)

out = gpu_train.checkpoint_dir()


def state(fill):
    """A tensor that is sharded over the ranks, and one that is not."""
    whole = torch.full((8, 4), float(fill))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {"sharded": distribute_tensor(whole, mesh, [Shard(0)]), "whole": torch.tensor(float(fill))}


def gone(name):
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(out / name)
    dist.barrier()


def with_accelerate(accelerator):
    model = accelerator.prepare(torch.nn.Linear(4, 2))
    for step in (50, 100):
        model(torch.ones(1, 4)).sum().backward()
        save_state(accelerator, step=step, metrics={"loss": torch.tensor(1 / step), "note": "no number"})
    gone("checkpoints/checkpoint_1")


def with_dcp():
    gpu_train.log({"loss": 0.5}, step=1)
    dcp.save(state(1), storage_writer=GpuTrainWriter(out / "step-1"))
    gone("step-1")
    writer = GpuTrainWriter(out / "step-2", metrics={"loss": torch.tensor(0.25)}, tags={"kind": "queued"})
    dcp.async_save(state(2), storage_writer=writer).result()
    gone("step-2")
    dcp.save(state(3), storage_writer=GpuTrainFsspecWriter(f"file://{out}/step-3", step=3))
    gone("step-3")
    dcp.save(state(4), storage_writer=GpuTrainHuggingFaceWriter(str(out / "step-4"), save_distributed=True))
    gone("step-4")
    writer = GpuTrainHuggingFaceWriter(str(out / "step-5"), save_distributed=True, enable_consolidation=True)
    dcp.save(state(5), storage_writer=writer)
    gone("step-5")
    dcp.save(state(6), storage_writer=GpuTrainWriter(out / "step-6"), use_collectives=False)
    gone("step-6")
    saving = dcp.async_save(state(7), checkpoint_id=out / "step-7")
    commit_after(saving, out / "step-7", metrics={"loss": 0.125}).result()
    gone("step-7")
    dcp.save(state(8), storage_writer=GpuTrainFsspecWriter("memory://step-8"))


def main():
    accelerator = Accelerator(
        cpu=True,
        project_config=ProjectConfiguration(project_dir=str(out), automatic_checkpoint_naming=True, total_limit=1),
    )
    if "process" in sys.argv:
        saving = AsyncCheckpointerType.PROCESS
        dcp.async_save(state(1), storage_writer=GpuTrainWriter(out / "step-1"), async_checkpointer_type=saving).result()
        gone("step-1")
    else:
        with_accelerate(accelerator)
        with_dcp()
    if dist.get_rank() == 0:
        print(json.dumps({"ranks": dist.get_world_size()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
