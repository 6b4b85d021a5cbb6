"""The draft's record: values of the seed's ten cases, the table of unset fields, isolation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from app.config.draft_args import draft_server_args_copy
from app.config.load_config import build_load_config
from app.config.load_time_gates import CHUNKED_PREFIX_GATE, PREFILL_KERNEL_GATE
from app.config.model_config import ModelConfig
from app.config.resolution import resolve_server_args
from app.config.server_args import ServerArgs
from app.runtime_context import RuntimeContext
from app.speculative.registry import AlgorithmRegistration, AlgorithmRegistry

from .conftest import FakeTargetWorker, WriteCheckpoint


@dataclass
class Engine:
    """An engine whose target has been loaded: its gates have overridden the record."""

    runtime_context: RuntimeContext
    target_worker: FakeTargetWorker
    algorithms: AlgorithmRegistry

    @property
    def target(self) -> ServerArgs:
        return self.runtime_context.resolved

    def copy(self, **overrides: object) -> ServerArgs:
        return draft_server_args_copy(
            self.runtime_context,
            target_worker=self.target_worker,
            algorithms=self.algorithms,
            overrides=overrides or None,
        )


BuildEngine = Callable[..., Engine]


@pytest.fixture
def build_engine(write_checkpoint: WriteCheckpoint, algorithms: AlgorithmRegistry) -> BuildEngine:
    """`build(algorithm, **fields)`; the draft's checkpoint is fp16 and made for 32 tokens."""
    target = write_checkpoint("target")
    draft = write_checkpoint("draft", max_position_embeddings=32, torch_dtype="float16")

    def build(
        algorithm: str | None = "STANDALONE",
        registry: AlgorithmRegistry = algorithms,
        **fields: Any,
    ) -> Engine:
        if algorithm is not None:
            fields["speculative_algorithm"] = algorithm
        if algorithm == "STANDALONE":
            fields.setdefault("speculative_draft_model_path", draft)
        fields.setdefault("model_path", target)
        record = resolve_server_args(ServerArgs(**fields), registry)
        context = RuntimeContext(record)
        worker = FakeTargetWorker(ModelConfig.from_server_args(record))
        for source, decided in worker.load_time_gates(record).items():
            context.override(source, **decided)
        worker.gate_calls.clear()
        return Engine(context, worker, registry)

    return build


def dump(engine: Engine) -> tuple[str, dict[str, str], str]:
    """Everything of the target that a draft could reach, as bytes would be compared."""
    return (
        engine.target.model_dump_json(),
        dict(engine.target.sources),
        engine.target_worker.model_config.hf_config.to_json_string(),
    )


@contextmanager
def target_is_untouched(engine: Engine) -> Iterator[None]:
    before = dump(engine)
    try:
        yield
    finally:
        assert dump(engine) == before, "the draft reached the target's configuration"


# The seed's cases.


def test_copy_has_the_targets_derived_length_although_the_record_says_unset(
    build_engine: BuildEngine,
) -> None:
    engine = build_engine()
    copy = engine.copy()
    assert engine.target.context_length is None
    assert copy.context_length == 4096
    assert copy.sources["context_length"] == "draft copy: target's derived context length"


def test_target_is_untouched_on_success_and_on_failure(build_engine: BuildEngine) -> None:
    engine = build_engine(speculative_draft_load_format="dummy")
    with target_is_untouched(engine):
        copy = engine.copy()
        assert copy is not engine.target
        with engine.runtime_context.published(copy):
            ModelConfig.from_server_args(copy)
    broken = engine.copy(model_path=engine.target.model_path + "/..")
    with target_is_untouched(engine), pytest.raises(ValueError, match="no such file"):
        ModelConfig.from_server_args(broken)
    with target_is_untouched(engine), pytest.raises(ValueError, match="unknown field"):
        engine.copy(page_sise=2)


def test_target_is_untouched_where_target_and_draft_are_one_checkpoint(
    build_engine: BuildEngine,
) -> None:
    target = build_engine().target.model_path
    engine = build_engine(
        speculative_draft_model_path=target,
        speculative_draft_json_model_override_args={
            "num_hidden_layers": 1,
            "max_position_embeddings": 16,
        },
    )
    with target_is_untouched(engine):
        config = ModelConfig.from_server_args(engine.copy())
        assert config.num_hidden_layers == 1
        assert config.context_len == 4096


