"""Checkpoints that are a config.json only, and a target worker that is a few facts only."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from app.config.load_time_gates import decide_load_time_fields
from app.config.model_config import ModelConfig
from app.config.server_args import ServerArgs
from app.speculative.builtin import builtin_algorithms
from app.speculative.registry import AlgorithmRegistry

TINY_LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 4096,
    "eos_token_id": [2, 7],
    "torch_dtype": "bfloat16",
}

WriteCheckpoint = Callable[..., str]


@pytest.fixture
def write_checkpoint(tmp_path: Path) -> WriteCheckpoint:
    """`write(name, **changes)`: a directory with TINY_LLAMA's config; None drops a key."""

    def write(name: str, **changes: Any) -> str:
        values = {key: value for key, value in (TINY_LLAMA | changes).items() if value is not None}
        directory = tmp_path / name
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(values))
        return str(directory)

    return write


@pytest.fixture
def algorithms() -> AlgorithmRegistry:
    return builtin_algorithms()


@dataclass
class FakeTargetWorker:
    """Answers as a target's worker on a CPU that prefers oneDNN for bfloat16 does."""

    model_config: ModelConfig
    gate_calls: list[ServerArgs] = field(default_factory=list)

    def load_time_gates(self, server_args: ServerArgs) -> Mapping[str, Mapping[str, object]]:
        self.gate_calls.append(server_args)
        return decide_load_time_fields(
            server_args,
            dtype=self.model_config.dtype,
            backend_reads_prefix=lambda name: name == "torch_paged",
            choose_kernel=lambda dtype: (
                "onednn_bf16" if str(dtype) == "torch.bfloat16" else "torch"
            ),
        )


@pytest.fixture
def make_target_worker() -> Callable[[ServerArgs], FakeTargetWorker]:
    return lambda args: FakeTargetWorker(ModelConfig.from_server_args(args))
