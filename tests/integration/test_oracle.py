"""The comparison with the target alone finds what it must find."""

from __future__ import annotations

import pytest

from tests.integration.engines import TinyModels, greedy, open_tiny, random_prompt
from tests.integration.oracle import TIE_GAP, TargetAlone, assert_same_tokens


def gap_at(index: int) -> float:
    return {1: 0.5, 2: TIE_GAP / 2}[index]


def test_a_changed_token_is_reported_with_its_place_and_gap() -> None:
    with pytest.raises(AssertionError, match=r"index 1: got token 9, .* gives 2 .* gap of 0\.5"):
        assert_same_tokens([1, 9, 3], [1, 2, 3], gap_at)


def test_a_tie_is_no_difference() -> None:
    assert_same_tokens([1, 2, 9, 9], [1, 2, 3, 4], gap_at)


@pytest.mark.parametrize("actual", [[1, 2], [1, 2, 3, 4], []])
def test_a_missing_or_additional_token_is_a_difference(actual: list[int]) -> None:
    with pytest.raises(AssertionError, match="where the target alone gives 3"):
        assert_same_tokens(actual, [1, 2, 3], gap_at)


def test_a_wrong_text_of_an_engine_is_found(tiny: TinyModels, target_alone: TargetAlone) -> None:
    # The noisy draft as a target: nearly the same model.
    with open_tiny(tiny.noisy) as engine:
        (result,) = engine.generate([random_prompt(9, seed=9)], greedy(60))
    with pytest.raises(AssertionError, match="first difference"):
        target_alone.assert_same(result, 60)
