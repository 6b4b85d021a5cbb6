"""The counters of a result are what its verifies really did."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from app.config.sampling_params import SamplingParams
from app.engine import Engine
from app.workers.batch import Batch, StepOutput
from app.workers.proposal import Proposal
from tests.integration.engines import (
    TinyModels,
    greedy,
    ngram,
    open_tiny,
    random_prompt,
    standalone,
)

PROMPTS = [random_prompt(length, seed=length) for length in (1, 4, 9, 20)]


@dataclass(frozen=True)
class Verify:
    """What one verify did for one request, before stop conditions."""

    num_nodes: int
    num_accepted: int
    num_tokens: int


@dataclass(frozen=True)
class Trace:
    """Verifies and plainly decoded tokens by request, seen from outside."""

    verifies: defaultdict[int, list[Verify]]
    num_plain: Counter[int]


def trace(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Trace:
    """Record what the worker does from now on: proposals as trees, outputs as tokens."""
    worker = engine.scheduler.spec_worker
    record = Trace(defaultdict(list), Counter())
    verify, step = worker.target.verify, worker.step
    verified: set[int] = set()

    def recording_verify(proposal: Proposal) -> list[StepOutput]:
        outputs = verify(proposal)
        for row, output in enumerate(outputs):
            # Nodes that can be reached; the root is no proposal.
            num_nodes = int((proposal.tree.parents[row] >= 0).sum())
            proposed = proposal.tree.tokens[row, 1:].tolist()
            accepted = output.token_ids[: output.num_from_draft]
            assert set(accepted) <= set(proposed)
            verified.add(output.state.request_id)
            record.verifies[output.state.request_id].append(
                Verify(num_nodes, output.num_from_draft, len(output.token_ids))
            )
        return outputs

    def recording_step(batch: Batch) -> Sequence[StepOutput]:
        verified.clear()
        outputs = step(batch)
        if not batch.prefill:
            for output in outputs:
                record.num_plain[output.state.request_id] += output.state.request_id not in verified
        return outputs

    monkeypatch.setattr(worker.target, "verify", recording_verify)
    monkeypatch.setattr(worker, "step", recording_step)
    return record


def settings_of(tiny: TinyModels, name: str) -> dict[str, object]:
    return {
        "chain": standalone(tiny.noisy, num_steps=4),
        "perfect": standalone(tiny.perfect, num_steps=3),
        "tree": standalone(tiny.noisy, num_steps=3, topk=3),
        "unrelated": standalone(tiny.unrelated, num_steps=2),
        "ngram": ngram(num_draft_tokens=7),
    }[name]


@pytest.mark.parametrize("name", ["chain", "perfect", "tree", "unrelated", "ngram"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_counters_equal_the_trace(
    tiny: TinyModels, monkeypatch: pytest.MonkeyPatch, name: str, temperature: float
) -> None:
    params = [
        SamplingParams(temperature=temperature, max_new_tokens=budget, ignore_eos=True)
        for budget in (1, 2, 23, 40)
    ]
    with open_tiny(tiny.target, settings_of(tiny, name)) as engine:
        record = trace(engine, monkeypatch)
        results = engine.generate(PROMPTS, params)
    for request_id, result in enumerate(results):
        verifies = record.verifies[request_id]
        spec = result.spec
        assert spec is not None
        # The budget may cut the last verify.
        num_verified = sum(verify.num_tokens for verify in verifies)
        num_decoded = num_verified + record.num_plain[request_id]
        num_cut = 1 + num_decoded - result.completion_tokens
        assert num_cut == 0 or num_cut < verifies[-1].num_tokens
        accepted = [verify.num_accepted for verify in verifies]
        if verifies:
            accepted[-1] = min(accepted[-1], verifies[-1].num_tokens - num_cut)
        assert spec.verify_steps == len(verifies)
        assert spec.proposed == sum(verify.num_nodes for verify in verifies)
        assert spec.accepted == sum(accepted)
        assert spec.histogram == Counter(accepted)
        assert spec.emitted == result.completion_tokens - 1 - record.num_plain[request_id]
        assert spec.accepted == sum(result.from_draft)
        if verifies:
            assert spec.accept_length == spec.emitted / len(verifies)
        else:
            assert spec.accept_length is None
    assert sum(len(verifies) for verifies in record.verifies.values()) > 0


@pytest.mark.parametrize("name", ["chain", "tree", "ngram"])
def test_the_json_of_a_result_adds_up(tiny: TinyModels, name: str) -> None:
    with open_tiny(tiny.target, settings_of(tiny, name)) as engine:
        results = engine.generate(PROMPTS, greedy(30))
    for result in results:
        answer = result.to_json()
        spec = answer["spec"]
        histogram = spec["histogram"]
        assert answer["completion_tokens"] == len(answer["token_ids"]) == 30
        assert sum(histogram) == spec["verify_steps"]
        assert sum(n * count for n, count in enumerate(histogram)) == spec["accepted"]
        assert spec["accepted"] <= spec["proposed"]
        assert spec["accept_rate"] == spec["accepted"] / spec["proposed"]
        # Each verify gives its accepted tokens and the bonus, but the last one may be cut.
        emitted = spec["accept_length"] * spec["verify_steps"]
        assert emitted == pytest.approx(spec["accepted"] + spec["verify_steps"], abs=1)
        assert emitted <= 29


def test_the_target_alone_reports_no_speculation(tiny: TinyModels) -> None:
    with open_tiny(tiny.target) as engine:
        (result,) = engine.generate(PROMPTS[:1], greedy(5))
    assert result.to_json()["spec"] is None
    assert result.from_draft == (False,) * 5


def test_acceptance_does_not_depend_on_the_batch(tiny: TinyModels) -> None:
    prompts = [random_prompt(3 + index, seed=index) for index in range(16)]
    metrics = []
    for max_running_requests in (1, 4, 16):
        with open_tiny(
            tiny.target,
            standalone(tiny.noisy, num_steps=4),
            max_running_requests=max_running_requests,
        ) as engine:
            results = engine.generate(prompts, greedy(25))
        metrics.append([result.spec for result in results])
    assert metrics[0] == metrics[1] == metrics[2]
