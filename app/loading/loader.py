"""Chooses the loader of a load format."""

from __future__ import annotations

from dataclasses import replace

from app.config.load_config import LoadConfig
from app.config.model_config import ModelConfig
from app.loading.base_loader import BaseModelLoader
from app.loading.default_loader import DefaultModelLoader
from app.loading.dummy_loader import DummyModelLoader
from app.loading.gguf_loader import GGUFModelLoader
from app.loading.layered_loader import LayeredModelLoader
from app.loading.sharded_state_loader import ShardedStateLoader

__all__ = ["BaseModelLoader", "create_model_loader"]


def create_model_loader(load_config: LoadConfig, model_config: ModelConfig) -> BaseModelLoader:
    """The loader for `load_config.load_format`, which the record has validated.

    "auto" reads a `.gguf` file as gguf; for a directory the files decide when they are read.
    """
    if load_config.load_format == "auto" and model_config.model_path.suffix == ".gguf":
        load_config = replace(load_config, load_format="gguf")
    match load_config.load_format:
        case "dummy":
            return DummyModelLoader(load_config)
        case "sharded_state":
            return ShardedStateLoader(load_config)
        case "layered":
            return LayeredModelLoader(load_config)
        case "gguf":
            return GGUFModelLoader(load_config)
        case _:
            return DefaultModelLoader(load_config)
