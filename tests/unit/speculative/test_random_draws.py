from __future__ import annotations

import itertools

import pytest
import torch

from app.speculative.random_draws import DrawDomain, hash_uniform

ACCEPT = DrawDomain.ACCEPT


def p_value(counts: torch.Tensor) -> float:
    """Of equal probability for all cells, by the chi-square law."""
    expected = counts.sum().double() / counts.numel()
    statistic = ((counts - expected) ** 2 / expected).sum()
    return float(
        torch.special.gammaincc((counts.new_tensor(counts.numel() - 1) / 2), statistic / 2)
    )


def streams(count: int) -> dict[str, torch.Tensor]:
    """`count` numbers along each argument of the hash, the others fixed."""
    zero, many = torch.zeros(1, dtype=torch.int64), torch.arange(count)
    zeros = torch.zeros(count, dtype=torch.int64)
    return {
        "seeds": hash_uniform(many, zeros, zero, ACCEPT)[:, 0],
        "large seeds": hash_uniform(2**63 - 1 - many, zeros, zero, ACCEPT)[:, 0],
        "positions": hash_uniform(zeros, many, zero, ACCEPT)[:, 0],
        "columns": hash_uniform(zero, zero, many, ACCEPT)[0],
        "other domain": hash_uniform(zero, zero, many, DrawDomain.SAMPLE)[0],
        "diagonal": hash_uniform(many, many, zero, ACCEPT)[:, 0],
    }


@pytest.mark.parametrize("name", streams(1))
def test_uniform_and_serially_independent(name: str) -> None:
    values = streams(200_000)[name].double()
    assert p_value(torch.histc(values, 256, 0.0, 1.0)) > 1e-4
    pairs = (values[:-1] * 16).long() * 16 + (values[1:] * 16).long()
    assert p_value(torch.bincount(pairs, minlength=256).double()) > 1e-4


@pytest.mark.parametrize(("left", "right"), list(itertools.combinations(streams(1), 2)))
def test_streams_are_uncorrelated(left: str, right: str) -> None:
    count = 100_000
    made = streams(count)
    # The very first number is the same in most streams: all arguments are zero.
    pair = torch.stack([made[left][1:], made[right][1:]]).double()
    assert abs(float(torch.corrcoef(pair)[0, 1])) < 5 / count**0.5


def test_a_number_belongs_to_its_arguments_alone() -> None:
    seeds, positions = torch.tensor([3, 1, 4, 1]), torch.tensor([5, 9, 2, 6])
    columns = torch.tensor([0, 7, 2])
    values = hash_uniform(seeds, positions, columns, ACCEPT)
    order = torch.tensor([2, 0, 3, 1])
    shuffled = hash_uniform(seeds[order], positions[order], columns.flip(0), ACCEPT)
    assert torch.equal(shuffled, values[order].flip(1))
    alone = hash_uniform(seeds[2:3], positions[2:3], columns[1:2], ACCEPT)
    assert torch.equal(alone, values[2:3, 1:2])
    assert values.unique().numel() == values.numel()


def test_never_one_and_float64_never_zero() -> None:
    zero = torch.zeros(1, dtype=torch.int64)
    columns = torch.arange(1_000_000)
    coarse = hash_uniform(zero, zero, columns, ACCEPT)
    assert coarse.dtype == torch.float32
    assert 0.0 <= float(coarse.min()) < 1e-5
    assert 1 - 1e-5 < float(coarse.max()) <= 1 - 2**-24
    fine = hash_uniform(zero, zero, columns, ACCEPT, torch.float64)
    assert float(fine.min()) > 0.0
    assert float(fine.max()) < 1.0
    assert torch.allclose(fine, coarse.double(), atol=2**-23)
