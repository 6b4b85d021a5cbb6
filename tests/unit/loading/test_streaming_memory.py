"""Loading never holds two models: anonymous memory grows by less than 1.3 times the model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

# 32 MiB is the largest tensor, 100 MiB the whole: a second copy of everything would show.
ROWS, LAYERS = 8192, 17
WIDTH = 1024

SCRIPT = """
import json, sys
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

from app.config.load_config import LoadConfig
from app.loading.loader import create_model_loader

path, load_format, rows, width, layers = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])


class Embedding(nn.Module):
    # Not nn.Embedding: its initialisation on the meta device imports 75 MB of torch.
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width, dtype=torch.bfloat16))


class Layer(nn.Module):
    shard_slices = {"gate": slice(0, width), "up": slice(width, 2 * width)}

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2 * width, width, dtype=torch.bfloat16))


class Model(nn.Module):
    packed_modules_mapping = {"gate_up": ("gate", "up")}

    def __init__(self, config, linear_kernel):
        super().__init__()
        self.embed = Embedding()
        self.layers = nn.ModuleList(nn.ModuleDict({"gate_up": Layer()}) for _ in range(layers))

    def process_weights_after_loading(self, load_config):
        pass

    def process_module_after_loading(self, module, load_config):
        pass


def anonymous_bytes():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) * 1024


import threading

config = SimpleNamespace(model_path=path, dtype=torch.bfloat16)
load_config = LoadConfig(load_format=load_format, download_dir=None, extra_config={}, revision=None)
loader = create_model_loader(load_config, config)
# What the first use of torch itself costs.
torch.randn(512, 512).bfloat16().float().sum()
before = anonymous_bytes()
peak, done = before, threading.Event()


def watch():
    global peak
    while not done.wait(0.002):
        peak = max(peak, anonymous_bytes())


watcher = threading.Thread(target=watch)
watcher.start()
model = loader.load_model(config, Model, "torch", torch.device("cpu"))
done.set()
watcher.join()
peak = max(peak, anonymous_bytes())
size = sum(parameter.nbytes for parameter in model.parameters())
print(json.dumps({"size": size, "growth": peak - before}))
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 100 MB in float32 and bfloat16, so that casting has its chance to hold a copy."""
    directory = tmp_path_factory.mktemp("large")
    generator = torch.Generator().manual_seed(0)
    tensors = {"embed.weight": torch.randn(ROWS, WIDTH, generator=generator)}
    for layer in range(LAYERS):
        for name in ("gate", "up"):
            weight = torch.randn(WIDTH, WIDTH, generator=generator).bfloat16()
            tensors[f"layers.{layer}.{name}.weight"] = weight
    save_file(tensors, directory / "model.safetensors")
    torch.save(tensors, directory / "pytorch_model.bin")
    return directory


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("load_format", ["safetensors", "npcache", "layered", "dummy"])
def test_anonymous_memory_stays_under_1_3_models(checkpoint: Path, load_format: str) -> None:
    arguments = [str(checkpoint), load_format, str(ROWS), str(WIDTH), str(LAYERS)]
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    measured = json.loads(result.stdout)
    assert measured["size"] > 80e6
    # Less than the model itself would mean that nothing was measured.
    assert 0.9 < measured["growth"] / measured["size"] < 1.3
