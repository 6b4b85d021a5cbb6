"""The small models that the project obtains without a hub."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import filelock

from app.config.model_path import ZOO_MODEL_NAMES, cache_root, models_root

# (directory to write the checkpoint into, whether to show progress)
Recipe = Callable[[Path, bool], None]


@dataclass(frozen=True, slots=True)
class ZooModel:
    """A model that `pull_model` can make; `path` is None until it has."""

    name: str
    description: str
    path: Path | None


def list_models() -> tuple[ZooModel, ...]:
    """Every model that `pull_model` knows."""
    return tuple(
        ZooModel(name, description, _find(name)) for name, description in ZOO_MODEL_NAMES.items()
    )


def ensure_available(model_path: str, progress: bool = True) -> None:
    """Pull `model_path` if it names a zoo model that is not there yet; otherwise do nothing."""
    if model_path in ZOO_MODEL_NAMES and not Path(model_path).exists():
        pull_model(model_path, progress)


def pull_model(
    name: str, progress: bool = True, *, recipes: Mapping[str, Recipe] | None = None
) -> Path:
    """The checkpoint directory of the zoo model `name`, made first when it is absent.

    The directory appears whole or not at all; a second process that asks for the same model waits
    for the first. Finished stages of an interrupted pull are not repeated. Raises ValueError for
    an unknown name or a damaged download, RuntimeError when the download fails.
    """
    recipes = _recipes() if recipes is None else recipes
    if name not in recipes:
        raise ValueError(f"unknown model {name!r}; known: {', '.join(recipes)}")
    found = _find(name)
    if found is not None:
        return found
    root = models_root()
    lock = filelock.FileLock(root / f".{name}.lock")
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise RuntimeError(
            f"{root} cannot be written ({error}); set DRAFTSCOPE_CACHE to another directory"
        ) from error
    try:
        return _find(name) or _make(recipes[name], root / name, progress)
    finally:
        lock.release()


def _make(recipe: Recipe, directory: Path, progress: bool) -> Path:
    partial = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    recipe(partial, progress)
    os.rename(partial, directory)
    return directory


def _find(name: str) -> Path | None:
    directory = models_root() / name
    return directory if directory.is_dir() else None


def _recipes() -> Mapping[str, Recipe]:
    # Imported here: listing models must not pay for torch and transformers.
    from app.loading.smollm2_recipe import make_shallow_smollm2, make_smollm2

    return {
        "smollm2-135m": lambda directory, progress: make_smollm2(
            directory, cache_root() / "downloads", progress
        ),
        "smollm2-135m-shallow": lambda directory, progress: make_shallow_smollm2(
            pull_model("smollm2-135m", progress), directory
        ),
    }
