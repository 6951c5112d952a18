"""The rules for the frameworks that are known: how each writes a checkpoint, and by what it says that it is done.

The first rule that applies decides, so a framework that builds on another one comes before it. Each order of files was
read in the framework's source, and where it runs on a CPU recorded from a real run (tests/kit/orders.toml).
A rule without a sign of its own (`complete`, `named_in`) is there because its framework leaves long pauses between
files: what looks like one of its checkpoints must rest for `PAUSE_S` instead of `capture.settle_s`.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpu_train.capture.rules import Rulebook
from gpu_train.rule import Rule

PAUSE_S = 30.0
"""Gathering a sharded optimizer, or moving it off the GPUs, after the weights have been written can take that long."""

_FSDP_RANKS = "~{folder}__{rank}_*.distcp"
_ZERO_RANKS = "~{folder}*zero_pp_rank_{rank}_mp_rank_*"
_HF_RANKS = ("rng_state_{rank}.pth", _FSDP_RANKS, _ZERO_RANKS)
_ACCELERATE_RANKS = ("random_states_{rank}.pkl", _FSDP_RANKS, _ZERO_RANKS)

HUGGING_FACE = (
    # FSDP's sharded state, of the Trainer or of Accelerate: folders of torch.distributed.checkpoint, then the rest.
    Rule(
        "fsdp", having=("pytorch_model_fsdp_{n}/**",), complete=("trainer_state.json | random_states_0.pkl",),
        ranks=(*_HF_RANKS, *_ACCELERATE_RANKS), parts=("pytorch_model_fsdp_[0-9]*", "optimizer_[0-9]"),
    ),
    # transformers.Trainer: model, training_args.bin, optimizer, scheduler, RNG state, trainer_state.json by the main
    # rank; each other rank's RNG state comes long before, or after. 4.36 to 4.45 wrote under a temporary name.
    Rule(
        "hf-trainer", ("checkpoint-[0-9]*",), ("training_args.bin",), ("trainer_state.json",),
        writing=("checkpoint-is-incomplete.txt",), temporary=("tmp-{name}",), ranks=_HF_RANKS,
    ),
    *(
        Rule("hf-trainer", ("checkpoint-[0-9]*",), (having,), ("trainer_state.json",), ranks=_HF_RANKS)
        for having in ("rng_state_{rank}.pth", "trainer_state.json")
    ),
    # Accelerator.save_state: model, optimizer, scheduler, sampler, scaler, random states by the main rank; objects that
    # the script registered (custom_checkpoint_N.pkl) follow, and other ranks' random states come before or after.
    # DeepSpeed's part is always called pytorch_model.
    Rule(
        "accelerate", having=("pytorch_model*/*_states.pt",), complete=("random_states_0.pkl",),
        ranks=_ACCELERATE_RANKS, parts=("pytorch_model", "pytorch_model_[0-9]"), rest_s=2.0,
    ),
    Rule(
        "accelerate", having=("random_states_*.pkl",), complete=("random_states_0.pkl",), ranks=_ACCELERATE_RANKS,
        rest_s=2.0,
    ),
    Rule("accelerate-begun", having=("optimizer*.bin",), rest_s=PAUSE_S),
    Rule("accelerate-begun", ("checkpoint_[0-9]*",), ("model*.safetensors",), rest_s=PAUSE_S),
    Rule("accelerate-begun", ("checkpoint_[0-9]*",), ("pytorch_model*.bin",), rest_s=PAUSE_S),
    Rule("hf-trainer-begun", ("checkpoint-[0-9]*",), ("config.json",), rest_s=PAUSE_S),
    Rule("hf-trainer-begun", ("checkpoint-[0-9]*",), ("*/config.json",), rest_s=PAUSE_S),
    Rule("hf-trainer-begun", ("checkpoint-[0-9]*",), ("adapter_model*",), rest_s=PAUSE_S),
    Rule("hf-trainer-begun", ("checkpoint-[0-9]*",), ("pytorch_lora_weights*",), rest_s=PAUSE_S),
    # SentenceTransformer.save: configuration, modules in folders of their own, modules.json; a README may follow.
    Rule(
        "sentence-transformers", having=("config_sentence_transformers.json",), complete=("modules.json",),
        parts=("~[0-9]_[A-Z]*",), rest_s=2.0,
    ),
    # A diffusers pipeline: each component in its folder, model_index.json last.
    Rule(
        "diffusers", having=("model_index.json",), complete=("model_index.json",),
        parts=(
            "~unet", "~unet_[0-9]", "~transformer", "~transformer_[0-9]", "~vae", "~vqvae", "~text_encoder",
            "~text_encoder_[0-9]", "~tokenizer", "~tokenizer_[0-9]", "~scheduler", "~safety_checker",
            "~feature_extractor", "~image_encoder", "~image_processor", "~controlnet", "~prior", "~decoder", "~movq",
        ),
    ),
    Rule("diffusers-begun", having=("{folder}diffusion_pytorch_model*",), rest_s=PAUSE_S),
    # peft writes the adapter before its configuration; a tokenizer may follow.
    Rule("peft", having=("adapter_model*", "adapter_config.json"), complete=("adapter_config.json",), rest_s=2.0),
    Rule("peft-begun", having=("adapter_model*",), rest_s=PAUSE_S),
)  # fmt: skip

DISTRIBUTED = (
    # Lightning's sharded checkpoints are folders: torch.distributed.checkpoint, then what only rank 0 knows.
    Rule("lightning", ("*.ckpt",), ("*.distcp",), (".metadata", "meta.pt")),
    # Megatron: everything, then the iteration's number in a text file beside it. Of its formats torch_dist ends
    # with metadata.json, torch_dcp with .metadata; the old one has a folder for each model-parallel rank.
    Rule(
        "megatron", ("iter_[0-9]*", "release"), ("common.pt",), ("metadata.json",),
        named_in=("../latest_checkpointed_iteration.txt",),
    ),
    Rule(
        "megatron", ("iter_[0-9]*", "release"), ("*.distcp",), (".metadata",),
        named_in=("../latest_checkpointed_iteration.txt",),
    ),
    Rule(
        "megatron", ("iter_[0-9]*", "release"), ("mp_rank_*/**",), ("mp_rank_*/model_optim_rng.pt",),
        named_in=("../latest_checkpointed_iteration.txt",),
        ranks=(
            "mp_rank_{tp}/model_optim_rng.pt", "mp_rank_{tp}_{pp}/model_optim_rng.pt",
            "mp_rank_{tp}_{pp}_{ep}/model_optim_rng.pt",
        ),
    ),
    # verl: the models in folders, then data.pt, then the step's number in Megatron's text file.
    Rule(
        "verl", ("global_step_[0-9]*",), ("{folder}*_world_size_{world}_rank_{rank}.pt",),
        named_in=("../latest_checkpointed_iteration.txt",),
        ranks=(
            "{folder}model_world_size_{world}_rank_{rank}.pt", "{folder}optim_world_size_{world}_rank_{rank}.pt",
            "{folder}extra_state_world_size_{world}_rank_{rank}.pt",
        ),
    ),
    # DeepSpeed: every rank's states in a folder that is called by a tag, then the tag in a text file beside it.
    *(
        Rule(
            "deepspeed", having=(having,), named_in=("{folder}../latest",),
            ranks=(
                "{folder}mp_rank_{mp}_model_states.pt", "{folder}zero_pp_rank_{dp}_mp_rank_{mp}_model_states.pt",
                "{folder}zero_pp_rank_{dp}_mp_rank_{mp}_optim_states.pt",
                "{folder}bf16_zero_pp_rank_{dp}_mp_rank_{mp}_optim_states.pt",
            ),
        )
        for having in ("{folder}*mp_rank_{mp}_*_states.pt", "{folder}layer_*-model_states.pt")
    ),
    # torch.distributed.checkpoint: shards, then .metadata by a rename. Ranks that save without talking to each other
    # have a metadata file each.
    Rule(
        "torch-dcp", having=("{folder}__{rank}_*.distcp",),
        complete=("{folder}.metadata | {folder}__{rank}.metadata",),
    ),
    Rule("torch-dcp", having=("{folder}*.distcp",), complete=("{folder}.metadata",)),
)  # fmt: skip

OTHERS = (
    # Orbax writes under a temporary name and notes in _CHECKPOINT_METADATA when it is done.
    Rule(
        "orbax", having=("_CHECKPOINT_METADATA",), complete=("_CHECKPOINT_METADATA",),
        writing=("*.orbax-checkpoint-tmp*",), temporary=("{name}.orbax-checkpoint-tmp*",),
    ),
    # NeMo keeps a marker beside a checkpoint for as long as it writes or deletes it.
    Rule("nemo", writing=("../{name}-unfinished", "../{stem}-unfinished")),
    # TensorFlow: shards of data, then the index. A SavedModel's graph comes after its variables.
    Rule(
        "saved-model", having=("variables/variables.*",), complete=("saved_model.pb",), parts=("variables",),
    ),
    Rule(
        "tensorflow", having=("{folder}{stem}.data-{n}-of-{total}",), complete=("{folder}{stem}.index",),
        together=("{stem}.index", "{stem}.data-{n}-of-{total}"),
    ),
    # What programs call a file that they have not finished.
    Rule("unfinished", writing=(".tmp*", "*.tmp", "*.tmp[0-9]*", "*.tmp.*", "*.partial", "*.part", "*.incomplete")),
    # Programs in which each rank writes a file of its own beside the others': Composer, fairseq, many scripts.
    *(
        Rule(
            "rank-files", having=(f"{{folder}}{{stem}}{mark}{{rank}}.{ending}",),
            together=(f"{{stem}}{mark}{{rank}}.{ending}",), ranks=(f"{{folder}}{{stem}}{mark}{{rank}}.{ending}",),
        )
        for mark in ("-rank", "_rank", "_rank_", "-shard") for ending in ("pt", "pth", "bin")
    ),
)  # fmt: skip

BUILT_IN = (*HUGGING_FACE, *DISTRIBUTED, *OTHERS)
"""In order; the first that applies decides."""

KNOWN = Rulebook(BUILT_IN)
"""The rules in force when the user has none of their own."""


def rulebook(own: Iterable[Rule]) -> Rulebook:
    """The rules in force: the user's own come first."""
    return Rulebook((*own, *BUILT_IN))
