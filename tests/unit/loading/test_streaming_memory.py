"""Loading never holds two models: anonymous memory grows by less than 1.3 times the model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import save_file

ROWS, LAYERS, WIDTH = 8192, 17, 1024

SCRIPT = """
import json, sys, threading
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

from app.config.load_config import LoadConfig
from app.loading.loader import create_model_loader

directory, rows, width, layers = Path(sys.argv[1]), *map(int, sys.argv[2:])


class Weight(nn.Module):
    def __init__(self, num_rows, **shard_slices):
        super().__init__()
        # No initialisation: on the meta device it imports 75 MB of torch.
        self.weight = nn.Parameter(torch.empty(num_rows, width, dtype=torch.bfloat16))
        self.shard_slices = shard_slices


class Model(nn.Module):
    packed_modules_mapping = {"gate_up_proj": ("gate_proj", "up_proj")}

    def __init__(self, config, linear_kernel):
        super().__init__()
        shards = {"gate_proj": slice(0, width), "up_proj": slice(width, 2 * width)}
        self.model = nn.ModuleDict({
            "embed_tokens": Weight(rows),
            "layers": nn.ModuleList(
                nn.ModuleDict({"mlp": nn.ModuleDict({"gate_up_proj": Weight(2 * width, **shards)})})
                for _ in range(layers)
            ),
        })

    def process_weights_after_loading(self, load_config):
        pass

    def process_module_after_loading(self, module, load_config):
        pass


def anonymous_bytes():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) * 1024


def growth(load_format):
    path = directory / "model.gguf" if load_format == "gguf" else directory
    config = SimpleNamespace(
        model_path=path, dtype=torch.bfloat16, hf_config=SimpleNamespace(rope_parameters=None)
    )
    load_config = LoadConfig(
        load_format=load_format, download_dir=None, extra_config={}, revision=None
    )
    loader = create_model_loader(load_config, config)
    peak = before = anonymous_bytes()
    done = threading.Event()

    def watch():
        nonlocal peak
        while not done.wait(0.01):
            peak = max(peak, anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    model = loader.load_model(config, Model, "torch", torch.device("cpu"))
    done.set()
    watcher.join()
    size = sum(parameter.nbytes for parameter in model.parameters())
    return (max(peak, anonymous_bytes()) - before) / size


# What the first use of torch itself costs.
torch.randn(512, 512).bfloat16().float().sum()
formats = ("safetensors", "npcache", "layered", "gguf", "dummy")
print(json.dumps({load_format: growth(load_format) for load_format in formats}))
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 100 MB, the embedding in float32, so that casting has its chance to hold a copy."""
    directory = tmp_path_factory.mktemp("large")
    generator = torch.Generator().manual_seed(0)
    embedding = torch.randn(ROWS, WIDTH, generator=generator)
    tensors = {"model.embed_tokens.weight": embedding}
    writer = gguf.GGUFWriter(str(directory / "model.gguf"), "llama")
    writer.add_head_count(16)
    writer.add_tensor("token_embd.weight", embedding.half().numpy())
    for layer in range(LAYERS):
        for name in ("gate", "up"):
            weight = torch.randn(WIDTH, WIDTH, generator=generator)
            tensors[f"model.layers.{layer}.mlp.{name}_proj.weight"] = weight.bfloat16()
            writer.add_tensor(f"blk.{layer}.ffn_{name}.weight", weight.half().numpy())
    save_file(tensors, directory / "model.safetensors")
    torch.save(tensors, directory / "pytorch_model.bin")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return directory


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's /proc")
def test_anonymous_memory_stays_under_1_3_models(checkpoint: Path) -> None:
    arguments = [str(checkpoint), str(ROWS), str(WIDTH), str(LAYERS)]
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    growth = json.loads(result.stdout)
    assert len(growth) == 5
    for load_format, times in growth.items():
        # Less than the model itself would mean that nothing was measured.
        assert 0.9 < times < 1.3, (load_format, growth)
