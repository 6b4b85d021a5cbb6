"""How prompts are cut into prefill pieces."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from app.config.sampling_params import SamplingParams
from app.scheduling.batch import PrefillPlanner
from app.scheduling.request import Request
from app.scheduling.stop_conditions import StopConditions


def make_request(request_id: int, prompt_len: int, num_output: int = 0) -> Request:
    params = SamplingParams()
    request = Request(
        request_id=request_id,
        token_ids=list(range(prompt_len + num_output)),
        num_prompt_tokens=prompt_len,
        params=params,
        seed=0,
        max_len=1000,
        stop=StopConditions(params, frozenset(), None),
    )
    request.prefill_len = len(request.token_ids) - (1 if num_output else 0)
    return request


@settings(max_examples=80, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=5),
    chunk_size=st.one_of(st.none(), st.integers(1, 8)),
)
def test_every_token_is_run_once_in_order_and_one_piece_samples(
    lengths: list[int], chunk_size: int | None
) -> None:
    planner = PrefillPlanner(chunk_size)
    requests = [make_request(i, length) for i, length in enumerate(lengths)]
    num_sampled = dict.fromkeys(range(len(lengths)), 0)
    while waiting := [request for request in requests if request.is_prefilling]:
        pieces = planner.plan(waiting)
        assert pieces
        if chunk_size is not None:
            assert sum(piece.end - piece.start for piece in pieces) <= chunk_size
        for piece in pieces:
            assert piece.start == piece.state.committed_len
            piece.state.committed_len = piece.end
            num_sampled[piece.state.request_id] += piece.samples
            assert piece.samples == (piece.end == lengths[piece.state.request_id])
    assert set(num_sampled.values()) == {1}


def test_a_preempted_request_recomputes_without_sampling_again() -> None:
    request = make_request(0, prompt_len=4, num_output=3)
    (piece,) = PrefillPlanner(512).plan([request])
    assert (piece.start, piece.end, piece.samples) == (0, 6, False)
