"""The seed's cases, with real models: nothing that a draft has of its own reaches the target.

Each property is an assertion helper; a negative control breaks the property on purpose and requires
the same helper to fail.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dependency_injector import providers

from app.config.load_time_gates import CHUNKED_PREFIX_GATE, PREFILL_KERNEL_GATE
from app.config.server_args import ServerArgs
from app.containers import EngineContainer, without_weights
from app.engine import open_engine
from app.kernels.capability import CpuCapability
from app.runtime_context import RuntimeContext
from tests.integration.pairs import (
    CONTEXT_LENGTH,
    DRAFT_CONTEXT_LENGTH,
    EVERYTHING_DIFFERS,
    Pair,
    Probe,
    control_fails,
    decode,
    draft_tp_worker,
    swap_in_drafts,
    target_is_untouched,
    without_speculation,
    write_pair,
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def own_draft(pair: Pair, tmp_path: Path) -> Path:
    """A copy of the draft that a test may damage."""
    return Path(shutil.copytree(pair.draft, tmp_path / "own-draft"))


# 1. The copy has the target's derived context length, although the record says unset.


def assert_draft_has_the_targets_length(container: Any) -> None:
    worker = draft_tp_worker(container.scheduler())
    assert container.runtime_context().resolved.context_length is None
    assert container.target.model_config().context_len == CONTEXT_LENGTH
    assert worker.server_args.context_length == CONTEXT_LENGTH, "the draft has another length"
    assert worker.model_config.context_len == CONTEXT_LENGTH
    assert worker.model_config.hf_config.max_position_embeddings == CONTEXT_LENGTH


def test_the_copy_has_the_targets_derived_length(pair: Pair) -> None:
    assert_draft_has_the_targets_length(pair.build())


def test_control_a_copy_without_the_length(pair: Pair) -> None:
    container = pair.build()

    def without_length(context: RuntimeContext, worker: Any) -> ServerArgs:
        fields = {"model_path": str(pair.draft)}
        return context.resolved.derive("control", fields, as_draft_copy=True)

    container.draft_config.override(
        providers.Factory(without_length, container.runtime_context, container.target.tp_worker)
    )
    with control_fails("another length"):
        assert_draft_has_the_targets_length(container)


def test_prompts_and_outputs_beyond_the_drafts_own_limit_decode(pair: Pair) -> None:
    limit = DRAFT_CONTEXT_LENGTH
    prompts = [[7 + i % 90 for i in range(length)] for length in (limit - 6, limit, 2 * limit)]
    alone = decode(EngineContainer(server_args=pair.args()), prompts)
    assert decode(pair.build(), prompts) == alone


# 2. The target's record and hf config are byte-identical before, during and after.


def truncate(draft: Path) -> None:
    weights = draft / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def damage_config(draft: Path) -> None:
    (draft / "config.json").write_text('{"model_type": "llama", "vocab_size": "many"}', "utf-8")


def rename_tokens(draft: Path) -> None:
    file = draft / "tokenizer.json"
    tokenizer = json.loads(file.read_text("utf-8"))
    vocab = tokenizer["model"]["vocab"]
    names = sorted(vocab, key=vocab.__getitem__)
    tokenizer["model"]["vocab"] = dict(zip(names, reversed(vocab.values()), strict=True))
    file.write_text(json.dumps(tokenizer), "utf-8")


def remove_everything(draft: Path) -> None:
    shutil.rmtree(draft)


DAMAGES = {
    "truncated weights": (truncate, "draft worker.*model.safetensors"),
    "another vocabulary": (rename_tokens, "draft worker.*another vocabulary"),
    "faulty config": (damage_config, "config.json"),
    "absent": (remove_everything, "speculative_draft_model_path.*does not exist"),
}


def test_the_target_is_untouched_by_a_draft_that_differs_in_everything(pair: Pair) -> None:
    probe = Probe()
    container = probe.build(pair, **EVERYTHING_DIFFERS)
    with target_is_untouched(container) as before:
        container.scheduler()
    assert len(probe.views) == 3
    assert probe.views == [before] * 3
    draft = draft_tp_worker(container.scheduler())
    assert draft.model_config.dtype is torch.bfloat16
    assert draft.kv_cache_dtype is torch.float16
    assert draft.server_args.attention_backend == "torch_paged"
    targets = {name: v for name, v in EVERYTHING_DIFFERS.items() if "speculative" not in name}
    assert decode(container) == pair.decode_alone(**targets)


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_target_is_untouched_and_usable_after_a_draft_that_cannot_be_built(
    pair: Pair, own_draft: Path, damage: str
) -> None:
    # Everything differs but the format: a dummy draft would read no weights.
    differing = EVERYTHING_DIFFERS | {"speculative_draft_load_format": "safetensors"}
    container = pair.build(**differing, speculative_draft_model_path=str(own_draft))
    harm, message = DAMAGES[damage]
    harm(own_draft)
    with target_is_untouched(container):
        for _ in range(2):
            with pytest.raises(ValueError, match=message):
                container.scheduler()
    assert container.runtime_context().server_args is container.runtime_context().resolved
    targets = {name: value for name, value in differing.items() if "speculative" not in name}
    assert decode(without_speculation(container)) == pair.decode_alone(**targets)


@pytest.mark.parametrize("place", ["factory", "worker", "worker with draft"])
def test_the_target_is_untouched_and_usable_after_a_worker_that_fails(
    pair: Pair, place: str
) -> None:
    probe = Probe(fails_in=place)
    container = probe.build(pair)
    with target_is_untouched(container) as before, pytest.raises(RuntimeError, match=place):
        container.scheduler()
    assert probe.views
    assert all(view == before for view in probe.views)
    probe.fails_in = None
    assert decode(container) == pair.decode_alone()


def leak_record(container: Any) -> None:
    """The seed's fault: the draft's values are written onto the shared record."""

    def shared(context: RuntimeContext, worker: Any) -> ServerArgs:
        record = context.resolved
        record.__dict__["load_format"] = "dummy"
        return record

    container.draft_config.override(
        providers.Factory(shared, container.runtime_context, container.target.tp_worker)
    )


def leak_hf_config(container: Any) -> None:
    """The draft's model config is made from the target's own hf config object."""

    def shared(target: Any) -> Any:
        target.hf_config.max_position_embeddings = DRAFT_CONTEXT_LENGTH
        return target

    swap_in_drafts(container, model_config=providers.Factory(shared, container.target.model_config))


def leak_loader_options(container: Any) -> None:
    def shared(target: Any) -> Any:
        target.extra_config["pattern"] = "of the draft"
        return target

    swap_in_drafts(
        container, loader_config=providers.Factory(shared, container.target.loader_config)
    )


def leak_weights(container: Any) -> None:
    """The draft runs in the target's own model, and settles its weights for itself."""

    def shared(target: Any) -> Any:
        with torch.no_grad():
            next(target.model_runner.model.parameters()).zero_()
        return target

    swap_in_drafts(container, tp_worker=providers.Factory(shared, container.target.tp_worker))


