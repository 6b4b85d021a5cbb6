from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from app.config.load_time_gates import (
    CHUNKED_PREFIX_GATE,
    DTYPE_GATE,
    PREFILL_KERNEL_GATE,
    decide_load_time_fields,
)
from app.config.server_args import ServerArgs


def decide(args: ServerArgs, dtype: torch.dtype = torch.bfloat16) -> dict[str, dict[str, object]]:
    gates = decide_load_time_fields(
        args,
        dtype=dtype,
        backend_reads_prefix=lambda name: name == "torch_paged",
        choose_kernel=lambda dtype: "onednn_bf16" if dtype == torch.bfloat16 else "torch",
    )
    return {source: dict(fields) for source, fields in gates.items()}


def apply(args: ServerArgs, dtype: torch.dtype = torch.bfloat16) -> ServerArgs:
    for source, fields in decide(args, dtype).items():
        args = args.derive(source, fields)
    return args


def test_decides_what_is_unset() -> None:
    assert decide(ServerArgs(model_path="m", attention_backend="torch_dense")) == {
        DTYPE_GATE: {"dtype": "bfloat16"},
        CHUNKED_PREFIX_GATE: {"disable_chunked_prefix_cache": True},
        PREFILL_KERNEL_GATE: {"prefill_kernel": "onednn_bf16"},
    }


def test_decided_record_needs_nothing() -> None:
    args = apply(ServerArgs(model_path="m", attention_backend="torch_dense"))
    assert decide(args) == {}


def test_what_the_user_set_stays() -> None:
    args = ServerArgs(
        model_path="m",
        dtype="float32",
        prefill_kernel="onednn_bf16",
        disable_chunked_prefix_cache=True,
    )
    assert decide(args) == {}


def test_recorded_dtype_beats_the_models() -> None:
    args = ServerArgs(model_path="m", dtype="float32")
    assert decide(args) == {PREFILL_KERNEL_GATE: {"prefill_kernel": "torch"}}


def test_what_a_gate_set_is_decided_again() -> None:
    args = apply(ServerArgs(model_path="m", attention_backend="torch_dense"))
    changed = args.derive("draft", {"attention_backend": "torch_paged", "dtype": "float32"})
    assert decide(changed) == {
        CHUNKED_PREFIX_GATE: {"disable_chunked_prefix_cache": False},
        PREFILL_KERNEL_GATE: {"prefill_kernel": "torch"},
    }


def test_a_wish_that_the_backend_cannot_fulfil_warns(caplog: pytest.LogCaptureFixture) -> None:
    args = ServerArgs(
        model_path="m", attention_backend="torch_dense", disable_chunked_prefix_cache=False
    )
    with caplog.at_level(logging.WARNING):
        assert apply(args).disable_chunked_prefix_cache
    assert "attention_backend torch_dense cannot read a cached prefix" in caplog.text


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"attention_backend": "torch_dense"}, "attention_backend torch_dense prefills prompts in"),
        ({"disable_chunked_prefix_cache": True}, "disable_chunked_prefix_cache makes prompts"),
        ({}, None),
    ],
)
def test_a_chunk_size_without_chunks_warns_once(
    fields: dict[str, Any], reason: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        decide(ServerArgs(model_path="m", chunked_prefill_size=-1, **fields))
        decide(ServerArgs(model_path="m", **fields))
        assert caplog.records == []
        decide(ServerArgs(model_path="m", chunked_prefill_size=4, **fields))
    found = [record.getMessage() for record in caplog.records]
    assert len(found) == (0 if reason is None else 1)
    for message in found:
        assert message.startswith("chunked_prefill_size = 4 (argument) has no effect: ")
        assert str(reason) in message
