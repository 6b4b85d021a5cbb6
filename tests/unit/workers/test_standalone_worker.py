"""STANDALONE on fake models: lossless, exact caches, and drafts that may not be asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from app.testing.fakes import FakeTpWorker, LogitsFunction, canned_logits
from app.workers.batch import DecodeState, StepOutput
from app.workers.standalone_worker import StandaloneWorker
from tests.unit.workers.harness import (
    VOCAB_SIZE,
    Driver,
    cached_tokens,
    fake,
    greedy_text,
    record,
)

PROMPTS = ([3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5, 8, 9, 7, 9])
MAX_NEW_TOKENS = 14
SHAPES = [(1, 1, 2), (3, 1, 4), (5, 1, 6), (2, 2, 5), (3, 2, 6), (3, 4, 9), (1, 4, 5), (4, 3, 2)]


def predict(is_right: Callable[[int], bool]) -> LogitsFunction:
    """A draft that knows the target's text and says it where `is_right(position)`."""
    texts = [greedy_text(prompt, MAX_NEW_TOKENS + 10) for prompt in PROMPTS]

    def next_token(tokens: Sequence[int]) -> int:
        for text in texts:
            if text[: len(tokens)] == list(tokens):
                right = text[len(tokens)]
                return right if is_right(len(tokens)) else (right + 1) % VOCAB_SIZE
        return 0  # off the target's text nothing can be right

    return canned_logits(VOCAB_SIZE, next_token)


DRAFTS: dict[str, Callable[[int], bool]] = {
    "always": lambda position: True,
    "never": lambda position: False,
    "sometimes": lambda position: position % 3 != 0,
}


