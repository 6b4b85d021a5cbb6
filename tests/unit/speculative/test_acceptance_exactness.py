"""Every rule emits exactly what the target alone would, for drafts unrelated to it.

A target over four tokens is a table of conditional distributions. 100 000 verifies, one a batch
row, give the law of the first three emitted tokens, which a chi-square test compares with the
table's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from app.config.sampling_params import SamplingParams
from app.speculative.random_draws import DrawDomain, hash_uniform
from app.speculative.sampling import (
    SamplingBatch,
    draft_sample,
    sample_from_probs,
    sample_tokens,
    target_probs,
)
from app.speculative.tree import build_chain, tree_from_parents
from app.speculative.verify import (
    VerifyResult,
    block_accept,
    chain_rejection_accept,
    greedy_accept,
    tree_sampling_accept,
)

VOCAB = 4
TRIALS = 100_000
SEEDS = torch.arange(TRIALS)
POSITIONS = torch.full((TRIALS,), 12)
# What follows nothing, one token, two tokens.
Tables = list[torch.Tensor]
Rule = Callable[[Tables, Tables], VerifyResult]

SAMPLED = SamplingParams(temperature=1.0)
TRANSFORMS = {
    "plain": SAMPLED,
    "temperature": SamplingParams(temperature=0.6),
    "top_k": SamplingParams(temperature=1.0, top_k=2),
    "top_p": SamplingParams(temperature=1.0, top_p=0.8),
    "min_p": SamplingParams(temperature=1.2, min_p=0.4),
    "all": SamplingParams(temperature=1.4, top_k=3, top_p=0.9, min_p=0.1),
}


def logit_tables(seed: int) -> Tables:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(VOCAB,), (VOCAB,) * 2, (VOCAB,) * 3]
    return [torch.randn(shape, generator=generator) * 1.5 for shape in shapes]


def transformed(tables: Tables, params: SamplingParams) -> Tables:
    batch = SamplingBatch.from_params([(params, 0)])
    return [target_probs(t.view(1, -1, VOCAB), batch).view(t.shape) for t in tables]


def joint_law(tables: Tables) -> torch.Tensor:
    first, second, third = (table.double() for table in tables)
    return first[:, None, None] * second[:, :, None] * third


def coins_for(domain: DrawDomain, num_columns: int) -> torch.Tensor:
    return hash_uniform(SEEDS, POSITIONS, torch.arange(num_columns), domain)


def emitted_tokens(result: VerifyResult, tables: Tables) -> torch.Tensor:
    """The first three tokens, `[TRIALS, 3]`; what the verify did not emit the target samples."""
    path = result.accept_index.clamp(min=0)
    tokens = result.predict.gather(1, path)
    tokens = torch.cat([tokens, torch.zeros(TRIALS, 3, dtype=torch.int64)], dim=1)[:, :3]
    later = coins_for(DrawDomain.SAMPLE, 3)
    rows = [tables[0].expand(TRIALS, VOCAB), None, None]
    for place in range(3):
        if place == 1:
            rows[1] = tables[1][tokens[:, 0]]
        if place == 2:
            rows[2] = tables[2][tokens[:, 0], tokens[:, 1]]
        row = rows[place]
        assert row is not None
        is_missing = result.num_correct < place
        sampled = sample_from_probs(row, later[:, place])
        tokens[:, place] = torch.where(is_missing, sampled, tokens[:, place])
    return tokens


def p_value(tokens: torch.Tensor, law: torch.Tensor) -> float:
    """Of the observed triples under the law; 0 when one appears that the target never emits."""
    cells = tokens[:, 0] * VOCAB**2 + tokens[:, 1] * VOCAB + tokens[:, 2]
    counts = torch.bincount(cells, minlength=VOCAB**3).double()
    expected = law.flatten() * tokens.shape[0]
    if int(counts[expected == 0].sum()) > 0:
        return 0.0
    # The chi-square law needs cells with a handful of counts; the rare ones share a cell.
    is_rare = (expected > 0) & (expected < 10)
    is_common = expected >= 10
    counts = torch.cat([counts[is_common], counts[is_rare].sum()[None]])
    expected = torch.cat([expected[is_common], expected[is_rare].sum()[None]])
    counts, expected = counts[expected > 0], expected[expected > 0]
    if counts.numel() == 1:
        return 1.0
    statistic = ((counts - expected) ** 2 / expected).sum()
    degrees = torch.tensor((counts.numel() - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees, statistic / 2))


def chain_rows(tables: Tables, tokens: torch.Tensor) -> torch.Tensor:
    """The target's distribution behind the bonus and behind each token of a chain, `[T, 3, V]`."""
    first = tables[0].expand(TRIALS, VOCAB)
    return torch.stack([first, tables[1][tokens[:, 0]], tables[2][tokens[:, 0], tokens[:, 1]]], 1)


