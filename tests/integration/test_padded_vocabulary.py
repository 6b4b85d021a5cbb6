"""What counts is the tokenizer's vocabulary, not how far an embedding is padded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from app.config.sampling_params import SamplingParams
from app.engine import Engine
from app.testing.checkpoints import write_checkpoint
from app.testing.drafts import pad_vocabulary, write_perfect_draft
from app.workers.batch import DecodeState
from app.workers.proposal import Proposal
from tests.integration.engines import (
    VOCAB_SIZE,
    TinyModels,
    accepted,
    greedy,
    open_tiny,
    random_prompt,
    standalone,
)
from tests.integration.oracle import TargetAlone
from tests.integration.rewriting import HEAD, Tensors, rewrite

NUM_TOKENS = 25
PROMPTS = [random_prompt(length, seed=length) for length in (3, 9, 17)]
PADDING = 128


@pytest.fixture(scope="module")
def padded_draft(tiny: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target's weights and 128 rows more whose logits beat all others."""
    directory = tmp_path_factory.mktemp("padded") / "draft"
    return pad_vocabulary(tiny.target, directory, PADDING)


def record_proposals(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every token that the draft proposes from now on."""
    proposed: list[int] = []
    propose = engine.scheduler.spec_worker.propose

    def recording(states: Sequence[DecodeState]) -> Proposal | None:
        proposal = propose(states)
        if proposal is not None:
            proposed.extend(proposal.tree.tokens[:, 1:].flatten().tolist())
        return proposal

    monkeypatch.setattr(engine.scheduler.spec_worker, "propose", recording)
    return proposed


@pytest.mark.parametrize(
    ("rule", "topk"),
    [
        *((rule, topk) for rule in ("greedy", "sampled") for topk in (1, 2, 4)),
        ("rejection", 1),
    ],
)
def test_padded_ids_of_a_draft_are_never_proposed(
    tiny: TinyModels,
    padded_draft: Path,
    monkeypatch: pytest.MonkeyPatch,
    rule: str,
    topk: int,
) -> None:
    settings = standalone(padded_draft, num_steps=3, topk=topk)
    settings["speculative_use_rejection_sampling"] = rule == "rejection"
    params = (
        greedy(NUM_TOKENS)
        if rule == "greedy"
        else SamplingParams(temperature=1.0, max_new_tokens=NUM_TOKENS, ignore_eos=True)
    )
    with open_tiny(tiny.target, settings) as engine:
        proposed = record_proposals(engine, monkeypatch)
        results = engine.generate(PROMPTS, params)
    assert proposed
    assert max(proposed) < VOCAB_SIZE
    assert accepted(results) > 0


def test_a_padded_draft_changes_nothing(
    tiny: TinyModels, target_alone: TargetAlone, padded_draft: Path
) -> None:
    num_tokens = 1 + 6 * 4
    with open_tiny(tiny.target, standalone(padded_draft, num_steps=3)) as engine:
        results = engine.generate(PROMPTS, greedy(num_tokens))
    for result in results:
        target_alone.assert_same(result, num_tokens)
        assert result.spec is not None
        assert result.spec.accept_length == 4


def test_ids_that_only_the_target_has_stay_reachable(tiny: TinyModels, tmp_path: Path) -> None:
    # Padded rows of the target are its own affair: it may emit them, and it does here.
    target = pad_vocabulary(tiny.target, tmp_path / "target", PADDING)
    alone = TargetAlone(target)
    for topk in (1, 2):
        with open_tiny(target, standalone(tiny.perfect, num_steps=3, topk=topk)) as engine:
            results = engine.generate(PROMPTS, greedy(NUM_TOKENS))
        for result in results:
            alone.assert_same(result, NUM_TOKENS)
        assert any(token >= VOCAB_SIZE for result in results for token in result.token_ids)


def test_some_ids_of_both_and_some_of_the_target_alone(tiny: TinyModels, tmp_path: Path) -> None:
    def weaken_padding(tensors: Tensors) -> None:
        tensors[HEAD][VOCAB_SIZE:] *= 0.08

    padded = pad_vocabulary(tiny.target, tmp_path / "padded", PADDING)
    target = rewrite(padded, tmp_path / "target", weaken_padding)
    alone = TargetAlone(target)
    for topk in (1, 2):
        with open_tiny(target, standalone(tiny.perfect, num_steps=3, topk=topk)) as engine:
            results = engine.generate(PROMPTS, greedy(NUM_TOKENS))
        for result in results:
            alone.assert_same(result, NUM_TOKENS)
        emitted = [token for result in results for token in result.token_ids]
        assert any(token >= VOCAB_SIZE for token in emitted)
        assert any(token < VOCAB_SIZE for token in emitted)
        from_draft = [
            token
            for result in results
            for token, is_drafted in zip(result.token_ids, result.from_draft, strict=True)
            if is_drafted
        ]
        assert from_draft
        assert max(from_draft) < VOCAB_SIZE


def write_llama(directory: Path, vocab_size: int) -> Path:
    return write_checkpoint(directory, num_layers=1, vocab_size=vocab_size)


def test_another_vocabulary_is_an_error_that_says_so(tiny: TinyModels, tmp_path: Path) -> None:
    # A character vocabulary below, a byte-level one above: the same ids mean other tokens.
    other = write_llama(tmp_path / "other", vocab_size=90)
    with (
        pytest.raises(
            ValueError, match=r"speculative_draft_model_path: .*another vocabulary"
        ) as error,
        open_tiny(tiny.target, standalone(other, num_steps=3)),
    ):
        pass
    assert "token id" in str(error.value)
    with open_tiny(tiny.target) as engine:
        assert engine.generate([[7, 8]], greedy(3))[0].completion_tokens == 3


def test_equal_sizes_do_not_hide_another_vocabulary(tiny: TinyModels, tmp_path: Path) -> None:
    draft = write_perfect_draft(tiny.target, tmp_path / "draft")
    file = draft / "tokenizer.json"
    text = file.read_text(encoding="utf-8")
    # Two ordinary tokens change places.
    swapped = text.replace('"A": 38', '"A": 39 ').replace('"B": 39,', '"B": 38,')
    assert swapped != text
    file.write_text(swapped, encoding="utf-8")
    with (
        pytest.raises(ValueError, match="another vocabulary"),
        open_tiny(tiny.target, standalone(draft, num_steps=3)),
    ):
        pass


def test_another_special_token_is_left_out_of_proposals(
    tiny: TinyModels,
    target_alone: TargetAlone,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Special tokens may differ: over-strict checks would refuse a good pair.
    def prefer_special(tensors: Tensors) -> None:
        tensors[HEAD][3] = 100 * tensors[HEAD][3]

    draft = rewrite(tiny.target, tmp_path / "draft", prefer_special)
    file = draft / "tokenizer.json"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("<|system|>", "<|tool|>"), encoding="utf-8")
    with open_tiny(tiny.target, standalone(draft, num_steps=3)) as engine:
        proposed = record_proposals(engine, monkeypatch)
        results = engine.generate(PROMPTS, greedy(NUM_TOKENS))
    assert 3 not in proposed
    assert torch.tensor(proposed).unique().numel() > 1
    for result in results:
        target_alone.assert_same(result, NUM_TOKENS)


def test_without_a_tokenizer_file_sizes_must_agree(
    tiny: TinyModels, padded_draft: Path, tmp_path: Path
) -> None:
    draft = write_perfect_draft(padded_draft, tmp_path / "draft")
    (draft / "tokenizer.json").unlink()
    with (
        pytest.raises(ValueError, match=r"vocab_size is 448 .* and 320 .*tokenizer\.json"),
        open_tiny(tiny.target, standalone(draft, num_steps=3)),
    ):
        pass