def test_isolation_assertion_catches_a_shared_hf_config(build_engine: BuildEngine) -> None:
    engine = build_engine()
    shared: Any = engine.target_worker.model_config.hf_config
    with pytest.raises(AssertionError, match="the draft reached"), target_is_untouched(engine):
        shared.max_position_embeddings = 32


def test_isolation_assertion_catches_a_written_record(build_engine: BuildEngine) -> None:
    engine = build_engine()
    with pytest.raises(AssertionError, match="the draft reached"), target_is_untouched(engine):
        engine.target.__dict__["load_format"] = "dummy"


def test_draft_load_format_applies_to_the_draft_only(build_engine: BuildEngine) -> None:
    engine = build_engine(speculative_draft_load_format="dummy")
    copy = engine.copy()
    assert (copy.load_format, engine.target.load_format) == ("dummy", "auto")
    assert copy.sources["load_format"] == "draft copy: speculative_draft_load_format"
    assert build_load_config(copy).load_format == "dummy"


@pytest.mark.parametrize("load_format", ["auto", "safetensors"])
def test_draft_load_format_is_inherited_when_unset(
    build_engine: BuildEngine, load_format: str
) -> None:
    assert build_engine(load_format=load_format).copy().load_format == load_format


def test_inherited_auto_is_decided_for_the_drafts_own_path(build_engine: BuildEngine) -> None:
    copy = build_engine(speculative_draft_model_path="some/draft.gguf").copy()
    assert copy.load_format == "auto"
    assert build_load_config(copy).load_format == "gguf"


def test_loader_options_do_not_follow_to_another_load_format(build_engine: BuildEngine) -> None:
    fields = {"load_format": "sharded_state", "model_loader_extra_config": {"pattern": "x"}}
    assert build_engine(**fields).copy().model_loader_extra_config == (("pattern", "x"),)
    engine = build_engine(**fields, speculative_draft_load_format="dummy")
    assert engine.copy().model_loader_extra_config == ()
    assert engine.copy(model_loader_extra_config={"a": 1}).model_loader_extra_config == (("a", 1),)
    assert engine.target.model_loader_extra_config == (("pattern", "x"),)
    assert build_engine(**fields).copy(load_format="auto").model_loader_extra_config == ()


def test_load_time_override_reaches_the_copy(build_engine: BuildEngine) -> None:
    engine = build_engine()
    engine.runtime_context.override("late", disable_chunked_prefix_cache=True)
    assert engine.copy().disable_chunked_prefix_cache
    assert engine.copy().sources["disable_chunked_prefix_cache"] == "late"


def test_draft_fields_beat_load_time_overrides(build_engine: BuildEngine) -> None:
    engine = build_engine(speculative_draft_load_format="dummy", speculative_draft_dtype="float32")
    engine.runtime_context.override(
        "late", context_length=128, load_format="safetensors", dtype="float16"
    )
    copy = engine.copy()
    assert (copy.context_length, copy.load_format, copy.dtype) == (4096, "dummy", "float32")


def test_published_during_construction_and_restored_after(build_engine: BuildEngine) -> None:
    engine = build_engine(speculative_draft_load_format="dummy")
    context, copy = engine.runtime_context, engine.copy()
    with context.published(copy):
        assert context.server_args is copy
        assert context.resolved.load_format == "auto"
    assert context.server_args.load_format == "auto"
    with pytest.raises(RuntimeError, match="boom"), context.published(copy):
        raise RuntimeError("boom")
    assert context.server_args.load_format == "auto"


def test_copy_made_while_another_draft_is_published_starts_from_the_target(
    build_engine: BuildEngine,
) -> None:
    engine = build_engine(speculative_draft_load_format="dummy")
    first = engine.copy()
    other = first.derive("test", {"load_format": "pt", "chunked_prefill_size": 3})
    with engine.runtime_context.published(other):
        assert engine.copy() == first


# What an unset field means: the table of design.md section 5.