def drawn_chain(draft: Tables) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens `[T, 2]` and the distributions `[T, 2, V]` that they were drawn from."""
    q_first = draft[0].expand(TRIALS, VOCAB)
    first = draft_sample(q_first, SEEDS, POSITIONS, 0)
    q_second = draft[1][first]
    second = draft_sample(q_second, SEEDS, POSITIONS, 1)
    return torch.stack([first, second], 1), torch.stack([q_first, q_second], 1)


def chain_rule(accept: Callable[..., VerifyResult]) -> Rule:
    def rule(target: Tables, draft: Tables) -> VerifyResult:
        tokens, q = drawn_chain(draft)
        coins = coins_for(DrawDomain.ACCEPT, 3)
        arguments = (tokens, q, chain_rows(target, tokens), coins[:, :2], coins[:, 2])
        before = [argument.clone() for argument in arguments]
        result = accept(*arguments)
        assert all(torch.equal(a, b) for a, b in zip(arguments, before, strict=True))
        return result

    return rule


# Root; children 1, 0; below 1: 3, 2; below 0: 2. Node 6 repeats its sibling's token.
TREE_TOKENS = torch.tensor([0, 1, 0, 3, 2, 2, 3])
TREE_PARENTS = torch.tensor([-1, 0, 0, 1, 1, 2, 1])


def tree_rows(tables: Tables) -> torch.Tensor:
    """The tables' rows behind every node of the tree, `[1, N, V]`."""
    rows = [tables[0]]
    for token, parent in zip(TREE_TOKENS[1:].tolist(), TREE_PARENTS[1:].tolist(), strict=True):
        above = int(TREE_TOKENS[parent])
        rows.append(tables[1][token] if parent == 0 else tables[2][above, token])
    return torch.stack(rows)[None]


def tree_rule(target: Tables, draft: Tables) -> VerifyResult:
    num_nodes = TREE_TOKENS.shape[0]
    tree = tree_from_parents(TREE_TOKENS.expand(TRIALS, -1), TREE_PARENTS.expand(TRIALS, -1))
    probs = tree_rows(target).expand(TRIALS, -1, -1)
    before = probs.clone()
    coins = coins_for(DrawDomain.ACCEPT, num_nodes + 1)
    result = tree_sampling_accept(tree, probs, coins[:, :num_nodes], coins[:, num_nodes])
    assert torch.equal(probs, before)
    return result


