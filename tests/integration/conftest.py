"""Random checkpoints, written once a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.testing.checkpoints import write_checkpoint
from app.testing.drafts import DRAFT_WRITERS
from tests.integration.engines import VOCAB_SIZE, TinyModels
from tests.integration.oracle import TargetAlone


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    """A two-layer Llama with a byte-level tokenizer, and a draft of each quality."""
    root = tmp_path_factory.mktemp("tiny")
    target = write_checkpoint(root / "target", num_layers=2, vocab_size=VOCAB_SIZE, seed=1)
    drafts: dict[str, Path] = {
        name: write(target, root / name) for name, write in DRAFT_WRITERS.items()
    }
    return TinyModels(target=target, **drafts)


@pytest.fixture(scope="session")
def target_alone(tiny: TinyModels) -> TargetAlone:
    """What the tiny target says, computed without the engine."""
    return TargetAlone(tiny.target)
