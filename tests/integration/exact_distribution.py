"""What a target emits, token by token, as exact probabilities, and a test against counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch

from app.config.sampling_params import SamplingParams
from tests.integration.oracle import TargetAlone

Text = tuple[int, ...]

# Classes of the chi-square test expect at least so many texts; rarer texts share a class.
_MIN_EXPECTED = 8.0


def next_token_probs(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Temperature, top-k, top-p and min-p in this order, written for clarity: `[V]` float64."""
    probs = (logits.double() / params.temperature).softmax(dim=-1)
    order = probs.argsort(descending=True, stable=True).tolist()
    if params.top_k > 0:
        probs[order[params.top_k :]] = 0.0
        probs /= probs.sum()
    if params.top_p < 1.0:
        mass_before = 0.0
        for token in order:
            mass = float(probs[token])
            if mass_before >= params.top_p:
                probs[token] = 0.0
            mass_before += mass
        probs /= probs.sum()
    if params.min_p > 0.0:
        probs[probs < params.min_p * probs.max()] = 0.0
        probs /= probs.sum()
    return probs


def text_probs(
    target_alone: TargetAlone, prompt: Sequence[int], params: SamplingParams, length: int
) -> dict[Text, float]:
    """The probability of every text of `length` tokens that the target can emit."""
    texts: dict[Text, float] = {(): 1.0}
    for _ in range(length):
        longer: dict[Text, float] = {}
        for text, probability in texts.items():
            probs = next_token_probs(target_alone.logits([*prompt, *text]), params)
            for token in probs.nonzero()[:, 0].tolist():
                longer[(*text, token)] = probability * float(probs[token])
        texts = longer
    return texts


def p_value(counts: Mapping[Text, float], probs: Mapping[Text, float]) -> float:
    """Chi-square test of `counts` against `probs`: how often chance alone fits as badly."""
    total = sum(counts.values())
    if set(counts) - set(probs):
        return 0.0
    statistic, num_classes = 0.0, 0
    rare_observed, rare_expected = 0.0, 0.0
    for text, probability in probs.items():
        observed, expected = counts.get(text, 0), total * probability
        if expected < _MIN_EXPECTED:
            rare_observed, rare_expected = rare_observed + observed, rare_expected + expected
            continue
        statistic += (observed - expected) ** 2 / expected
        num_classes += 1
    if rare_expected >= 1.0:
        statistic += (rare_observed - rare_expected) ** 2 / rare_expected
        num_classes += 1
    assert num_classes > 1, "one class says nothing"
    half_degrees, half_statistic = torch.tensor(
        [(num_classes - 1) / 2, statistic / 2], dtype=torch.float64
    )
    return float(torch.special.gammaincc(half_degrees, half_statistic))


def marginal(values: Mapping[Text, float], length: int) -> dict[Text, float]:
    """Sums over what follows the first `length` tokens; works for counts too."""
    sums: defaultdict[Text, float] = defaultdict(float)
    for text, value in values.items():
        sums[text[:length]] += value
    return sums


def conditional(values: Mapping[Text, float], first: int) -> dict[Text, float]:
    """Of texts that begin with `first`: the second token, unnormalised."""
    seconds: defaultdict[Text, float] = defaultdict(float)
    for text, value in values.items():
        if text[0] == first:
            seconds[text[1:2]] += value
    return seconds
