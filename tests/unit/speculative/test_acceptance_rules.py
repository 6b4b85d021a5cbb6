"""Worked numbers and edges of the acceptance rules."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from app.speculative.tree import build_chain, tree_from_parents
from app.speculative.verify import (
    VerifyResult,
    block_accept,
    chain_rejection_accept,
    tree_sampling_accept,
)

Rule = Callable[..., VerifyResult]

A, B, C = 0, 1, 2


def test_tree_rule_worked_example() -> None:
    """p = {a: .5, b: .3, c: .2}, children [b, c]: the coin's interval decides."""
    grid = (torch.arange(1000) + 0.5) / 1000
    tree = tree_from_parents(
        torch.tensor([[A, B, C]]).expand(1000, -1), torch.tensor([[-1, 0, 0]]).expand(1000, -1)
    )
    probs = torch.tensor([0.5, 0.3, 0.2]).expand(1000, 3, 3)
    coins = grid[:, None].expand(-1, 3)
    result = tree_sampling_accept(tree, probs, coins, grid)
    first = result.predict[:, 0]
    assert torch.equal(first[:300], torch.full((300,), B))
    assert torch.equal(first[300:500], torch.full((200,), C))
    # Neither child: only a has mass left.
    assert torch.equal(first[500:], torch.full((500,), A))
    assert result.num_correct.tolist() == [1] * 500 + [0] * 500
    assert result.accept_index[[0, 400, 900]].tolist() == [[0, 1], [0, 2], [0, -1]]


def test_thresholds_accept_more() -> None:
    tree = build_chain(torch.tensor([A]), torch.tensor([[B]]))
    probs = torch.tensor([0.5, 0.3, 0.2]).expand(1, 2, 3)
    coins, final = torch.tensor([[0.5, 0.5]]), torch.tensor([0.1])

    def num_correct(single: float, acc: float) -> int:
        return int(tree_sampling_accept(tree, probs, coins, final, single, acc).num_correct)

    assert num_correct(1.0, 1.0) == 0
    assert num_correct(0.3, 1.0) == 1
    assert num_correct(0.31, 1.0) == 0
    assert num_correct(1.0, 0.5) == 1
    assert num_correct(1.0, 0.0) == 1


def test_children_that_cover_all_mass_leave_the_target_to_rounding() -> None:
    tree = tree_from_parents(torch.tensor([[A, A, B]]), torch.tensor([[-1, 0, 0]]))
    probs = torch.tensor([0.7, 0.29999995]).expand(1, 3, 2)
    coins = torch.full((1, 3), 1 - 2**-24)
    result = tree_sampling_accept(tree, probs, coins, torch.tensor([0.2]))
    assert int(result.num_correct) == 0
    assert int(result.predict[0, 0]) == A


P_FIRST, Q_FIRST = [0.5, 0.5], [0.8, 0.2]
P_AFTER = {A: [0.9, 0.1], B: [0.3, 0.7]}
Q_AFTER = {A: [0.4, 0.6], B: [0.6, 0.4]}


