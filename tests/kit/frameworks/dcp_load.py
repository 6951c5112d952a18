"""Loads what torch.distributed.checkpoint has saved on two ranks on one, by refs, without restoring it."""

import json
import sys

import tiny  # noqa: F401  one thread
import torch
import torch.distributed.checkpoint as dcp

from gpu_train.integrations.dcp import GpuTrainReader

said = {}
for ref in sys.argv[1:]:
    state = {"sharded": torch.zeros(8, 4), "whole": torch.tensor(0.0)}
    dcp.load(state, storage_reader=GpuTrainReader(ref), no_dist=True)
    said[ref.partition("@")[2]] = [state["sharded"].tolist(), state["whole"].item()]
print(json.dumps(said))