# copy's field, draft's field, the target's value, another value, what unset gives.
TABLE = [
    ("model_path", "speculative_draft_model_path", "target", "draft", None),
    ("revision", "speculative_draft_model_revision", "r1", "r2", "main"),
    ("load_format", "speculative_draft_load_format", "pt", "dummy", "pt"),
    ("quantization", "speculative_draft_model_quantization", "modelopt_fp4", "unquant", None),
    ("dtype", "speculative_draft_dtype", "float32", "bfloat16", "float32"),
    ("attention_backend", "speculative_draft_attention_backend", "torch_dense", "torch_paged",
     "torch_dense"),
    ("kv_cache_dtype", "speculative_draft_kv_cache_dtype", "float16", "float32", "float16"),
    ("trust_remote_code", "speculative_draft_trust_remote_code", True, False, False),
    ("json_model_override_args", "speculative_draft_json_model_override_args",
     {"rope_theta": 7.0}, {"rope_theta": 8.0}, {}),
]  # fmt: skip


@pytest.mark.parametrize("case", ["unset", "same", "different"])
@pytest.mark.parametrize(
    ("field", "draft_field", "value", "other", "when_unset"), TABLE, ids=[row[0] for row in TABLE]
)
def test_draft_fields(
    build_engine: BuildEngine,
    case: str,
    field: str,
    draft_field: str,
    value: object,
    other: object,
    when_unset: object,
) -> None:
    is_path = field == "model_path"
    if is_path:
        known = build_engine()
        value = known.target.model_path
        other = known.target.speculative_draft_model_path
    fields: dict[str, Any] = {field: value}
    if case != "unset":
        fields[draft_field] = value if case == "same" else other
    if is_path and case == "unset":
        with pytest.raises(ValueError, match="speculative_draft_model_path is needed"):
            build_engine(**fields, speculative_draft_model_path=None)
        return
    engine = build_engine(**fields)
    with target_is_untouched(engine):
        copy = engine.copy()
    expected = {"unset": when_unset, "same": value, "different": other}[case]
    assert copy.model_dump()[field] == expected
    assert engine.target.model_dump()[field] == value
    if case != "unset":
        assert copy.sources[field] == f"draft copy: {draft_field}"


def test_tokenizer_stays_the_targets(build_engine: BuildEngine) -> None:
    engine = build_engine()
    copy = engine.copy()
    assert copy.tokenizer_path == engine.target.model_path
    assert copy.model_path == engine.target.speculative_draft_model_path


def test_explicit_auto_dtype_is_the_drafts_checkpoints(build_engine: BuildEngine) -> None:
    engine = build_engine(speculative_draft_dtype="auto")
    assert engine.target.dtype == "bfloat16"
    assert engine.copy().dtype == "float16"
    assert build_engine().copy().dtype == "bfloat16"


def test_ngram_keeps_the_targets_model(build_engine: BuildEngine) -> None:
    engine = build_engine(
        "NGRAM",
        dtype="float32",
        trust_remote_code=True,
        json_model_override_args={"rope_theta": 7.0},
        speculative_draft_load_format="dummy",
        speculative_draft_dtype="bfloat16",
    )
    copy = engine.copy()
    assert copy.load_format == "dummy"
    assert copy.context_length == 4096
    differing = {
        f for f in ServerArgs.model_fields if getattr(copy, f) != getattr(engine.target, f)
    }
    assert differing == {"load_format", "context_length"}


def test_plugin_with_a_draft_in_the_targets_checkpoint(
    build_engine: BuildEngine, algorithms: AlgorithmRegistry
) -> None:
    registry = algorithms.with_registration(
        AlgorithmRegistration(
            name="MTP",
            create_worker=lambda args: pytest.fail("not built here"),
            has_draft_model=True,
        )
    )
    engine = build_engine(
        "MTP", registry, revision="r1", quantization="modelopt_fp4", trust_remote_code=True
    )
    copy = engine.copy()
    assert (copy.model_path, copy.revision) == (engine.target.model_path, "r1")
    assert (copy.quantization, copy.trust_remote_code) == (None, False)


# Load-time decisions are made again where the draft's machine facts differ.


def test_gates_are_decided_again_for_another_backend_or_dtype(build_engine: BuildEngine) -> None:
    engine = build_engine(
        attention_backend="torch_dense",
        speculative_draft_attention_backend="torch_paged",
        speculative_draft_dtype="float32",
    )
    assert engine.target.disable_chunked_prefix_cache
    assert engine.target.prefill_kernel == "onednn_bf16"
    copy = engine.copy()
    assert not copy.disable_chunked_prefix_cache
    assert copy.prefill_kernel == "torch"
    assert copy.sources["disable_chunked_prefix_cache"] == CHUNKED_PREFIX_GATE
    assert copy.sources["prefill_kernel"] == PREFILL_KERNEL_GATE


