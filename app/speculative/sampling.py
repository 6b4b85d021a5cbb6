"""From logits to the distribution that a request samples from, and to tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from app.config.sampling_params import SamplingParams
from app.speculative.random_draws import DrawDomain, hash_uniform
from app.speculative.truncation import keep_min_p, keep_top_k, keep_top_p


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Sampling parameters of a batch, a row a request; every tensor is `[b]`.

    `top_ks` <= 0 is off. The flags say what some row needs, so that a step that needs nothing of a
    kind pays nothing for it and never asks the device.
    """

    temperatures: torch.Tensor
    top_ks: torch.Tensor
    top_ps: torch.Tensor
    min_ps: torch.Tensor
    seeds: torch.Tensor
    is_greedy: torch.Tensor
    is_all_greedy: bool
    has_top_k: bool
    has_top_p: bool
    has_min_p: bool

    @classmethod
    def from_params(
        cls,
        rows: Sequence[tuple[SamplingParams, int]],
        device: torch.device | str = "cpu",
    ) -> SamplingBatch:
        """One row a (parameters, seed); the seed is the one given at admission."""
        params = [row for row, _ in rows]
        sampled = [row for row in params if not row.is_greedy]

        def floats(values: list[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)

        return cls(
            temperatures=floats([row.temperature for row in params]),
            top_ks=torch.tensor([row.top_k for row in params], device=device),
            top_ps=floats([row.top_p for row in params]),
            min_ps=floats([row.min_p for row in params]),
            seeds=torch.tensor([seed for _, seed in rows], device=device),
            is_greedy=torch.tensor([row.is_greedy for row in params], device=device),
            is_all_greedy=not sampled,
            has_top_k=any(row.top_k > 0 for row in sampled),
            has_top_p=any(row.top_p < 1.0 for row in sampled),
            has_min_p=any(row.min_p > 0.0 for row in sampled),
        )

    def select(self, rows: torch.Tensor) -> SamplingBatch:
        """The rows with these indices, or where a mask is true. Asks the device for the flags."""
        is_greedy = self.is_greedy[rows]
        top_ks, top_ps, min_ps = self.top_ks[rows], self.top_ps[rows], self.min_ps[rows]
        return SamplingBatch(
            temperatures=self.temperatures[rows],
            top_ks=top_ks,
            top_ps=top_ps,
            min_ps=min_ps,
            seeds=self.seeds[rows],
            is_greedy=is_greedy,
            is_all_greedy=bool(is_greedy.all()),
            has_top_k=bool(((top_ks > 0) & ~is_greedy).any()),
            has_top_p=bool(((top_ps < 1.0) & ~is_greedy).any()),
            has_min_p=bool(((min_ps > 0.0) & ~is_greedy).any()),
        )


def target_probs(logits: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """What each request samples from at n places: `logits [b, n, V]` -> float32 of the same shape.

    Temperature, top-k, top-p and min-p, in this order and each renormalised. Greedy rows are
    one-hot at the argmax, the lowest id on ties, so that every acceptance rule walks them greedily.
    """
    if batch.is_all_greedy:
        return _one_hot_argmax(logits)
    num_places, vocab_size = logits.shape[1:]
    logits = logits.float()
    # Before the division: a tiny temperature must not overflow.
    shifted = logits - logits.amax(dim=-1, keepdim=True)
    # Greedy rows are replaced below; any temperature does for them.
    temperatures = torch.where(batch.is_greedy, 1.0, batch.temperatures)
    probs = shifted.div_(temperatures[:, None, None]).softmax(dim=-1)
    flat = probs.view(-1, vocab_size)
    is_sampled = ~batch.is_greedy
    if batch.has_top_k:
        chosen = _flat_rows(is_sampled & (batch.top_ks > 0), num_places)
        flat[chosen] = keep_top_k(flat[chosen], batch.top_ks.repeat_interleave(num_places)[chosen])
    if batch.has_top_p:
        chosen = _flat_rows(is_sampled & (batch.top_ps < 1.0), num_places)
        flat[chosen] = keep_top_p(flat[chosen], batch.top_ps.repeat_interleave(num_places)[chosen])
    if batch.has_min_p:
        chosen = _flat_rows(is_sampled & (batch.min_ps > 0.0), num_places)
        flat[chosen] = keep_min_p(flat[chosen], batch.min_ps.repeat_interleave(num_places)[chosen])
    if bool(batch.is_greedy.any()):
        probs[batch.is_greedy] = _one_hot_argmax(logits[batch.is_greedy])
    return probs


def sample_tokens(
    logits: torch.Tensor, batch: SamplingBatch, positions: torch.Tensor
) -> torch.Tensor:
    """A token for each of n places: `logits [b, n, V]`, `positions [b, n]` -> `[b, n]` int64.

    Greedy rows take the argmax, the lowest id on ties. Others sample with a number that belongs to
    the request's seed and the position of the sampled token alone: neither the batch nor a draft
    changes the text.
    """
    greedy = logits.argmax(dim=-1)
    if batch.is_all_greedy:
        return greedy
    rows = (~batch.is_greedy).nonzero()[:, 0]
    sampled = batch.select(rows)
    num_places = logits.shape[1]
    coins = hash_uniform(
        sampled.seeds.repeat_interleave(num_places),
        positions[rows].flatten(),
        torch.zeros(1, dtype=torch.int64, device=logits.device),
        DrawDomain.SAMPLE,
        torch.float64,
    )
    probs = target_probs(logits[rows], sampled)
    tokens = sample_from_probs(probs.flatten(0, 1), coins[:, 0])
    greedy[rows] = tokens.view(-1, num_places)
    return greedy


def sample_from_probs(probs: torch.Tensor, coins: torch.Tensor) -> torch.Tensor:
    """Inverse CDF of `probs [b, V]` (any scale) at `coins [b]` in [0, 1): `[b]` int64.

    The first token whose cumulative mass is strictly greater than the coin's share of all mass, so
    never one without mass; the last token with mass should rounding carry the walk past it.
    """
    # float32 sums over a whole vocabulary would shift the borders between tokens.
    cdf = probs.cumsum(dim=-1, dtype=torch.float64)
    total = cdf[:, -1:].contiguous()
    goal = coins[:, None].double() * total
    tokens = torch.searchsorted(cdf, goal, right=True)
    last_with_mass = torch.searchsorted(cdf, total)
    return torch.minimum(tokens, last_with_mass)[:, 0].clamp_(max=probs.shape[1] - 1)


def draft_sample(
    probs: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor, step: int
) -> torch.Tensor:
    """Tokens `[b]` that draft step `step` proposes: `probs [b, V]`, `seeds [b]`, `positions [b]`.

    An exponential race, argmax of p / E, in a domain of its own: proposals must be independent of
    the numbers that accept them. E has 52 bits: among a whole vocabulary's draws a coarse one would
    be zero once in a while, and a token without probability would win.
    """
    vocab_size = probs.shape[1]
    columns = torch.arange(vocab_size, device=probs.device) + step * vocab_size
    uniform = hash_uniform(seeds, positions, columns, DrawDomain.DRAFT, torch.float64)
    return (probs / uniform.log_().neg_()).argmax(dim=-1)


def _one_hot_argmax(logits: torch.Tensor) -> torch.Tensor:
    probs = torch.zeros(logits.shape, dtype=torch.float32, device=logits.device)
    return probs.scatter_(-1, logits.argmax(dim=-1, keepdim=True), 1.0)


def _flat_rows(is_chosen: torch.Tensor, num_places: int) -> torch.Tensor:
    return is_chosen.repeat_interleave(num_places).nonzero()[:, 0]
