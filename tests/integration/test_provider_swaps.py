"""Every row of the table of swaps (docs/testing.md): what is swapped changes, nothing else does."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from dependency_injector import providers

from app.config.sampling_params import SamplingParams
from app.containers import DraftScope, EngineContainer
from app.engine import open_engine
from app.speculative.builtin import builtin_algorithms
from app.speculative.registry import AlgorithmRegistration
from app.testing.fakes import FakeTpWorker, canned_logits
from app.workers.ngram_worker import NGRAMWorker
from app.workers.tp_worker import TpModelWorker
from tests.integration.pairs import (
    CONTEXT_LENGTH,
    MAX_NEW_TOKENS,
    PROMPTS,
    Pair,
    decode,
    draft_tp_worker,
    swap_in_drafts,
    target_is_untouched,
    write_pair,
)

VOCAB_SIZE = 320
FAKE = providers.Factory(FakeTpWorker, vocab_size=VOCAB_SIZE, context_len=CONTEXT_LENGTH)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def engine(pair: Pair) -> Any:
    return pair.build()


def draft_of(worker: Any) -> Any:
    return worker.draft.worker


# Another draft record.


def test_another_draft_record(engine: Any, pair: Pair) -> None:
    ordinary = engine.draft_config()
    record = ordinary.derive("test", {"load_format": "dummy", "chunked_prefill_size": 7})
    with target_is_untouched(engine), engine.draft_config.override(record):
        scope = engine.draft_scope()
        assert scope.server_args() is record
        assert scope.model_runner().server_args is record
        assert scope.loader_config().load_format == "dummy"
        assert scope.spec_worker().server_args is record
    assert engine.draft_config() == ordinary
    assert engine.draft_scope().server_args() == ordinary
    assert decode(engine) == pair.decode_alone()


def test_overrides_at_the_call_make_another_record(engine: Any, pair: Pair) -> None:
    ordinary = engine.draft_config()
    with target_is_untouched(engine):
        record = engine.draft_config(overrides={"dtype": "bfloat16", "speculative_num_steps": 5})
        assert (record.dtype, record.speculative_num_draft_tokens) == ("bfloat16", 6)
        scope = engine.draft_scope(server_args=record)
        assert scope.tp_worker().server_args is record
        with pytest.raises(ValueError, match="draft override: unknown field 'dtpye'"):
            engine.draft_config(overrides={"dtpye": "bfloat16"})
    assert engine.draft_config() == ordinary


# A fake worker in one draft.


def test_a_fake_worker_in_one_draft(engine: Any, pair: Pair) -> None:
    with target_is_untouched(engine):
        scope = engine.draft_scope(tp_worker=FAKE)
        fake = draft_of(scope.spec_worker())
        assert type(fake) is FakeTpWorker
        assert type(draft_of(engine.draft_scope().spec_worker())) is TpModelWorker
    engine.draft_scope.override(providers.Object(scope))
    assert decode(engine) == pair.decode_alone()
    assert fake.batches, "the fake drafted nothing"


def test_a_fake_worker_loads_nothing_of_the_draft(pair: Pair) -> None:
    engine = pair.build(speculative_draft_model_path="/absent/draft")
    swap_in_drafts(engine, tp_worker=FAKE)
    assert decode(engine) == pair.decode_alone()


def test_a_perfect_fake_is_accepted_whole(engine: Any, pair: Pair) -> None:
    """A fake that knows the target's text: the rest of the engine must use all of it."""
    alone = pair.decode_alone()
    texts = [[*prompt, *output] for prompt, output in zip(PROMPTS, alone, strict=True)]

    def next_token(tokens: Any) -> int:
        (text,) = (text for text in texts if text[: len(tokens)] == list(tokens))
        return text[len(tokens)] if len(tokens) < len(text) else 0

    perfect = FakeTpWorker(
        canned_logits(VOCAB_SIZE, next_token), vocab_size=VOCAB_SIZE, context_len=CONTEXT_LENGTH
    )
    swap_in_drafts(engine, tp_worker=providers.Object(perfect))
    params = SamplingParams(max_new_tokens=MAX_NEW_TOKENS, ignore_eos=True)
    with open_engine(engine) as opened:
        results = opened.generate(PROMPTS, params)
    assert [result.token_ids for result in results] == alone
    for result in results:
        assert result.spec is not None
        # One token comes from the prefill; the last verify may be cut by the budget.
        assert result.spec.verify_steps == -(-(MAX_NEW_TOKENS - 1) // 4)


# A fake for every draft in a block.


def test_a_fake_for_every_draft_in_a_block(engine: Any, pair: Pair) -> None:
    before = engine.draft_scope()
    with target_is_untouched(engine), DraftScope.tp_worker.override(FAKE):
        scopes = [engine.draft_scope(), pair.build().draft_scope()]
        for scope in scopes:
            assert type(draft_of(scope.spec_worker())) is FakeTpWorker
    assert type(draft_of(before.spec_worker())) is TpModelWorker
    assert type(draft_of(engine.draft_scope().spec_worker())) is TpModelWorker
    assert type(draft_of(scopes[0].spec_worker())) is FakeTpWorker
    assert type(engine.target.tp_worker()) is TpModelWorker


def test_the_scheduler_takes_the_fake_of_the_block(engine: Any, pair: Pair) -> None:
    with DraftScope.tp_worker.override(FAKE):
        scheduler = engine.scheduler()
    assert type(draft_of(scheduler.spec_worker)) is FakeTpWorker
    assert decode(engine) == pair.decode_alone()


# A fake target.


def test_a_fake_target(engine: Any, pair: Pair) -> None:
    engine.target.tp_worker.override(
        providers.Singleton(FakeTpWorker, vocab_size=VOCAB_SIZE, context_len=CONTEXT_LENGTH)
    )
    fake = engine.target.tp_worker()
    scheduler = engine.scheduler()
    assert scheduler.spec_worker.target.worker is fake
    draft = draft_tp_worker(scheduler)
    assert type(draft) is TpModelWorker
    assert draft.server_args.context_length == CONTEXT_LENGTH
    alone = EngineContainer(server_args=pair.args())
    alone.target.tp_worker.override(
        providers.Singleton(FakeTpWorker, vocab_size=VOCAB_SIZE, context_len=CONTEXT_LENGTH)
    )
    assert decode(engine) == decode(alone) != pair.decode_alone()


def test_a_fake_target_needs_no_checkpoint_of_its_own(pair: Pair) -> None:
    engine = EngineContainer(
        server_args=pair.args(model_path="/absent/target", skip_tokenizer_init=True)
    )
    engine.target.tp_worker.override(
        providers.Singleton(FakeTpWorker, vocab_size=VOCAB_SIZE, context_len=CONTEXT_LENGTH)
    )
    assert [len(ids) for ids in decode(engine)] == [MAX_NEW_TOKENS] * len(PROMPTS)


# Another registry.


def test_another_registry(pair: Pair) -> None:
    given: list[Any] = []

    def create(record: Any) -> type[NGRAMWorker]:
        given.append(record)
        return NGRAMWorker

    registration = AlgorithmRegistration(
        name="MINE",
        create_worker=create,
        resolve=lambda args: {"speculative_num_draft_tokens": 4, "speculative_num_steps": 3},
    )
    mine = builtin_algorithms().with_registration(registration)
    engine = pair.build(mine, speculative_algorithm="mine")
    with target_is_untouched(engine):
        worker = engine.scheduler().spec_worker
    assert type(worker) is NGRAMWorker
    assert given == [worker.server_args]
    assert given[0] is worker.server_args
    assert decode(engine) == pair.decode_alone()
    with pytest.raises(ValueError, match="'MINE' is unknown; known are NONE, STANDALONE, NGRAM"):
        pair.build(speculative_algorithm="mine").target_config()


# Other parts of one draft.


@pytest.mark.parametrize("part", ["model_config", "loader_config", "loader", "model_runner"])
def test_one_part_of_one_draft_can_be_taken_from_another_scope(engine: Any, part: str) -> None:
    donor = engine.draft_scope()
    value = getattr(donor, part)()
    with target_is_untouched(engine):
        scope = engine.draft_scope(**{part: providers.Object(value)})
        assert getattr(scope, part)() is value
        scope.tp_worker()
        assert getattr(engine.draft_scope(), part)() is not value
        assert getattr(engine.target, part)() is not value


# Lifetimes.


def test_several_drafts_live_beside_one_target(engine: Any) -> None:
    with target_is_untouched(engine):
        one, two = engine.draft_scope(), engine.draft_scope()
        workers = [one.spec_worker(), two.spec_worker()]
    assert workers[0].target.worker is workers[1].target.worker is engine.target.tp_worker()
    assert draft_of(workers[0]) is not draft_of(workers[1])
    assert draft_of(workers[0]).model_runner.model is not draft_of(workers[1]).model_runner.model
    assert one.server_args() == two.server_args()
    assert one.server_args() is not two.server_args()


def test_a_dropped_draft_is_freed_and_the_target_is_not(engine: Any) -> None:
    scope = engine.draft_scope()
    model = weakref.ref(draft_of(scope.spec_worker()).model_runner.model)
    record = weakref.ref(scope.server_args())
    target = weakref.ref(engine.target.tp_worker().model_runner.model)
    del scope
    gc.collect()
    assert (model(), record()) == (None, None)
    assert target() is not None


def test_a_closed_engine_frees_its_draft_and_opens_again(engine: Any, pair: Pair) -> None:
    alone = pair.decode_alone()
    assert decode(engine) == alone
    target = engine.target.tp_worker()
    draft = weakref.ref(draft_tp_worker(engine.scheduler()).model_runner.model)
    assert decode(engine) == alone
    gc.collect()
    assert draft() is None
    assert engine.target.tp_worker() is target


def test_resetting_a_draft_scope_does_not_reach_the_target(engine: Any) -> None:
    scope = engine.draft_scope()
    worker, target = scope.tp_worker(), engine.target.tp_worker()
    scope.reset_singletons()
    scope.shutdown_resources()
    assert scope.tp_worker() is not worker
    assert engine.target.tp_worker() is target
    assert scope.target_worker() is target