def block_toy(
    drafts: tuple[int, int], coins: torch.Tensor, final: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    rows = coins.shape[0]
    q = torch.tensor([Q_FIRST, Q_AFTER[drafts[0]]]).expand(rows, 2, 2)
    # What follows the chain plays no part in the first two tokens.
    p = torch.tensor([P_FIRST, P_AFTER[drafts[0]], [0.5, 0.5]]).expand(rows, 3, 2)
    return torch.tensor([drafts]).expand(rows, 2), q, p, coins, final


def test_block_rule_worked_example() -> None:
    grid = (torch.arange(100) + 0.5) / 100
    coins = torch.cartesian_prod(grid, grid)
    # (a, a): r1 = .625 and r2 = 1, so both are always taken.
    result = block_accept(*block_toy((A, A), coins, coins[:, 0]))
    assert result.num_correct.unique().tolist() == [2]
    tokenwise = chain_rejection_accept(*block_toy((A, A), coins, coins[:, 0]))
    assert float((tokenwise.num_correct >= 1).double().mean()) == pytest.approx(0.625, abs=0.01)
    # (a, b): r2 = .104167; with it refused, the first stays where its coin is below h1 = .302326.
    second = torch.full((2,), 0.11)
    coins = torch.stack([torch.tensor([0.3023, 0.3024]), second], 1)
    result = block_accept(*block_toy((A, B), coins, torch.zeros(2)))
    assert result.num_correct.tolist() == [1, 0]
    second = torch.tensor([0.1041, 0.1042])
    coins = torch.stack([torch.full((2,), 0.99), second], 1)
    result = block_accept(*block_toy((A, B), coins, torch.zeros(2)))
    assert result.num_correct.tolist() == [2, 0]


@pytest.mark.parametrize("rule", [chain_rejection_accept, block_accept])
def test_joint_law_of_two_tokens_by_integration(rule: Rule) -> None:
    """The toy's law of the first two tokens, the coins integrated over a grid."""
    size = 48
    grid = (torch.arange(size) + 0.5) / size
    coins = torch.cartesian_prod(grid, grid, grid)
    law = torch.zeros(2, 2, dtype=torch.float64)
    for first in (A, B):
        for second in (A, B):
            weight = Q_FIRST[first] * Q_AFTER[first][second] / size**3
            result = rule(*block_toy((first, second), coins[:, :2], coins[:, 2]))
            emitted = result.predict
            is_single = result.num_correct == 0
            for x in (A, B):
                ended = (is_single & (emitted[:, 0] == x)).sum() * weight
                law[x] += ended * torch.tensor(P_AFTER[x], dtype=torch.float64)
                for y in (A, B):
                    both = ~is_single & (emitted[:, 0] == x) & (emitted[:, 1] == y)
                    law[x, y] += both.sum() * weight
    expected = torch.tensor([[P_FIRST[x] * P_AFTER[x][y] for y in (A, B)] for x in (A, B)])
    # The grid's error: each border is off by at most half a cell.
    assert torch.allclose(law, expected.double(), atol=1.0 / size)


def test_blocks_take_no_fewer_tokens_than_single_tokens_on_average() -> None:
    generator = torch.Generator().manual_seed(3)
    trials, steps, vocab = 40_000, 3, 5
    gains = []
    for sharpness in (0.5, 1.5, 3.0):
        p = (torch.randn(steps + 1, vocab, generator=generator) * sharpness).softmax(-1)
        q = (torch.randn(steps, vocab, generator=generator) * sharpness).softmax(-1)
        drafts = torch.multinomial(q, trials, replacement=True, generator=generator).T
        coins = torch.rand(trials, steps + 1, generator=generator)
        p_rows, q_rows = p.expand(trials, -1, -1), q.expand(trials, -1, -1)
        arguments = drafts, q_rows, p_rows, coins[:, :steps], coins[:, steps]
        block = block_accept(*arguments).num_correct.double().mean()
        single = chain_rejection_accept(*arguments).num_correct.double().mean()
        gains.append(float(block - single))
    assert min(gains) > -0.01
    assert max(gains) > 0.02


@pytest.mark.parametrize("rule", [chain_rejection_accept, block_accept])
@pytest.mark.parametrize("bad", [float("nan"), -0.5, 1.5, float("inf"), 0.0])
def test_a_drawn_token_with_no_valid_probability_is_rejected(rule: Rule, bad: float) -> None:
    q = torch.tensor([[[bad, 0.5, 0.5]]])
    p = torch.tensor([[[0.6, 0.4, 0.0], [0.0, 0.0, 1.0]]])
    result = rule(torch.tensor([[A]]), q, p, torch.tensor([[0.0]]), torch.tensor([0.1]))
    assert result.num_correct.tolist() == [0]
    assert result.predict.tolist() == [[A, -1]]


@pytest.mark.parametrize("rule", [chain_rejection_accept, block_accept])
def test_no_residual_falls_back_to_the_target(rule: Rule) -> None:
    # q covers p entirely, which only rounding can bring about.
    p = torch.tensor([[[0.25, 0.75], [0.5, 0.5]]])
    q = torch.tensor([[[0.5, 0.75]]])
    result = rule(torch.tensor([[A]]), q, p, torch.tensor([[0.9]]), torch.tensor([0.3]))
    assert result.num_correct.tolist() == [0]
    assert result.predict.tolist() == [[B, -1]]
