"""`draftscope doctor`: what this machine can do."""

from __future__ import annotations

import platform
import shutil
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import click

from app.commands.engine_options import ConfigInputs, ConfiguredCommand
from app.commands.output import print_json

if TYPE_CHECKING:
    from app.kernels.capability import CpuCapability

LIBRARIES = (
    "torch",
    "transformers",
    "dependency-injector",
    "safetensors",
    "triton",
    "pydantic",
    "gguf",
)
COMPILERS = ("c++", "g++", "clang++")


@click.command(cls=ConfiguredCommand)
def doctor(inputs: ConfigInputs) -> None:
    """Device, instruction sets, compiler, kernels chosen, model cache and versions."""
    if inputs.is_given:
        inputs.server_args()
    from app.kernels.capability import detect_cpu_capability

    capability = detect_cpu_capability()
    device = _device()
    findings = {
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "device": device,
        "cpu": _cpu(capability),
        "compiler": _compiler(),
        "kernels": _kernels(capability, device["chosen"]),
        "models": _models(),
        "versions": {library: _version(library) for library in LIBRARIES},
    }
    if inputs.is_json:
        print_json(findings)
        return
    for topic, finding in findings.items():
        click.secho(topic, bold=True)
        entries = finding.items() if isinstance(finding, dict) else [("", finding)]
        for name, value in entries:
            click.echo(f"  {f'{name}: ' if name else ''}{_text(value)}")


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _device() -> dict[str, Any]:
    import torch

    found: dict[str, Any] = {"chosen": "cuda" if torch.cuda.is_available() else "cpu"}
    if torch.cuda.is_available():
        found["name"] = torch.cuda.get_device_name()
        found["memory_bytes"] = torch.cuda.get_device_properties(0).total_memory
    return found


def _cpu(capability: CpuCapability) -> dict[str, Any]:
    import torch

    found = {name.removeprefix("has_"): value for name, value in asdict(capability).items()}
    has_onednn = found.pop("onednn")
    return {
        "threads": torch.get_num_threads(),
        "instruction_sets": [name for name, is_there in found.items() if is_there],
        "onednn": has_onednn,
    }


def _compiler() -> str | None:
    return next((path for name in COMPILERS if (path := shutil.which(name))), None)


def _kernels(capability: CpuCapability, device: str) -> dict[str, str]:
    """Kernel of linear layers for each dtype that a model may have."""
    import torch

    from app.kernels.prepacked_linear import choose_prefill_kernel

    return {
        f"linear {dtype}": choose_prefill_kernel(
            getattr(torch, dtype), torch.device(device), capability
        )
        for dtype in ("bfloat16", "float32")
    }


def _models() -> dict[str, Any]:
    from app.config.model_path import models_root

    root = models_root()
    # Hidden names are locks and unfinished pulls.
    cached = sorted(path.name for path in root.glob("[!.]*"))
    return {"cache": str(root), "cached": cached}


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None
