"""Settings of every test: no network, a clean environment, few threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

# Before torch is imported anywhere: spinning threads starve each other on few cores.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Tests use models that the project makes or that a package ships, never a hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's DRAFTSCOPE_* variables must not change what is tested; the cache may stay."""
    for name in list(os.environ):
        if name.startswith("DRAFTSCOPE_") and name != "DRAFTSCOPE_CACHE":
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def default_dtype_restored() -> Iterator[None]:
    """A test that fails inside a `set_default_dtype` block must not decide for the others."""
    import torch

    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def root() -> Path:
    """The project's root folder."""
    return ROOT
