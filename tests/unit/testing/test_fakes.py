"""Engines whose target and draft have no weights: the cache is real, the model is a function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from dependency_injector import providers

from app.attention.forward_batch import AttentionSpan, ForwardBatch, ForwardMode
from app.config.sampling_params import SamplingParams
from app.config.server_args import ServerArgs
from app.containers import DraftScope, EngineContainer
from app.engine import open_engine
from app.results import GenerateResult
from app.testing.fakes import FakeTpWorker, LogitsFunction, canned_logits, hashed_logits

VOCAB_SIZE = 64
PROMPTS = ([5, 6, 7, 5, 6], [60], list(range(10, 40)))


def expected_text(logits: LogitsFunction, prompt: Sequence[int], num_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(int(logits(tokens).argmax()))
    return tokens[len(prompt) :]


def run(
    target: LogitsFunction, draft: LogitsFunction | None, settings: Mapping[str, object]
) -> list[GenerateResult]:
    args = ServerArgs.model_validate(
        {
            "model_path": "fake",
            "skip_tokenizer_init": True,
            "device": "cpu",
            "dtype": "float32",
            "chunked_prefill_size": 8,
            "max_running_requests": 4,
            "max_total_tokens": 512,
            **settings,
        }
    )
    container = EngineContainer(server_args=args)
    worker = FakeTpWorker(target, server_args=args)
    container.target.tp_worker.override(providers.Object(worker))
    container.target.model_config.override(providers.Object(worker.model_config))
    with (
        DraftScope.tp_worker.override(providers.Factory(FakeTpWorker, draft)),
        open_engine(container) as engine,
    ):
        return engine.generate(PROMPTS, SamplingParams(max_new_tokens=20, ignore_eos=True))


TREE = {
    "speculative_algorithm": "STANDALONE",
    "speculative_draft_model_path": "fake",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 2,
    "speculative_num_draft_tokens": 6,
}
CHAIN = {
    "speculative_algorithm": "STANDALONE",
    "speculative_draft_model_path": "fake",
    "speculative_num_steps": 3,
}


@pytest.mark.parametrize("settings", [{}, CHAIN, TREE, {"speculative_algorithm": "NGRAM"}])
def test_every_algorithm_gives_the_text_of_the_function(settings: Mapping[str, object]) -> None:
    target = hashed_logits(VOCAB_SIZE)
    results = run(target, hashed_logits(VOCAB_SIZE, order=2), settings)
    texts = [list(result.token_ids) for result in results]
    assert texts == [expected_text(target, prompt, 20) for prompt in PROMPTS]


@pytest.mark.parametrize(
    ("draft_step", "accept_length"),
    [(1, 4.0), (2, 1.0)],
    ids=["always right", "never right"],
)
def test_acceptance_of_canned_drafts(draft_step: int, accept_length: float) -> None:
    def counting(step: int) -> LogitsFunction:
        return canned_logits(VOCAB_SIZE, lambda tokens: (tokens[-1] + step) % VOCAB_SIZE)

    for result in run(counting(1), counting(draft_step), CHAIN):
        assert result.spec is not None
        found = result.spec.to_json()["accept_length"]
        # The last verify is cut short by max_new_tokens.
        assert found == pytest.approx(accept_length, abs=0.3)


def test_a_slot_that_holds_another_token_changes_the_logits() -> None:
    """The negative control: the fake reads its cache, so that a misplaced token is seen."""
    tokens = torch.tensor([7, 8, 9])
    rows = []
    for slots in ([1, 2, 3], [2, 1, 3]):
        worker = FakeTpWorker()
        worker.alloc_kv_pool(8)
        batch = ForwardBatch(
            mode=ForwardMode.EXTEND,
            input_ids=tokens,
            positions=torch.arange(3),
            out_cache_loc=torch.tensor(slots),
            spans=(AttentionSpan(0, 3, 0, torch.tensor([1, 2, 3])),),
            token_to_kv_pool=worker.token_to_kv_pool,
            attn_backend=worker.attention_backend,
        )
        if slots == [1, 2, 3]:
            rows.append(worker.forward(batch))
        else:
            with pytest.raises(AssertionError, match="behind its own position"):
                worker.forward(batch)
    expected = torch.stack([hashed_logits(VOCAB_SIZE)([7, 8, 9][: i + 1]) for i in range(3)])
    torch.testing.assert_close(rows[0], expected)