def build(
    draft: FakeTpWorker, shape: tuple[int, int, int] = (3, 1, 4), **fields: Any
) -> StandaloneWorker:
    steps, topk, nodes = shape
    return StandaloneWorker(
        server_args=record(
            speculative_num_steps=steps,
            speculative_eagle_topk=topk,
            speculative_num_draft_tokens=nodes,
            **fields,
        ),
        target_worker=fake(),
        draft_worker=lambda: draft,
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", DRAFTS)
def test_greedy_text_is_the_targets(kind: str, shape: tuple[int, int, int]) -> None:
    driver = Driver(build(fake(logits=predict(DRAFTS[kind])), shape))
    states = driver.run(PROMPTS, MAX_NEW_TOKENS)
    assert [s.token_ids for s in states] == [greedy_text(p, MAX_NEW_TOKENS) for p in PROMPTS]


@pytest.mark.parametrize("page_size", [1, 4])
def test_greedy_text_is_the_targets_with_an_unrelated_draft(page_size: int) -> None:
    for shape in SHAPES:
        driver = Driver(build(fake(seed=99), shape), page_size=page_size)
        states = driver.run(PROMPTS, MAX_NEW_TOKENS)
        assert [s.token_ids for s in states] == [greedy_text(p, MAX_NEW_TOKENS) for p in PROMPTS]


def decode_one(kind: str, shape: tuple[int, int, int]) -> list[StepOutput]:
    driver = Driver(build(fake(logits=predict(DRAFTS[kind])), shape))
    state = driver.admit(PROMPTS[0], MAX_NEW_TOKENS)
    driver.prefill([state])
    return driver.decode([state])


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_a_draft_that_is_always_right_is_accepted_whole(steps: int) -> None:
    outputs = decode_one("always", (steps, 1, steps + 1))
    full = [output for output in outputs if output.num_proposed is not None]
    assert full
    for output in full:
        assert output.num_from_draft == steps
        assert len(output.token_ids) == steps + 1
        assert output.num_proposed == steps


def test_a_draft_that_is_never_right_gives_one_token_a_step() -> None:
    outputs = decode_one("never", (3, 1, 4))
    assert {output.num_from_draft for output in outputs} == {0}
    assert {len(output.token_ids) for output in outputs} == {1}
    assert len(outputs) == MAX_NEW_TOKENS - 1


def test_a_tree_counts_every_node_but_the_root() -> None:
    outputs = decode_one("always", (3, 2, 6))
    assert {output.num_proposed for output in outputs} <= {5, None}
    assert max(output.num_from_draft for output in outputs) == 3


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", DRAFTS)
def test_the_drafts_cache_is_exact_as_far_as_it_says(
    kind: str, shape: tuple[int, int, int]
) -> None:
    draft = fake(logits=predict(DRAFTS[kind]))
    worker = build(draft, shape)
    driver = Driver(worker)

    def check(outputs: list[StepOutput]) -> None:
        for output in outputs:
            state = output.state
            assert state.draft_len <= state.committed_len
            known = state.token_ids[: state.draft_len]
            assert cached_tokens(driver, draft, state, state.draft_len) == known
            target: Any = worker.target.worker
            committed = state.token_ids[: state.committed_len]
            assert cached_tokens(driver, target, state, state.committed_len) == committed

    driver.observe = check
    driver.run(PROMPTS, MAX_NEW_TOKENS)


def test_a_chain_runs_no_draft_token_twice() -> None:
    draft = fake(logits=predict(DRAFTS["always"]))
    driver = Driver(build(draft, (3, 1, 4)))
    state = driver.admit(PROMPTS[0], MAX_NEW_TOKENS)
    driver.prefill([state])
    draft.batches.clear()
    driver.decode_step([state])
    first = [len(batch.input_ids) for batch in draft.batches]
    draft.batches.clear()
    driver.decode_step([state])
    second = [len(batch.input_ids) for batch in draft.batches]
    # Bonus, then a token a step; afterwards the last drafted token is new besides the bonus.
    assert (first, second) == ([1, 1, 1], [2, 1, 1])


def test_prefill_in_chunks_keeps_the_draft_up_to_date() -> None:
    draft = fake(logits=predict(DRAFTS["always"]))
    driver = Driver(build(draft))
    states = [driver.admit(prompt, MAX_NEW_TOKENS) for prompt in PROMPTS]
    driver.prefill(states, chunk_size=3)
    for state in states:
        assert state.draft_len == state.num_prompt_tokens
    outputs = driver.decode(states)
    assert max(output.num_from_draft for output in outputs) == 3


def test_a_released_request_starts_over() -> None:
    draft = fake(logits=predict(DRAFTS["always"]))
    driver = Driver(build(draft), num_rows=1)
    free = driver.pools.allocator.num_free_slots
    for prompt in PROMPTS:
        (state,) = driver.run([prompt], MAX_NEW_TOKENS)
        assert state.token_ids == greedy_text(prompt, MAX_NEW_TOKENS)
        driver.release(state)
        assert state.draft_len == 0
    assert driver.pools.allocator.num_free_slots == free


# Positions that a draft does not know.


def with_learned_positions(draft: FakeTpWorker, limit: int) -> FakeTpWorker:
    draft.model_config = replace(
        draft.model_config, has_learned_positions=True, max_position_embeddings=limit
    )
    return draft


@pytest.mark.parametrize("shape", [(3, 1, 4), (3, 2, 6)])
@pytest.mark.parametrize("limit", [4, 6, 9, 12])
def test_a_draft_with_learned_positions_is_never_run_beyond_them(
    limit: int, shape: tuple[int, int, int]
) -> None:
    draft = with_learned_positions(fake(logits=predict(DRAFTS["always"])), limit)
    driver = Driver(build(draft, shape))
    states = driver.run(PROMPTS, MAX_NEW_TOKENS)
    assert [s.token_ids for s in states] == [greedy_text(p, MAX_NEW_TOKENS) for p in PROMPTS]
    positions = [int(batch.positions.max()) for batch in draft.batches]
    assert max(positions, default=0) < limit


def test_a_short_draft_still_drafts_where_it_can() -> None:
    draft = with_learned_positions(fake(logits=predict(DRAFTS["always"])), 12)
    driver = Driver(build(draft))
    state = driver.admit(PROMPTS[1], MAX_NEW_TOKENS)
    driver.prefill([state])
    outputs = driver.decode([state])
    assert [output.num_from_draft for output in outputs][:2] == [3, 3]
    assert outputs[-1].num_proposed is None


# Vocabularies.


@pytest.mark.parametrize("shape", [(3, 1, 4), (2, 3, 7)])
def test_ids_that_only_the_draft_has_are_never_proposed(
    shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft whose padded rows win every time."""
    from app.workers import standalone_worker
    from app.workers.draft_vocabulary import DraftVocabulary

    vocabulary = DraftVocabulary(VOCAB_SIZE, (5,), VOCAB_SIZE)
    monkeypatch.setattr(standalone_worker, "compare_vocabularies", lambda *_: vocabulary)
    inner = predict(DRAFTS["sometimes"])

    def padded(tokens: Sequence[int]) -> torch.Tensor:
        logits = torch.cat([inner(tokens), torch.full((16,), 1e4)])
        logits[5] = 1e4
        return logits

    draft = fake(logits=padded, vocab_size=VOCAB_SIZE + 16)
    worker = build(draft, shape)
    seen: set[int] = set()
    original = worker.propose

    def watching(states: Sequence[DecodeState]) -> Any:
        proposal = original(states)
        assert proposal is not None
        seen.update(proposal.tree.tokens[:, 1:].flatten().tolist())
        return proposal

    monkeypatch.setattr(worker, "propose", watching)
    states = Driver(worker).run(PROMPTS, MAX_NEW_TOKENS)
    assert [s.token_ids for s in states] == [greedy_text(p, MAX_NEW_TOKENS) for p in PROMPTS]
    assert seen
    assert seen <= set(range(VOCAB_SIZE)) - {5}


def test_another_vocabulary_size_is_refused_before_anything_runs() -> None:
    with pytest.raises(ValueError, match=r"vocab_size is 40 in .* and 32 in"):
        build(fake(vocab_size=40))


# Sampling.


@pytest.mark.parametrize("field", ["speculative_use_rejection_sampling",
                                   "speculative_use_block_verification"])  # fmt: skip
def test_a_sampled_chain_carries_the_distributions_it_was_drawn_from(field: str) -> None:
    worker = build(fake(seed=1), (3, 1, 4), **{field: True})
    driver = Driver(worker)
    states = [driver.admit(PROMPTS[0], 9, temperature=1.0), driver.admit(PROMPTS[1], 9)]
    driver.prefill(states)
    for state in states:
        driver._grow(state, state.committed_len + worker.num_window_slots)
    proposal = worker.propose(states)
    assert proposal is not None
    assert proposal.draft_probs is not None
    assert proposal.draft_probs.shape == (2, 3, VOCAB_SIZE)
    torch.testing.assert_close(proposal.draft_probs.sum(-1), torch.ones(2, 3))
    drawn = proposal.draft_probs.gather(2, proposal.tree.tokens[:, 1:, None])
    assert bool((drawn > 0).all())
    # The greedy row of the batch is drawn from a one-hot distribution.
    assert drawn[1].flatten().tolist() == [1.0] * 3


def test_a_greedy_batch_and_a_plain_record_need_no_distributions() -> None:
    for fields, temperature in (({}, 1.0), ({"speculative_use_rejection_sampling": True}, 0.0)):
        worker = build(fake(seed=1), **fields)
        driver = Driver(worker)
        state = driver.admit(PROMPTS[0], 9, temperature=temperature)
        driver.prefill([state])
        driver._grow(state, state.committed_len + worker.num_window_slots)
        proposal = worker.propose([state])
        assert proposal is not None
        assert proposal.draft_probs is None


def test_more_branches_than_tokens_are_refused_when_the_draft_is_built() -> None:
    with pytest.raises(ValueError, match="speculative_eagle_topk = 40: the draft has only 32"):
        build(fake(), (2, 40, 4))
