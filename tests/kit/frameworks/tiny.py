"""The smallest things that real frameworks train: one processor core, a second, the same numbers every time."""

import torch

torch.set_num_threads(1)


def token_rows(count: int = 32) -> list[dict[str, torch.Tensor]]:
    """Rows for a language model."""
    torch.manual_seed(1)
    return [{"input_ids": (row := torch.randint(0, 64, (8,))), "labels": row} for _ in range(count)]


def language_model():
    """A GPT-2 of a few thousand weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=1,
            loss_type="ForCausalLM",
        )
    )  # fmt: skip