def leak_override(container: Any) -> None:
    """The draft decides a value of its own through the engine's context, before it is published."""

    def deciding(context: RuntimeContext, worker: Any) -> ServerArgs:
        return context.override("control", speculative_num_steps=2)

    container.draft_config.override(
        providers.Factory(deciding, container.runtime_context, container.target.tp_worker)
    )


LEAKS: dict[str, tuple[Callable[[Any], None], str]] = {
    "record": (leak_record, "the target's record, worker's record"),
    "hf config": (leak_hf_config, "the target's hf config"),
    "loader options": (leak_loader_options, "the target's load config"),
    "weights": (leak_weights, "the target's weights"),
    "override": (leak_override, "the target's record, sources, overrides"),
}


@pytest.mark.parametrize("leak", LEAKS)
@pytest.mark.parametrize("fails_in", [None, "worker with draft"])
def test_control_a_leak_is_seen(pair: Pair, leak: str, fails_in: str | None) -> None:
    container = Probe(fails_in=fails_in).build(pair)
    share, message = LEAKS[leak]
    share(container)
    with control_fails(message), target_is_untouched(container):
        container.scheduler()


# 4. Load-time decisions of the target reach the copy, and are made again where they have to.


def build_without_weights(pair: Pair, *, has_bf16: bool, **fields: Any) -> Any:
    container = without_weights(pair.build(**fields))
    capability = CpuCapability(has_onednn=has_bf16, has_avx512=has_bf16, has_avx512_bf16=has_bf16)
    container.target.cpu_capability.override(providers.Object(capability))
    return container


def assert_gates_reached_the_copy(container: Any) -> None:
    configured, copy = container.target_config(), container.draft_config()
    assert not configured.disable_chunked_prefix_cache
    assert configured.prefill_kernel is None
    assert copy.disable_chunked_prefix_cache, "the chunked-prefix gate did not reach the copy"
    assert copy.prefill_kernel == "onednn_bf16"
    assert copy.sources["disable_chunked_prefix_cache"] == CHUNKED_PREFIX_GATE
    assert copy.sources["prefill_kernel"] == PREFILL_KERNEL_GATE


def test_load_time_overrides_reach_the_copy(pair: Pair) -> None:
    assert_gates_reached_the_copy(
        build_without_weights(
            pair, has_bf16=True, dtype="bfloat16", attention_backend="torch_dense"
        )
    )


