"""Writes tiny random checkpoints: real files of real architectures, in a fraction of a second.

`python -m app.testing.checkpoints [DIR]` writes those that `configs/tiny-*.yaml` name.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from app.config.model_path import models_root
from app.testing.drafts import write_noisy_draft
from app.testing.tokenizers import BOS_ID, EOS_ID, write_tokenizer

# Raise it when the files change, so that those in a cache are written again.
_RECIPE_VERSION = 1
_RECIPE_FILE = "recipe.json"
_SLIDING_WINDOW = 8

# family -> (model_type, config values of its own)
FAMILIES: Mapping[str, tuple[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "llama": ("llama", {}),
        "mistral": ("mistral", {"sliding_window": None}),
        "qwen2": ("qwen2", {}),
        "qwen3": ("qwen3", {"head_dim": 16}),
        # A window smaller than most test sequences, on every other layer.
        "gemma3": (
            "gemma3_text",
            {
                "head_dim": 16,
                "query_pre_attn_scalar": 16,
                "sliding_window": _SLIDING_WINDOW,
                "sliding_window_pattern": 2,
            },
        ),
        "gemma2": (
            "gemma2",
            {
                "head_dim": 16,
                "query_pre_attn_scalar": 16,
                "sliding_window": _SLIDING_WINDOW,
                "attn_logit_softcapping": 3.0,
                "final_logit_softcapping": 5.0,
            },
        ),
        "gpt2": ("gpt2", {}),
        "olmo2": ("olmo2", {}),
        "cohere": ("cohere", {"logit_scale": 1.0}),
        "qwen2_moe": (
            "qwen2_moe",
            {
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 16,
                "shared_expert_intermediate_size": 16,
            },
        ),
    }
)


def write_checkpoint(
    directory: Path,
    family: str = "llama",
    *,
    vocab_size: int = 320,
    num_layers: int = 4,
    hidden_size: int = 32,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    max_position_embeddings: int = 256,
    tie_word_embeddings: bool = False,
    seed: int = 0,
    logit_std: float = 2.0,
    overrides: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """Save a random float32 model of `family` with a tokenizer of `vocab_size` tokens.

    The same arguments give the same file. `overrides` are config values over those of the family.
    """
    if family not in FAMILIES:
        raise ValueError(f"family: {family!r} is unknown; known are {', '.join(FAMILIES)}")
    model_type, own_values = FAMILIES[family]
    values = {
        "vocab_size": vocab_size,
        "num_hidden_layers": num_layers,
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "max_position_embeddings": max_position_embeddings,
        "tie_word_embeddings": tie_word_embeddings,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": None,
        **own_values,
        **overrides,
    }
    config = CONFIG_MAPPING[model_type](**values)
    build: Any = AutoModelForCausalLM.from_config
    model: PreTrainedModel = build(config, dtype=torch.float32)
    randomize(model, seed=seed, logit_std=logit_std)
    model.save_pretrained(directory)
    write_tokenizer(directory, vocab_size)
    return directory


def randomize(model: PreTrainedModel, *, seed: int, logit_std: float = 2.0) -> None:
    """Give `model` random weights with which greedy decoding says something.

    The usual initialisation (std 0.02) makes all logits of a tiny model nearly equal: the best two
    differ by less than rounding, and the text repeats one token. Here each matrix keeps the size of
    what passes through it, so that every layer contributes, and the head gives logits of about
    `logit_std`. Biases and norm weights get noise too, so that one that is ignored shows.
    """
    generator = torch.Generator().manual_seed(seed)
    get_head: Any = model.get_output_embeddings
    heads = (model.get_input_embeddings().weight, get_head().weight)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if any(parameter is head for head in heads):
                parameter.copy_(noise * logit_std / parameter.shape[-1] ** 0.5)
            elif parameter.dim() > 1:
                # Square but for the MLP; which side is the input matters little here.
                parameter.copy_(noise / min(parameter.shape[-2:]) ** 0.5)
            else:
                parameter.add_(0.1 * noise)


def write_named_checkpoints(root: Path) -> None:
    """Write the checkpoints that the shipped configs name into `root`, unless they are there."""
    _write_once(root / "tiny-llama", lambda path: write_checkpoint(path, "llama"))
    _write_once(
        root / "tiny-llama-draft",
        lambda path: write_noisy_draft(root / "tiny-llama", path),
    )


def _write_once(directory: Path, write: Callable[[Path], object]) -> None:
    recipe = {"version": _RECIPE_VERSION}
    recipe_file = directory / _RECIPE_FILE
    if recipe_file.is_file() and json.loads(recipe_file.read_text(encoding="utf-8")) == recipe:
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    # Renamed when complete: another process never sees half a checkpoint.
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".tiny-") as scratch:
        complete = Path(scratch) / directory.name
        write(complete)
        (complete / _RECIPE_FILE).write_text(json.dumps(recipe), encoding="utf-8")
        if directory.exists():
            shutil.rmtree(directory)
        os.rename(complete, directory)


def main(arguments: list[str]) -> None:
    root = Path(arguments[0]) if arguments else models_root()
    write_named_checkpoints(root)
    print(f"tiny checkpoints are in {root}")


if __name__ == "__main__":
    main(sys.argv[1:])