def test_gates_are_inherited_where_nothing_differs(build_engine: BuildEngine) -> None:
    engine = build_engine(attention_backend="torch_dense")
    copy = engine.copy()
    assert copy.disable_chunked_prefix_cache
    assert copy.prefill_kernel == "onednn_bf16"
    assert engine.target_worker.gate_calls == []


def test_what_the_user_set_is_not_decided_again(build_engine: BuildEngine) -> None:
    engine = build_engine(
        prefill_kernel="onednn_bf16",
        disable_chunked_prefix_cache=True,
        speculative_draft_dtype="float32",
    )
    copy = engine.copy()
    assert copy.prefill_kernel == "onednn_bf16"
    assert copy.disable_chunked_prefix_cache


def test_override_beats_a_gate_even_with_the_gates_own_value(build_engine: BuildEngine) -> None:
    engine = build_engine(
        attention_backend="torch_dense", speculative_draft_attention_backend="torch_paged"
    )
    assert engine.copy(disable_chunked_prefix_cache=True).disable_chunked_prefix_cache


# Call-time overrides.


def test_overrides_beat_everything(build_engine: BuildEngine) -> None:
    engine = build_engine(speculative_draft_load_format="dummy")
    copy = engine.copy(load_format="auto", context_length=64, dtype="float16")
    assert (copy.load_format, copy.context_length, copy.dtype) == ("auto", 64, "float16")
    assert copy.sources["load_format"] == "draft override"
    assert copy.is_draft_copy


def test_overrides_of_draft_fields_reach_what_they_stand_for(build_engine: BuildEngine) -> None:
    engine = build_engine(speculative_draft_model_revision="r1")
    copy = engine.copy(speculative_draft_model_path="other", speculative_num_steps=5)
    assert (copy.model_path, copy.revision) == ("other", "main")
    assert copy.speculative_num_draft_tokens == 6
    pinned = engine.copy(
        speculative_draft_model_path="other", speculative_draft_model_revision="r9"
    )
    assert pinned.revision == "r9"


def test_overrides_may_change_the_algorithm(build_engine: BuildEngine) -> None:
    engine = build_engine()
    ngram = engine.copy(speculative_algorithm="ngram")
    assert ngram.speculative_algorithm == "NGRAM"
    assert ngram.speculative_num_draft_tokens == 12
    assert ngram.model_path == engine.target.model_path
    back = build_engine("NGRAM").copy(
        speculative_algorithm="STANDALONE", speculative_draft_model_path="d"
    )
    assert (back.speculative_num_steps, back.speculative_num_draft_tokens) == (3, 4)
    assert back.model_path == "d"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"page_sise": 2}, "draft override: unknown field 'page_sise'; did you mean 'page_size'?"),
        ({"dtype": "int8"}, r"dtype = 'int8' \(draft override\): input should be"),
        ({"page_size": 2}, r"page_size = 2 \(draft override\): belongs to the whole engine"),
        ({"chunked_prefill_size": 3}, r"chunked_prefill_size = 3 .*belongs to the whole engine"),
        ({"skip_tokenizer_init": True}, "belongs to the whole engine"),
        ({"speculative_num_steps": 80}, "must be at most speculative_max_draft_tokens"),
    ],
)
def test_faulty_overrides(
    build_engine: BuildEngine, overrides: dict[str, object], message: str
) -> None:
    engine = build_engine()
    with target_is_untouched(engine), pytest.raises(ValueError, match=message):
        engine.copy(**overrides)
    engine.copy(page_size=1)


@pytest.mark.parametrize("algorithm", ["STANDALONE", "NGRAM"])
def test_copy_is_resolved_and_repeatable(build_engine: BuildEngine, algorithm: str) -> None:
    engine = build_engine(algorithm, speculative_draft_load_format="dummy")
    copy = engine.copy()
    assert resolve_server_args(copy, engine.algorithms) == copy
    assert engine.copy() == copy


def test_copying_repeats_no_warnings(
    build_engine: BuildEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine = build_engine(
        speculative_ngram_capacity=9, speculative_num_steps=3, speculative_num_draft_tokens=9
    )
    assert len(caplog.records) > 0
    caplog.clear()
    engine.copy()
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == []
    engine.copy(speculative_ngram_capacity=8)
    assert "speculative_ngram_capacity = 8 (draft override) has no effect" in caplog.text