def test_control_a_copy_of_the_record_as_configured(pair: Pair) -> None:
    container = build_without_weights(
        pair, has_bf16=True, dtype="bfloat16", attention_backend="torch_dense"
    )

    def too_early(record: ServerArgs) -> ServerArgs:
        return record.derive("control", {"load_format": "dummy"}, as_draft_copy=True)

    container.draft_config.override(providers.Factory(too_early, container.target_config))
    with control_fails("did not reach"):
        assert_gates_reached_the_copy(container)


@pytest.mark.parametrize(
    ("target", "draft", "expected"),
    [
        (("torch_dense", "bfloat16"), ("torch_paged", None), (False, "onednn_bf16")),
        (("torch_paged", "bfloat16"), ("torch_dense", None), (True, "onednn_bf16")),
        (("torch_dense", "bfloat16"), (None, "float32"), (True, "torch")),
        (("torch_paged", "float32"), (None, "bfloat16"), (False, "onednn_bf16")),
        (("torch_paged", "float32"), ("torch_dense", "bfloat16"), (True, "onednn_bf16")),
    ],
)
def test_gates_are_decided_again_for_another_backend_or_dtype(
    pair: Pair,
    target: tuple[str, str],
    draft: tuple[str | None, str | None],
    expected: tuple[bool, str],
) -> None:
    container = build_without_weights(
        pair,
        has_bf16=True,
        attention_backend=target[0],
        dtype=target[1],
        speculative_draft_attention_backend=draft[0],
        speculative_draft_dtype=draft[1],
    )
    with target_is_untouched(container):
        copy = container.draft_config()
    assert (copy.disable_chunked_prefix_cache, copy.prefill_kernel) == expected
    resolved = container.runtime_context().resolved
    assert resolved.disable_chunked_prefix_cache == (target[0] == "torch_dense")
    assert resolved.prefill_kernel == ("onednn_bf16" if target[1] == "bfloat16" else "torch")


def test_the_drafts_own_fields_beat_load_time_overrides(pair: Pair) -> None:
    container = pair.build(
        speculative_draft_load_format="dummy", speculative_draft_dtype="bfloat16"
    )
    container.target.tp_worker()
    assert container.runtime_context().resolved.dtype == "float32"
    container.runtime_context().override("late", load_format="safetensors", context_length=128)
    worker = draft_tp_worker(container.scheduler())
    record = worker.server_args
    assert (record.dtype, record.load_format) == ("bfloat16", "dummy")
    assert record.context_length == CONTEXT_LENGTH
    assert worker.model_config.dtype is torch.bfloat16
    assert container.target.tp_worker().model_config.dtype is torch.float32


def test_another_backend_of_the_draft_leaves_the_targets_in_force(pair: Pair) -> None:
    container = pair.build(
        attention_backend="torch_dense", speculative_draft_attention_backend="torch_paged"
    )
    assert decode(container) == pair.decode_alone()
    target, context = container.target.tp_worker(), container.runtime_context()
    assert target.attention_backend.name == "torch_dense"
    assert target.model_config.context_len == CONTEXT_LENGTH
    assert context.resolved.attention_backend == "torch_dense"


# 9. Two engines in one process.


def assert_engines_are_independent(one: Any, two: Any) -> None:
    one.target.tp_worker()
    two.target.tp_worker()
    record = two.runtime_context().resolved
    draft = one.draft_config()
    with one.runtime_context().published(draft):
        assert two.runtime_context().server_args is record, "one engine sees the other's record"
        with target_is_untouched(one):
            two.runtime_context().override("second", chunked_prefill_size=16)
            two.scheduler()
    with target_is_untouched(two):
        one.scheduler()
    assert one.runtime_context().resolved.chunked_prefill_size == 512
    assert draft_tp_worker(one.scheduler()).server_args.load_format == "dummy"
    assert draft_tp_worker(two.scheduler()).server_args.load_format == "auto"


def test_two_engines_in_one_process_are_independent(pair: Pair) -> None:
    one, two = pair.build(speculative_draft_load_format="dummy"), pair.build()
    assert_engines_are_independent(one, two)
    alone = pair.decode_alone()
    with open_engine(one) as first, open_engine(two) as second:
        assert first.server_args != second.server_args
    assert decode(pair.build(speculative_draft_load_format="dummy")) == alone
    assert decode(two) == alone


def test_control_two_engines_over_one_context(pair: Pair) -> None:
    one, two = pair.build(speculative_draft_load_format="dummy"), pair.build()
    two.runtime_context.override(one.runtime_context)
    with control_fails("one engine sees the other's record"):
        assert_engines_are_independent(one, two)
