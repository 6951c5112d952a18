"""Callbacks for training frameworks, which say explicitly when a checkpoint is finished.

Capture finds checkpoints without them. With one of these the record's proof is `explicit`, the bytes are linked
aside before the framework goes on (so it may rotate as fast as it likes), and steps and metrics come with it.

    gpu_train.integrations.transformers       Hugging Face Trainer: GpuTrainCallback
    gpu_train.integrations.accelerate         Accelerate: save_state
    gpu_train.integrations.lightning          Lightning: GpuTrainCallback, GpuTrainCheckpointIO
    gpu_train.integrations.pytorch_lightning  the same for the package of that name
    gpu_train.integrations.dcp                torch.distributed.checkpoint: GpuTrainWriter, GpuTrainReader and others

Importing one imports its framework; `import gpu_train` imports none. Outside of a job they do nothing, and what
goes wrong on gpu-train's side is logged once (`handover`), never raised into the training.
"""