RULES = {
    "tree": tree_rule,
    "chain rejection": chain_rule(chain_rejection_accept),
    "block": chain_rule(block_accept),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("rule", RULES)
def test_emitted_tokens_follow_the_target(rule: str, transform: str) -> None:
    target = transformed(logit_tables(1), TRANSFORMS[transform])
    # The draft applies the request's transform too, which gives it zeros of its own.
    draft = transformed(logit_tables(2), TRANSFORMS[transform])
    result = RULES[rule](target, draft)
    assert p_value(emitted_tokens(result, target), joint_law(target)) > 1e-4
    assert 0.05 < float(result.num_correct.double().mean()) < 1.95


@pytest.mark.parametrize("transform", ["plain", "all"])
def test_sampled_target_tokens_walk_the_tree_exactly(transform: str) -> None:
    """The default rule: a draw of the target at every node, keyed by position, decides."""
    logits = logit_tables(1)
    params = TRANSFORMS[transform]
    one = SamplingBatch.from_params([(params, 0)])
    batch = replace(one.select(torch.zeros(TRIALS, dtype=torch.int64)), seeds=SEEDS)
    tree = tree_from_parents(TREE_TOKENS.expand(TRIALS, -1), TREE_PARENTS.expand(TRIALS, -1))
    positions = 100 + tree.depth
    choices = sample_tokens(tree_rows(logits).expand(TRIALS, -1, -1), batch, positions)
    target = transformed(logits, params)
    result = greedy_accept(tree, choices)
    assert p_value(emitted_tokens(result, target), joint_law(target)) > 1e-4


@pytest.mark.parametrize("rule", ["chain rejection", "block"])
def test_a_draft_that_the_target_never_takes_costs_acceptance_alone(rule: str) -> None:
    target = [table.clone() for table in transformed(logit_tables(1), SAMPLED)]
    draft = [table.clone() for table in target]
    for table in target:
        table[..., 2:] = 0.0
        table /= table.sum(-1, keepdim=True)
    for table in draft:
        table[..., :2] = 0.0
        table /= table.sum(-1, keepdim=True)
    result = RULES[rule](target, draft)
    assert int(result.num_correct.max()) == 0
    assert p_value(emitted_tokens(result, target), joint_law(target)) > 1e-4


@pytest.mark.parametrize("rule", ["chain rejection", "block"])
def test_a_draft_equal_to_the_target_is_always_taken(rule: str) -> None:
    target = transformed(logit_tables(1), SAMPLED)
    result = RULES[rule](target, target)
    assert float((result.num_correct < 2).double().mean()) < 1e-4
    assert p_value(emitted_tokens(result, target), joint_law(target)) > 1e-4


def wrong_argmax_rule(target: Tables, draft: Tables) -> VerifyResult:
    """Accept what equals the target's argmax, then sample: right where it stops, wrong before."""
    tokens, _ = drawn_chain(draft)
    probs = chain_rows(target, tokens)
    is_accepted = tokens == probs[:, :2].argmax(-1)
    num_correct = is_accepted.long().cumprod(1).sum(1)
    bonus = sample_from_probs(
        probs[torch.arange(TRIALS), num_correct], coins_for(DrawDomain.ACCEPT, 1)[:, 0]
    )
    result = greedy_accept(build_chain(tokens[:, 0], tokens), probs.argmax(-1))
    predict = result.predict.scatter(1, num_correct[:, None], bonus[:, None])
    return VerifyResult(predict, result.accept_index, result.num_correct)


def wrong_coins_rule(target: Tables, draft: Tables) -> VerifyResult:
    """Accept with the very numbers that proposed."""
    tokens, q = drawn_chain(draft)
    shared = hash_uniform(SEEDS, POSITIONS, torch.arange(2 * VOCAB), DrawDomain.DRAFT)
    coins = shared.view(TRIALS, 2, VOCAB).gather(2, tokens[:, :, None])[:, :, 0]
    final = coins_for(DrawDomain.ACCEPT, 1)[:, 0]
    return chain_rejection_accept(tokens, q, chain_rows(target, tokens), coins, final)


@pytest.mark.parametrize("wrong", [wrong_argmax_rule, wrong_coins_rule])
def test_the_test_sees_a_wrong_rule(wrong: Callable[[Tables, Tables], VerifyResult]) -> None:
    target, draft = (transformed(logit_tables(seed), SAMPLED) for seed in (1, 2))
    assert p_value(emitted_tokens(wrong(target, draft), target), joint_law(target)) < 1e-6


def test_greedy_rows_of_a_mixed_batch_walk_greedily() -> None:
    """Rows with a one-hot target emit its argmax path under every rule, beside sampled rows."""
    sampled = transformed(logit_tables(1), SAMPLED)
    greedy = transformed(logit_tables(1), SamplingParams())
    is_greedy = (SEEDS % 2 == 0)[:, None, None]
    draft = transformed(logit_tables(2), SAMPLED)
    tokens, q = drawn_chain(draft)
    p = torch.where(is_greedy, chain_rows(greedy, tokens), chain_rows(sampled, tokens))
    coins = coins_for(DrawDomain.ACCEPT, 8)
    expected = greedy_accept(build_chain(tokens[:, 0], tokens), p.argmax(-1))
    for accept in (chain_rejection_accept, block_accept):
        result = accept(tokens, q, p, coins[:, :2], coins[:, 2])
        for name in ("predict", "accept_index", "num_correct"):
            assert torch.equal(getattr(result, name)[::2], getattr(expected, name)[::2]), name
    tree = tree_from_parents(TREE_TOKENS.expand(TRIALS, -1), TREE_PARENTS.expand(TRIALS, -1))
    probs = torch.where(is_greedy, tree_rows(greedy), tree_rows(sampled))
    result = tree_sampling_accept(tree, probs, coins[:, :7], coins[:, 7])
    expected = greedy_accept(tree, probs.argmax(-1))
    for name in ("predict", "accept_index", "num_correct"):
        assert torch.equal(getattr(result, name)[::2], getattr(expected, name)[::2]), name
