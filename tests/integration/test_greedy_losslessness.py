"""A draft never changes a greedy text: whatever the settings, its tokens are the target's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from app.config.sampling_params import SamplingParams
from app.results import GenerateResult
from app.testing.checkpoints import write_checkpoint
from tests.integration.engines import (
    VOCAB_SIZE,
    TinyModels,
    accepted,
    greedy,
    ngram,
    open_tiny,
    random_prompt,
    standalone,
)
from tests.integration.oracle import TargetAlone
from tests.integration.pairwise import all_pairs, name_of, pairwise, product

AXES = {
    "draft": ("perfect", "noisy", "unrelated", "ngram-BFS", "ngram-PROB"),
    "topk": (1, 2, 4),
    "num_steps": (1, 2, 5, 8),
    "max_running_requests": (1, 4),
    "page_size": (1, 4, 16),
    # Smaller than most prompts, or whole prompts.
    "chunked_prefill_size": (3, -1),
    "attention_backend": ("torch_paged", "torch_dense"),
}


def prompts_for(page_size: int) -> list[list[int]]:
    """Lengths around the page borders up to three pages; the last one repeats itself."""
    lengths = sorted(
        {1, page_size - 1, page_size, page_size + 1, 2 * page_size + 1, 3 * page_size} - {0}
    )
    prompts = [random_prompt(length, seed=length) for length in lengths]
    return [*prompts, random_prompt(5, seed=99) * 3]


def params_for(num_prompts: int) -> list[SamplingParams]:
    """Different lengths, so that requests leave and others join in the middle of the run."""
    return [greedy(7 + 5 * index) for index in range(num_prompts)]


def speculation(tiny: TinyModels, row: Mapping[str, object]) -> dict[str, object]:
    draft, topk, num_steps = str(row["draft"]), int(str(row["topk"])), int(str(row["num_steps"]))
    if draft.startswith("ngram-"):
        match_type = draft.removeprefix("ngram-")
        return ngram(num_draft_tokens=num_steps + 1, breadth=topk, match_type=match_type)
    return standalone(tiny.draft(draft), num_steps=num_steps, topk=topk)


def run(tiny: TinyModels, target_alone: TargetAlone, row: Mapping[str, object]) -> int:
    """Decode under one combination and compare; how many draft tokens were accepted."""
    runtime = {
        axis: row[axis]
        for axis in (
            "max_running_requests",
            "page_size",
            "chunked_prefill_size",
            "attention_backend",
        )
    }
    prompts = prompts_for(int(str(row["page_size"])))
    params = params_for(len(prompts))
    with open_tiny(tiny.target, speculation(tiny, row), **runtime) as engine:
        results = engine.generate(prompts, params)
    assert_lossless(results, params, target_alone)
    return accepted(results)


def assert_lossless(
    results: list[GenerateResult], params: list[SamplingParams], target_alone: TargetAlone
) -> None:
    for result, prompt_params in zip(results, params, strict=True):
        target_alone.assert_same(result, prompt_params.max_new_tokens)
        assert result.finish_reason == "length"


@pytest.mark.parametrize("row", pairwise(AXES), ids=name_of)
def test_settings_do_not_change_the_text(
    tiny: TinyModels, target_alone: TargetAlone, row: dict[str, object]
) -> None:
    num_accepted = run(tiny, target_alone, row)
    if row["draft"] in ("perfect", "noisy"):
        assert num_accepted > 0, "the run tested nothing: no draft token was accepted"


@pytest.mark.full
@pytest.mark.parametrize("row", product(AXES), ids=name_of)
def test_no_combination_of_settings_changes_the_text(
    tiny: TinyModels, target_alone: TargetAlone, row: dict[str, object]
) -> None:
    run(tiny, target_alone, row)


def test_the_default_selection_covers_every_pair_of_settings() -> None:
    covered = {
        pair
        for row in pairwise(AXES)
        for pair in all_pairs({axis: [value] for axis, value in row.items()})
    }
    assert covered == set(all_pairs(AXES))


@pytest.mark.parametrize(
    ("attention_backend", "page_size", "chunked_prefill_size"),
    [("torch_paged", 1, -1), ("torch_paged", 16, 3), ("torch_dense", 4, -1)],
)
def test_the_target_alone_decodes_as_transformers_does(
    tiny: TinyModels,
    target_alone: TargetAlone,
    attention_backend: str,
    page_size: int,
    chunked_prefill_size: int,
) -> None:
    prompts = prompts_for(page_size)
    params = params_for(len(prompts))
    runtime = {"page_size": page_size, "chunked_prefill_size": chunked_prefill_size}
    with open_tiny(tiny.target, attention_backend=attention_backend, **runtime) as engine:
        results = engine.generate(prompts, params)
    assert_lossless(results, params, target_alone)
    assert all(result.spec is None for result in results)


@pytest.mark.parametrize(
    ("target_backend", "draft_backend"),
    [("torch_paged", "torch_dense"), ("torch_dense", "torch_paged")],
)
@pytest.mark.parametrize("topk", [1, 2])
def test_a_draft_may_attend_by_another_backend(
    tiny: TinyModels,
    target_alone: TargetAlone,
    target_backend: str,
    draft_backend: str,
    topk: int,
) -> None:
    prompts = prompts_for(4)
    params = params_for(len(prompts))
    with open_tiny(
        tiny.target,
        standalone(tiny.noisy, num_steps=3, topk=topk),
        attention_backend=target_backend,
        speculative_draft_attention_backend=draft_backend,
        chunked_prefill_size=3,
    ) as engine:
        results = engine.generate(prompts, params)
    assert_lossless(results, params, target_alone)
    assert accepted(results) > 0


def test_ngram_accepts_what_a_text_repeats(tiny: TinyModels, target_alone: TargetAlone) -> None:
    # What the target says behind this prompt, twice: the second half is all in the trie.
    prompt = random_prompt(5, seed=99) * 3
    with open_tiny(tiny.target, ngram(num_draft_tokens=6)) as engine:
        first, second = (engine.generate([prompt], greedy(40))[0] for _ in range(2))
    assert first.token_ids == second.token_ids
    assert second.spec is not None
    assert second.spec.accept_length is not None
    assert second.spec.accept_length > 3


@pytest.mark.parametrize(
    "draft_fields",
    [
        {"speculative_draft_dtype": "bfloat16"},
        {"speculative_draft_dtype": "float16", "speculative_draft_kv_cache_dtype": "float32"},
        {"speculative_draft_kv_cache_dtype": "bfloat16"},
    ],
    ids=lambda fields: "-".join(fields),
)
def test_a_draft_may_have_another_dtype(
    tiny: TinyModels, target_alone: TargetAlone, draft_fields: dict[str, str]
) -> None:
    prompts = prompts_for(4)
    params = params_for(len(prompts))
    for topk in (1, 2):
        settings = standalone(tiny.perfect, num_steps=3, topk=topk)
        with open_tiny(tiny.target, settings, **draft_fields) as engine:
            results = engine.generate(prompts, params)
        assert_lossless(results, params, target_alone)
        # Rounded weights are still nearly the target's.
        assert accepted(results) > sum(each.max_new_tokens for each in params) / 2


def test_a_draft_may_be_larger_than_its_target(
    tiny: TinyModels, target_alone: TargetAlone, tmp_path: Path
) -> None:
    draft = write_checkpoint(
        tmp_path / "draft",
        num_layers=3,
        hidden_size=96,
        num_heads=6,
        num_kv_heads=6,
        vocab_size=VOCAB_SIZE,
    )
    prompts = prompts_for(4)
    params = params_for(len(prompts))
    for topk in (1, 2):
        with open_tiny(tiny.target, standalone(draft, num_steps=3, topk=topk)) as engine:
            results = engine.generate(prompts, params)
        assert_lossless(results, params, target_alone)
        assert all(result.spec is not None and result.spec.proposed > 0 for result in results)


@pytest.mark.parametrize(
    "family", ["mistral", "qwen2", "qwen3", "gemma3", "gemma2", "gpt2", "olmo2"]
)
def test_every_family_is_lossless_as_target_and_as_draft(tmp_path: Path, family: str) -> None:
    checkpoint = write_checkpoint(
        tmp_path / family, family, num_layers=2, vocab_size=VOCAB_SIZE, seed=1
    )
    alone = TargetAlone(checkpoint)
    prompts = prompts_for(4)
    params = params_for(len(prompts))
    for settings in (
        standalone(checkpoint, num_steps=3),
        standalone(checkpoint, num_steps=3, topk=2),
        ngram(num_draft_tokens=6),
    ):
        with open_tiny(checkpoint, settings, chunked_prefill_size=3, page_size=4) as engine:
            results = engine.generate(prompts, params)
        assert_lossless(results, params, alone)
        assert accepted(results) > 0
