"""Engines over tiny checkpoints."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from app.config.sampling_params import SamplingParams
from app.config.server_args import ServerArgs
from app.engine import Engine, open_engine
from app.results import GenerateResult
from app.speculative.registry import AlgorithmRegistry

VOCAB_SIZE = 320
# Ids that prompts are made of: no special tokens.
FIRST_PROMPT_ID, END_PROMPT_ID = 6, 262


@dataclass(frozen=True)
class TinyModels:
    """A target and its drafts: checkpoint directories."""

    target: Path
    perfect: Path
    noisy: Path
    unrelated: Path

    def draft(self, name: str) -> Path:
        path: Path = getattr(self, name)
        return path


def standalone(
    draft: Path, *, num_steps: int, topk: int = 1, num_draft_tokens: int | None = None
) -> dict[str, object]:
    """Settings of a STANDALONE draft; a tree verifies about two nodes a step unless told."""
    if num_draft_tokens is None:
        available = topk + (num_steps - 1) * topk**2
        num_draft_tokens = 1 + (num_steps if topk == 1 else min(available, 2 * num_steps + 1))
    return {
        "speculative_algorithm": "STANDALONE",
        "speculative_draft_model_path": str(draft),
        "speculative_num_steps": num_steps,
        "speculative_eagle_topk": topk,
        "speculative_num_draft_tokens": num_draft_tokens,
    }


def ngram(
    *, num_draft_tokens: int = 6, breadth: int = 2, match_type: str = "BFS"
) -> dict[str, object]:
    """Settings of NGRAM."""
    return {
        "speculative_algorithm": "NGRAM",
        "speculative_num_draft_tokens": num_draft_tokens,
        "speculative_ngram_max_bfs_breadth": breadth,
        "speculative_ngram_match_type": match_type,
    }


def open_tiny(
    checkpoint: Path,
    settings: Mapping[str, object] = MappingProxyType({}),
    *,
    algorithms: AlgorithmRegistry | None = None,
    **more: object,
) -> AbstractContextManager[Engine]:
    """An engine over `checkpoint`. Prompts are token ids unless `skip_tokenizer_init` is false."""
    values = {
        "skip_tokenizer_init": True,
        "dtype": "float32",
        "random_seed": 0,
        "max_running_requests": 16,
    }
    args = ServerArgs.from_sources(
        {"model_path": str(checkpoint), **values, **settings, **more}, {}
    )
    return open_engine(args, algorithms=algorithms)


def greedy(max_new_tokens: int, **more: object) -> SamplingParams:
    """Greedy decoding of exactly so many tokens."""
    return SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=True, **more)


def random_prompt(length: int, seed: int) -> list[int]:
    """`length` random token ids, always the same for a seed."""
    generator = random.Random(seed)
    return [generator.randrange(FIRST_PROMPT_ID, END_PROMPT_ID) for _ in range(length)]


def accepted(results: Sequence[GenerateResult]) -> int:
    """Draft tokens that were accepted in all results."""
    return sum(result.spec.accepted for result in results if result.spec is not None)


def free_tokens(engine: Engine) -> int:
    """Free slots of the KV cache."""
    free: int = engine.status()["kv_cache_free_tokens"]
    return free
