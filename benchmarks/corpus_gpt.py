"""The corpus' kinds that plain torch writes: a byte-level GPT like nanoGPT's, trained from scratch."""

from __future__ import annotations

import argparse
import math
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from corpus_text import load_text


def gpt(config: dict[str, Any]) -> Any:
    """The model, word embedding and output head tied."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.ln_1, self.ln_2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
            attention = dict(c_attn=nn.Linear(width, 3 * width, bias=False), c_proj=nn.Linear(width, width, bias=False))
            mlp = dict(c_fc=nn.Linear(width, 4 * width, bias=False), c_proj=nn.Linear(4 * width, width, bias=False))
            self.attn, self.mlp = nn.ModuleDict(attention), nn.ModuleDict(mlp)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, t, d = x.shape
            parts = self.attn.c_attn(self.ln_1(x)).split(d, 2)
            q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in parts)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.attn.c_proj(y.transpose(1, 2).reshape(b, t, d))
            return x + self.mlp.c_proj(functional.gelu(self.mlp.c_fc(self.ln_2(x))))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width, layers = config["n_embd"], config["n_layer"]
            parts = dict(
                wte=nn.Embedding(256, width),
                wpe=nn.Embedding(config["seq"], width),
                h=nn.ModuleList(Block(width, config["n_head"]) for _ in range(layers)),
                ln_f=nn.LayerNorm(width, bias=False),
            )
            self.transformer = nn.ModuleDict(parts)
            self.lm_head = nn.Linear(width, 256, bias=False)
            self.transformer.wte.weight = self.lm_head.weight
            for name, p in self.named_parameters():
                if p.dim() > 1:
                    residual = name.endswith("c_proj.weight")
                    nn.init.normal_(p, 0.0, 0.02 / (math.sqrt(2 * layers) if residual else 1))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            hidden = self.transformer.wte(x) + self.transformer.wpe.weight
            for block in self.transformer.h:
                hidden = block(hidden)
            logits = self.lm_head(self.transformer.ln_f(hidden))
            return functional.cross_entropy(logits.flatten(0, 1), y.flatten())

    return GPT()


def parts(
    config: dict[str, Any], options: argparse.Namespace, seed: int
) -> tuple[Any, Any, Callable[[], tuple[Any, Any]], Callable[[int], float]]:
    """The model, its AdamW, a function for a random batch, and the learning rate of a step."""
    import torch

    text = load_text(options.text, options.seed, 4_000_000).encode()
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    torch.manual_seed(options.seed)
    model = gpt(config)
    decay = [p for p in model.parameters() if p.dim() > 1]
    flat = [p for p in model.parameters() if p.dim() <= 1]
    groups = [dict(params=decay, weight_decay=0.1), dict(params=flat, weight_decay=0.0)]
    adam = torch.optim.AdamW(groups, lr=config["lr"], betas=(0.9, 0.95))
    rng = torch.Generator().manual_seed(seed)

    def batch() -> tuple[Any, Any]:
        at = torch.randint(len(data) - config["seq"] - 1, (config["batch"],), generator=rng)
        rows = torch.stack([data[i : i + config["seq"] + 1] for i in at.tolist()]).long()
        return rows[:, :-1], rows[:, 1:]

    def rate(step: int) -> float:
        warm = max(1, config["steps"] // 10)
        if step < warm:
            return float(config["lr"] * (step + 1) / warm)
        cosine = 1 + math.cos(math.pi * (step - warm) / max(1, config["steps"] - warm))
        return float(config["lr"] * (0.1 + 0.45 * cosine))

    return model, adam, batch, rate


def make_inplace(kind: str, config: dict[str, Any], options: argparse.Namespace) -> None:
    """torch-inplace: one ckpt.pt, overwritten at every save, each version copied aside."""
    import torch

    model, adam, batch, rate = parts(config, options, options.seed + 1)
    arguments = dict(
        n_layer=config["n_layer"], n_head=config["n_head"], n_embd=config["n_embd"],
        block_size=config["seq"], bias=False, vocab_size=256, dropout=0.0,
    )  # fmt: skip
    Path(kind).mkdir()
    best = 1e9
    for step in range(1, config["steps"] + 1):
        for group in adam.param_groups:
            group["lr"] = rate(step - 1)
        loss = model(*batch())
        adam.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        best = min(best, loss.item())
        if step % config["every"] == 0:
            state = {
                "model": model.state_dict(), "optimizer": adam.state_dict(), "model_args": arguments,
                "iter_num": step, "best_val_loss": best, "config": dict(config),
            }  # fmt: skip
            torch.save(state, f"{kind}/ckpt.pt")
            Path(kind, f"step-{step}").mkdir()
            shutil.copy(f"{kind}/ckpt.pt", f"{kind}/step-{step}/ckpt.pt")
            print(f"  step {step} loss {loss.item():.3f}", flush=True)
    if not options.keep_live:
        Path(kind, "ckpt.pt").unlink()


def dcp_rank(rank: int, kind: str, config: dict[str, Any], options: argparse.Namespace, meet: str) -> None:
    """One of the two ranks that train and save together; they meet over the file `meet`."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    import torch.distributed.checkpoint.filesystem as dcp_filesystem
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    warnings.filterwarnings("ignore")
    if hasattr(dcp_filesystem, "_generate_uuid"):  # a random id in .metadata, made repeatable
        dcp_filesystem._generate_uuid = lambda: f"00000000-0000-4000-8000-{options.seed:012d}"
    torch.set_num_threads(max(1, options.threads // 2))
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    model, adam, batch, rate = parts(config, options, options.seed + 1 + rank)
    names = {id(p): name for name, p in model.named_parameters()}

    def shard(value: Any) -> Any:
        if value.dim() == 0:
            return value
        local = value.detach().chunk(2)[rank].clone()
        return DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=value.shape, stride=value.stride())

    for step in range(1, config["steps"] + 1):
        for group in adam.param_groups:
            group["lr"] = rate(step - 1)
        loss = model(*batch())
        adam.zero_grad(set_to_none=True)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= 2
        adam.step()
        if step % config["every"] == 0:
            moments = {names[id(p)]: {k: shard(v) for k, v in s.items()} for p, s in adam.state.items()}
            groups = [{k: v for k, v in group.items() if k != "params"} for group in adam.param_groups]
            weights = {name: shard(value) for name, value in model.state_dict().items()}
            state = {"model": weights, "optim": {"state": moments, "param_groups": groups}, "iter": step}
            dcp.save(state, checkpoint_id=f"{kind}/step-{step}")
            if rank == 0:
                print(f"  step {step} loss {loss.item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def make_dcp(kind: str, config: dict[str, Any], options: argparse.Namespace) -> None:
    """dcp: two processes, each saving its half of every tensor."""
    import torch.multiprocessing

    Path(kind).mkdir()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(dcp_rank, (kind, config, options, os.path.join(folder, "meet")), nprocs=2)
