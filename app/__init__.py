"""A speculative-decoding engine whose draft can never leak into its target.

The names below are imported on first use, so that `import app` stays free of torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.config.sampling_params import SamplingParams
    from app.config.server_args import ServerArgs
    from app.containers import EngineContainer
    from app.engine import open_engine
    from app.speculative.registry import SpeculativeAlgorithm

__version__ = "0.1.0"

__all__ = [
    "EngineContainer",
    "SamplingParams",
    "ServerArgs",
    "SpeculativeAlgorithm",
    "__version__",
    "open_engine",
]

_MODULE_OF_NAME = (
    ("EngineContainer", "app.containers"),
    ("SamplingParams", "app.config.sampling_params"),
    ("ServerArgs", "app.config.server_args"),
    ("SpeculativeAlgorithm", "app.speculative.registry"),
    ("open_engine", "app.engine"),
)


def __getattr__(name: str) -> object:
    import importlib

    for public_name, module in _MODULE_OF_NAME:
        if name == public_name:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
