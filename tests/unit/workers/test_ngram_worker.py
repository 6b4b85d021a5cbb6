"""NGRAM on a fake target: lossless, needs no model of its own, learns across requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from app.testing.fakes import canned_logits
from app.workers.ngram_worker import NGRAMWorker
from tests.unit.workers.harness import VOCAB_SIZE, Driver, fake, greedy_text, record


def build(target: Any = None, **fields: Any) -> NGRAMWorker:
    ngram = {
        "speculative_num_draft_tokens": 6,
        "speculative_ngram_max_trie_depth": 6,
        "speculative_ngram_max_bfs_breadth": 3,
        "speculative_ngram_capacity": 4000,
    }
    return NGRAMWorker(
        server_args=record(**(ngram | fields)),
        target_worker=target or fake(),
        draft_worker=lambda: pytest.fail("NGRAM has no draft model"),
    )


def counting(tokens: Sequence[int]) -> int:
    """From small tokens a text that repeats itself every eight, from others one that never does."""
    return (tokens[-1] + 1) % 8 if tokens[-1] < 8 else tokens[-1] + 1


@pytest.mark.parametrize("match_type", ["BFS", "PROB"])
def test_a_repeating_text_is_lossless_and_accepted(match_type: str) -> None:
    target = fake(logits=canned_logits(VOCAB_SIZE, counting))
    driver = Driver(build(target, speculative_ngram_match_type=match_type))
    state = driver.admit([0, 1, 2, 3, 4, 5, 6, 7, 0], 20)
    driver.prefill([state])
    outputs = driver.decode([state])
    assert state.token_ids == [i % 8 for i in range(29)]
    assert outputs[0].num_from_draft == 5
    assert len(outputs) < 6


@pytest.mark.parametrize("match_type", ["BFS", "PROB"])
@pytest.mark.parametrize("page_size", [1, 4])
def test_a_text_without_pattern_is_lossless(match_type: str, page_size: int) -> None:
    prompts = ([3, 1, 3, 1, 3], [9, 9, 9, 9], [5, 6, 5, 7, 5])
    driver = Driver(build(speculative_ngram_match_type=match_type), page_size=page_size)
    states = driver.run(prompts, 16)
    assert [s.token_ids for s in states] == [greedy_text(p, 16) for p in prompts]


def test_requests_with_and_without_a_match_share_a_step() -> None:
    target = fake(logits=canned_logits(VOCAB_SIZE, counting))
    driver = Driver(build(target))
    repeating, fresh = driver.admit([0, 1, 2, 3, 4, 5, 6, 7, 0], 8), driver.admit([20], 8)
    driver.prefill([repeating, fresh])
    outputs = {o.state.request_id: o for o in driver.decode_step([repeating, fresh])}
    assert outputs[repeating.request_id].num_proposed is not None
    # What follows 21 was never seen.
    assert outputs[fresh.request_id].num_proposed is None
    assert outputs[fresh.request_id].token_ids == [22]
    driver.decode([repeating, fresh])
    assert repeating.token_ids == [i % 8 for i in range(17)]
    assert fresh.token_ids == list(range(20, 29))


def test_one_request_learns_from_another() -> None:
    driver = Driver(build())
    first, second = driver.run([[3, 1, 4]], 12)[0], driver.admit([3, 1, 4], 12)
    driver.prefill([second])
    outputs = driver.decode([second])
    assert second.token_ids == first.token_ids == greedy_text([3, 1, 4], 12)
    assert max(output.num_from_draft for output in outputs) >= 4


def test_the_narrower_of_two_trees_counts_only_its_own_nodes() -> None:
    target = fake(logits=canned_logits(VOCAB_SIZE, counting))
    worker = build(target)
    driver = Driver(worker)
    long, short = driver.admit([0, 1, 2, 3, 4, 5, 6, 7, 0], 8), driver.admit([12, 13, 12], 8)
    for state in (long, short):
        state.committed_len = len(state.token_ids) - 1
    proposal = worker.propose([long, short])
    assert proposal is not None
    assert proposal.num_proposed == [5, 2]
    assert proposal.tree.tokens.shape == (2, 6)
    assert proposal.tree.parents[1, 3:].tolist() == [-1] * 3


def test_nothing_to_propose_is_no_proposal() -> None:
    worker = build()
    driver = Driver(worker)
    state = driver.admit([1, 2, 3], 5)
    assert worker.propose([state]) is None


def test_a_released_request_is_forgotten_but_its_text_is_known() -> None:
    worker = build()
    driver = Driver(worker, num_rows=1)
    (state,) = driver.run([[3, 1, 4]], 8)
    text = state.token_ids
    driver.release(state)
    (again,) = driver.run([[3, 1, 4]], 8)
    assert again.token_ids == text
    assert worker.draft_bytes_per_token == 0
