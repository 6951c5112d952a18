"""Train a small byte-level language model on the Python standard library's sources, in plain numpy.

It writes checkpoints the way Hugging Face's Trainer does: a folder `checkpoint-N` per save with the weights,
the optimizer, the random state and, last, `trainer_state.json`; then it deletes all but the newest two.
It asks gpu-train for one thing, where to write, and runs just as well without it.

    python demo/train.py                        # alone: writes to ./checkpoints
    gpu-train run -- python demo/train.py       # captured
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shutil
import sysconfig
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: for matrices this small, more threads only wait

import numpy as np
from numpy.typing import NDArray

import gpu_train

Floats = NDArray[np.float32]
Tensors = dict[str, Floats]

CONTEXT, EMBED, HIDDEN, BYTES = 16, 48, 768, 256
KEEP = 2  # as save_total_limit=2


def load_text(size_bytes: int) -> NDArray[np.uint8]:
    """The first `size_bytes` of the standard library's sources, in the order of their names."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= size_bytes:
            break
    return np.frombuffer(bytes(text[:size_bytes]), np.uint8)


def new_weights(rng: np.random.Generator) -> Tensors:
    """Random weights: a byte embedding, one hidden layer over the joined context, an output layer."""

    def normal(rows: int, columns: int) -> Floats:
        return (rng.standard_normal((rows, columns)) / math.sqrt(rows)).astype(np.float32)

    return {
        "embed.weight": normal(BYTES, EMBED) * np.float32(math.sqrt(BYTES / EMBED)),
        "hidden.weight": normal(CONTEXT * EMBED, HIDDEN),
        "hidden.bias": np.zeros(HIDDEN, np.float32),
        "output.weight": normal(HIDDEN, BYTES),
        "output.bias": np.zeros(BYTES, np.float32),
    }


def forward(weights: Tensors, context: NDArray[np.uint8]) -> tuple[Floats, Floats, Floats]:
    """The joined embeddings [n, CONTEXT * EMBED], the hidden layer [n, HIDDEN] and the logits [n, BYTES]."""
    joined = weights["embed.weight"][context].reshape(len(context), -1)
    hidden = np.tanh(joined @ weights["hidden.weight"] + weights["hidden.bias"])
    return joined, hidden, hidden @ weights["output.weight"] + weights["output.bias"]


def log_softmax(logits: Floats) -> Floats:
    """Log probabilities along the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def loss_and_gradients(
    weights: Tensors, context: NDArray[np.uint8], target: NDArray[np.uint8]
) -> tuple[float, Tensors]:
    """Mean cross-entropy in nats a byte, and its gradient for every weight."""
    joined, hidden, logits = forward(weights, context)
    rows = np.arange(len(target))
    log_p = log_softmax(logits)
    d_logits = np.exp(log_p)
    d_logits[rows, target] -= 1
    d_logits /= np.float32(len(target))
    d_hidden = (d_logits @ weights["output.weight"].T) * (1 - hidden * hidden)
    d_joined = d_hidden @ weights["hidden.weight"].T
    d_embed = np.zeros_like(weights["embed.weight"])
    np.add.at(d_embed, context.ravel(), d_joined.reshape(-1, EMBED))
    gradients = {
        "embed.weight": d_embed,
        "hidden.weight": joined.T @ d_hidden,
        "hidden.bias": d_hidden.sum(axis=0),
        "output.weight": hidden.T @ d_logits,
        "output.bias": d_logits.sum(axis=0),
    }
    return float(-log_p[rows, target].mean()), gradients


class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019), gradients clipped to norm 1."""

    def __init__(self, weights: Tensors, decay: float = 0.01) -> None:
        self.weights, self.decay, self.step_count = weights, decay, 0
        self.mean = {name: np.zeros_like(value) for name, value in weights.items()}
        self.variance = {name: np.zeros_like(value) for name, value in weights.items()}

    def step(self, gradients: Tensors, rate: float) -> float:
        """Update the weights in place; the gradients' norm before clipping."""
        self.step_count += 1
        norm = math.sqrt(sum(float(np.vdot(g, g)) for g in gradients.values()))
        scale = np.float32(min(1.0, 1.0 / (norm + 1e-6)))
        fast, slow = 1 - 0.9**self.step_count, 1 - 0.999**self.step_count
        for name, weight in self.weights.items():
            gradient, mean, variance = gradients[name] * scale, self.mean[name], self.variance[name]
            mean += np.float32(0.1) * (gradient - mean)
            variance += np.float32(0.001) * (gradient * gradient - variance)
            if weight.ndim > 1:
                weight *= np.float32(1 - rate * self.decay)
            spread = np.sqrt(variance / np.float32(slow)) + np.float32(1e-8)
            weight -= np.float32(rate / fast) * mean / spread
        return norm


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Warm up over the first tenth, then half a cosine down to a tenth of the peak."""
    warm = max(1, steps // 10)
    if step <= warm:
        return peak * step / warm
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm))))


def to_bf16(values: Floats) -> NDArray[np.uint16]:
    """The upper half of each float32, rounded to nearest even."""
    bits = values.view(np.uint32)
    rounded: NDArray[np.uint16] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded


def write_safetensors(path: Path, tensors: dict[str, tuple[str, NDArray[Any]]]) -> None:
    """Write named tensors, each with its dtype in safetensors' words: header length, header, bytes."""
    header: dict[str, object] = {"__metadata__": {"format": "np"}}
    end = 0
    for name, (dtype, array) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for _, array in tensors.values():
            out.write(array.tobytes())


