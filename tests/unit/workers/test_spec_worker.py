"""What every algorithm inherits: verification, plain decoding, and how a worker is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from app.config.server_args import ServerArgs
from app.speculative.registry import AlgorithmRegistration, AlgorithmRegistry
from app.speculative.tree import build_chain, tree_from_parents
from app.workers.base import BaseSpecWorker
from app.workers.batch import DecodeState
from app.workers.create import create_spec_worker
from app.workers.proposal import Proposal
from app.workers.target_only_worker import TargetOnlyWorker
from tests.unit.workers.harness import VOCAB_SIZE, Driver, cached_tokens, fake, greedy_text, record

PROMPTS = ([3, 1, 4], [15, 9], [2, 6, 5, 3])


class Guessing(BaseSpecWorker):
    """Proposes the same two tokens for requests whose number is even."""

    def propose(self, states: Sequence[DecodeState]) -> Proposal | None:
        chosen = [state for state in states if state.request_id % 2 == 0]
        if not chosen:
            return None
        bonus = torch.tensor([state.token_ids[-1] for state in chosen])
        drafted = torch.tensor([[1, 2]] * len(chosen))
        return Proposal(chosen, build_chain(bonus, drafted), [2] * len(chosen))


class Branching(BaseSpecWorker):
    """Proposes a tree that holds the right path last, behind wrong siblings."""

    def propose(self, states: Sequence[DecodeState]) -> Proposal | None:
        rows = []
        for state in states:
            right = greedy_text(state.token_ids, 3)[-3:]
            wrong = [(token + 1) % VOCAB_SIZE for token in right]
            rows.append([state.token_ids[-1], wrong[0], right[0], wrong[1], right[1], right[2]])
        parents = torch.tensor([[-1, 0, 0, 2, 2, 4]] * len(rows))
        tree = tree_from_parents(torch.tensor(rows), parents)
        return Proposal(states, tree, [5] * len(rows))


def build(worker_class: type[BaseSpecWorker], **fields: Any) -> BaseSpecWorker:
    return worker_class(
        server_args=record(**fields),
        target_worker=fake(),
        draft_worker=lambda: pytest.fail("nobody asked for a draft"),
    )


@pytest.mark.parametrize("worker_class", [Guessing, Branching, TargetOnlyWorker])
@pytest.mark.parametrize("page_size", [1, 4])
def test_whatever_is_proposed_the_text_is_the_targets(
    worker_class: type[BaseSpecWorker], page_size: int
) -> None:
    worker = build(worker_class, speculative_num_draft_tokens=6)
    driver = Driver(worker, page_size=page_size)

    def check(outputs: Any) -> None:
        for output in outputs:
            state, target = output.state, worker.target.worker
            known = state.token_ids[: state.committed_len]
            assert cached_tokens(driver, target, state, state.committed_len) == known  # type: ignore[arg-type]

    driver.observe = check
    states = driver.run(PROMPTS, 11)
    assert [s.token_ids for s in states] == [greedy_text(p, 11) for p in PROMPTS]


def test_a_tree_is_accepted_along_its_right_branch() -> None:
    driver = Driver(build(Branching, speculative_num_draft_tokens=6))
    state = driver.admit(PROMPTS[0], 12)
    driver.prefill([state])
    outputs = driver.decode_step([state])
    assert [(len(o.token_ids), o.num_from_draft, o.num_proposed) for o in outputs] == [(4, 3, 5)]


def test_requests_without_a_proposal_decode_in_the_same_step() -> None:
    driver = Driver(build(Guessing))
    states = [driver.admit(prompt, 6) for prompt in PROMPTS]
    driver.prefill(states)
    outputs = {output.state.request_id: output for output in driver.decode_step(states)}
    assert sorted(outputs) == [0, 1, 2]
    assert outputs[0].num_proposed == outputs[2].num_proposed == 2
    assert outputs[1].num_proposed is None
    assert len(outputs[1].token_ids) == 1


def test_nothing_is_drafted_for_the_last_token() -> None:
    driver = Driver(build(Guessing))
    state = driver.admit(PROMPTS[0], 2)
    driver.prefill([state])
    assert state.num_remaining == 1
    (output,) = driver.decode_step([state])
    assert output.num_proposed is None
    assert state.num_remaining == 0


def test_a_prompt_gives_its_first_token_when_its_last_piece_ran() -> None:
    worker = build(TargetOnlyWorker)
    driver = Driver(worker)
    states = [driver.admit(prompt, 5) for prompt in PROMPTS]
    driver.prefill(states, chunk_size=2)
    assert [state.token_ids for state in states] == [greedy_text(p, 1) for p in PROMPTS]
    assert [len(batch.input_ids) for batch in worker.target.worker.batches] == [6, 3]  # type: ignore[attr-defined]


def test_a_window_has_a_slot_for_each_node() -> None:
    assert build(Guessing, speculative_num_draft_tokens=9).num_window_slots == 9
    assert build(TargetOnlyWorker, speculative_num_draft_tokens=9).num_window_slots == 1
    assert build(Guessing).draft_bytes_per_token == 0


# The factory.


def create(create_worker: Any) -> BaseSpecWorker:
    registration = AlgorithmRegistration(name="MINE", create_worker=create_worker)
    return create_spec_worker(
        algorithms=AlgorithmRegistry({"MINE": registration}),
        server_args=record(speculative_algorithm="mine"),
        target_worker=fake(),
        draft_worker=fake,
    )


def test_factory_and_worker_get_one_record() -> None:
    seen: list[ServerArgs] = []

    def remember(server_args: ServerArgs) -> type[BaseSpecWorker]:
        seen.append(server_args)
        return Guessing

    worker = create(remember)
    assert type(worker) is Guessing
    assert worker.server_args is seen[0]


@pytest.mark.parametrize("wrong", [dict, None, "Guessing", lambda **parts: None])
def test_a_factory_that_gives_no_worker_class_is_named(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"algorithm MINE: its factory gave .*BaseSpecWorker"):
        create(lambda server_args: wrong)


def too_wide(states: Sequence[DecodeState]) -> Proposal:
    bonus = torch.tensor([state.token_ids[-1] for state in states])
    drafted = torch.ones(len(states), 9, dtype=torch.int64)
    return Proposal(states, build_chain(bonus, drafted), [9] * len(states))


def chain_of(states: Sequence[DecodeState], root: int | None, token: int) -> Proposal:
    bonus = torch.tensor([s.token_ids[-1] if root is None else root for s in states])
    drafted = torch.tensor([[token]] * len(states))
    return Proposal(states, build_chain(bonus, drafted), [1] * len(states))


def wrong_root(states: Sequence[DecodeState]) -> Proposal:
    return chain_of(states, (states[0].token_ids[-1] + 1) % VOCAB_SIZE, 1)


def with_probs(states: Sequence[DecodeState], probs: torch.Tensor) -> Proposal:
    chain = chain_of(states, None, 1)
    return Proposal(states, chain.tree, [1] * len(states), probs)


@pytest.mark.parametrize(
    ("propose", "message"),
    [
        (too_wide, "10 nodes with the root, but speculative_num_draft_tokens reserves 6"),
        (wrong_root, "the root of a tree must be the last token"),
        (lambda states: chain_of(states, None, VOCAB_SIZE), "a token id outside 0 to"),
        (lambda states: chain_of(states, None, -1), "a token id outside 0 to"),
        (lambda states: chain_of([*states, states[0]], None, 1), "for a request twice"),
        (lambda states: chain_of([DecodeState(**vars_of(states[0]))], None, 1), "not asked about"),
        (lambda states: with_probs(states, torch.ones(1, 1, 3)), "draft_probs must be"),
    ],
)
def test_a_proposal_that_would_corrupt_the_target_is_refused(propose: Any, message: str) -> None:
    worker_class = type("Faulty", (BaseSpecWorker,), {"propose": lambda _, states: propose(states)})
    driver = Driver(build(worker_class, speculative_num_draft_tokens=6))
    state = driver.admit([3, 1, 4, 1, 5], 8)
    driver.prefill([state])
    before = list(state.token_ids)
    with pytest.raises(ValueError, match=message) as caught:
        driver.decode_step([state])
    assert str(caught.value).startswith("Faulty: ")
    assert state.token_ids == before


def vars_of(state: DecodeState) -> dict[str, Any]:
    """A state of the same values that the scheduler does not know."""
    names = ("token_ids", "num_prompt_tokens", "params", "seed", "max_len", "committed_len")
    return {name: getattr(state, name) for name in names}
