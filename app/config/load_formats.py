"""The names of load formats: those that this build reads, and those it refuses by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SUPPORTED_LOAD_FORMATS: tuple[str, ...] = (
    "auto",
    "safetensors",
    "pt",
    "npcache",
    "dummy",
    "sharded_state",
    "layered",
    "gguf",
)

_FAST_READERS = "use safetensors, which maps the files instead of reading them"
_PUSHED_WEIGHTS = "save the weights to a directory and use auto"

REFUSED_LOAD_FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "bitsandbytes": "use auto with an unquantised checkpoint, or gguf for a quantised one",
        "expert_pack": "use safetensors with an unpacked checkpoint",
        "fastsafetensors": _FAST_READERS,
        "flash_rl": _PUSHED_WEIGHTS,
        "instanttensor": _FAST_READERS,
        "ipc_cache": "use safetensors; the page cache already shares mapped files",
        "jax": "convert the checkpoint to safetensors and use auto",
        "local_cached": "use auto with the local directory as model_path",
        "mistral": "use auto with the checkpoint in the layout of transformers",
        "presharded": "use sharded_state, which reads one file set for each rank",
        "private": "install a speculative plugin or convert the checkpoint to safetensors",
        "rdma": _PUSHED_WEIGHTS,
        "remote": "download the checkpoint and give its directory as model_path",
        "remote_instance": _PUSHED_WEIGHTS,
        "runai_streamer": _FAST_READERS,
    }
)