def save(folder: Path, adam: AdamW, rng: np.random.Generator, state: dict[str, object]) -> None:
    """Write one checkpoint; `trainer_state.json` comes last and marks it as complete."""
    folder.mkdir()
    write_safetensors(
        folder / "model.safetensors",
        {name: ("BF16", to_bf16(value)) for name, value in adam.weights.items()},
    )
    parts = {"master": adam.weights, "exp_avg": adam.mean, "exp_avg_sq": adam.variance}
    write_safetensors(
        folder / "optimizer.safetensors",
        {f"{part}.{name}": ("F32", v) for part, group in parts.items() for name, v in group.items()},
    )
    config = {"model_type": "byte-mlp", "context": CONTEXT, "embed": EMBED, "hidden": HIDDEN, "vocab": BYTES}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "rng_state.json").write_text(json.dumps(rng.bit_generator.state))
    (folder / "trainer_state.json").write_text(json.dumps(state, indent=2))


def note_digests(folder: Path, witness: Path) -> None:
    """Append the SHA-256 of every file of a checkpoint to a file outside of it, for a later comparison."""
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}
    size_bytes = sum(path.stat().st_size for path in folder.iterdir())
    with witness.open("a") as out:
        out.write(json.dumps({"checkpoint": folder.name, "size_bytes": size_bytes, "files": files}) + "\n")


def train(arguments: argparse.Namespace) -> None:
    """The training loop: a step, now and then an evaluation and a checkpoint."""
    rng = np.random.default_rng(arguments.seed)
    text = load_text(2_000_000)
    windows = np.lib.stride_tricks.sliding_window_view(text, CONTEXT + 1)
    train_part, held_out = windows[: len(windows) * 9 // 10], windows[len(windows) * 9 // 10 :: 97]
    adam = AdamW(new_weights(rng))
    out = Path(gpu_train.checkpoint_dir())
    out.mkdir(parents=True, exist_ok=True)
    kept: list[Path] = []
    history: list[dict[str, float]] = []
    for step in range(1, arguments.steps + 1):
        batch = train_part[rng.integers(len(train_part), size=arguments.batch)]
        loss, gradients = loss_and_gradients(adam.weights, batch[:, :-1], batch[:, -1])
        rate = learning_rate(step, arguments.steps, arguments.rate)
        norm = adam.step(gradients, rate)
        if step % arguments.every:
            continue
        _, _, logits = forward(adam.weights, held_out[:, :-1])
        eval_loss = float(-log_softmax(logits)[np.arange(len(held_out)), held_out[:, -1]].mean())
        history += [
            {"step": step, "loss": loss, "learning_rate": rate, "grad_norm": norm},
            {"step": step, "eval_loss": eval_loss},
        ]
        print(f"step {step:4d}  loss {loss:.3f}  eval_loss {eval_loss:.3f}  lr {rate:.1e}", flush=True)
        folder = out / f"checkpoint-{step}"
        state = {"global_step": step, "max_steps": arguments.steps, "save_steps": arguments.every}
        save(folder, adam, rng, {**state, "log_history": history})
        kept.append(folder)
        if arguments.witness:
            note_digests(folder, arguments.witness)
        while len(kept) > KEEP:
            shutil.rmtree(kept.pop(0))


def main() -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--every", type=int, default=50, help="steps between two checkpoints")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rate", type=float, default=1e-3, help="peak learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--witness", type=Path, help="append each checkpoint's SHA-256 digests to this file")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
