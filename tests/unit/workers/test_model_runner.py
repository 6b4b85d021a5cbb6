"""What a runner decides while it loads, and for whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from app.config.load_config import build_load_config
from app.config.load_time_gates import CHUNKED_PREFIX_GATE, DTYPE_GATE, PREFILL_KERNEL_GATE
from app.config.model_config import ModelConfig
from app.config.server_args import ServerArgs
from app.kernels.capability import CpuCapability
from app.loading.meta_loader import MetaLoader
from app.runtime_context import RuntimeContext
from app.testing.checkpoints import write_checkpoint
from app.workers.model_runner import ModelRunner
from app.workers.tp_worker import TpModelWorker

FAST_BF16 = CpuCapability(has_onednn=True, has_avx512=True, has_avx512_bf16=True)
PLAIN = CpuCapability(has_onednn=True, has_avx2=True)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model") / "tiny", num_layers=2)


def build(
    checkpoint: Path,
    capability: CpuCapability = PLAIN,
    *,
    is_draft_worker: bool = False,
    **fields: Any,
) -> tuple[ModelRunner, RuntimeContext]:
    """A runner without weights, and the context of its engine."""
    args = ServerArgs(model_path=str(checkpoint), **({"device": "cpu"} | fields))
    context = RuntimeContext(args)
    runner = ModelRunner(
        server_args=args,
        model_config=ModelConfig.from_server_args(args),
        loader=MetaLoader(build_load_config(args)),
        runtime_context=context,
        cpu_capability=capability,
        is_draft_worker=is_draft_worker,
    )
    return runner, context


def test_a_target_records_what_it_decides(checkpoint: Path) -> None:
    runner, context = build(
        checkpoint, FAST_BF16, dtype="bfloat16", attention_backend="torch_dense"
    )
    assert context.overrides == (
        (CHUNKED_PREFIX_GATE, {"disable_chunked_prefix_cache": True}),
        (PREFILL_KERNEL_GATE, {"prefill_kernel": "onednn_bf16"}),
    )
    assert runner.server_args is context.resolved
    assert runner.model.linear_kernel == "onednn_bf16"


@pytest.mark.parametrize(
    ("capability", "dtype", "kernel"),
    [
        (FAST_BF16, "bfloat16", "onednn_bf16"),
        (FAST_BF16, "float32", "torch"),
        (PLAIN, "bfloat16", "torch"),
        (CpuCapability(has_onednn=True, has_avx512=True, has_amx_bf16=True), "bfloat16",
         "onednn_bf16"),
        (CpuCapability(has_avx512=True, has_avx512_bf16=True), "bfloat16", "torch"),
    ],
)  # fmt: skip
def test_the_kernel_follows_the_machine_and_the_dtype(
    checkpoint: Path, capability: CpuCapability, dtype: str, kernel: str
) -> None:
    runner, context = build(checkpoint, capability, dtype=dtype)
    assert context.resolved.prefill_kernel == kernel
    assert runner.model.linear_kernel == kernel


def test_an_automatic_dtype_is_recorded(checkpoint: Path) -> None:
    runner, context = build(checkpoint)
    assert context.resolved.dtype == "float32"
    assert context.resolved.sources["dtype"] == DTYPE_GATE
    assert next(runner.model.parameters()).dtype is torch.float32


def test_what_the_user_decided_stays(checkpoint: Path) -> None:
    _, context = build(checkpoint, FAST_BF16, dtype="bfloat16", prefill_kernel="torch")
    assert context.overrides == ()
    assert context.resolved.prefill_kernel == "torch"


def test_a_draft_decides_nothing(checkpoint: Path) -> None:
    runner, context = build(
        checkpoint,
        FAST_BF16,
        is_draft_worker=True,
        dtype="bfloat16",
        attention_backend="torch_dense",
    )
    assert context.overrides == ()
    assert runner.server_args is context.resolved
    assert not runner.server_args.disable_chunked_prefix_cache
    # The question itself is answered for anybody: a draft's record is decided by its copy.
    assert set(runner.load_time_gates(runner.server_args)) == {
        CHUNKED_PREFIX_GATE,
        PREFILL_KERNEL_GATE,
    }


def test_a_draft_may_be_built_while_its_record_is_published(checkpoint: Path) -> None:
    args = ServerArgs(model_path=str(checkpoint), device="cpu", dtype="float32")
    context = RuntimeContext(ServerArgs(model_path="target"))

    def parts(is_draft_worker: bool) -> ModelRunner:
        return ModelRunner(
            server_args=args,
            model_config=ModelConfig.from_server_args(args),
            loader=MetaLoader(build_load_config(args)),
            runtime_context=context,
            cpu_capability=PLAIN,
            is_draft_worker=is_draft_worker,
        )

    with context.published(args):
        assert parts(is_draft_worker=True).server_args is args
        with pytest.raises(RuntimeError, match="cannot change while a draft's record is published"):
            parts(is_draft_worker=False)


@pytest.mark.parametrize(
    ("fields", "dtype"),
    [
        ({"dtype": "float32"}, torch.float32),
        ({"dtype": "float32", "kv_cache_dtype": "bfloat16"}, torch.bfloat16),
        ({"dtype": "bfloat16"}, torch.bfloat16),
    ],
)
def test_the_caches_dtype(checkpoint: Path, fields: dict[str, str], dtype: torch.dtype) -> None:
    runner, _ = build(checkpoint, **fields)
    worker = TpModelWorker(runner)
    worker.alloc_kv_pool(8)
    assert worker.token_to_kv_pool.dtype is dtype
    assert len(worker.kv_geometry) == 2
    assert worker.token_to_kv_pool.k[0].shape == (8, 2, 8)


def test_later_stages_read_the_runners_own_values(checkpoint: Path) -> None:
    """Whatever is published then: the backend was decided when the runner was built."""
    runner, context = build(checkpoint, attention_backend="torch_dense")
    worker = TpModelWorker(runner)
    with context.published(ServerArgs(model_path="x", attention_backend="torch_paged")):
        worker.init_attention_backend()
    assert worker.attention_backend.name == "torch_dense"
    assert worker.last_position == 255


def test_a_device_that_is_absent_is_named(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device: cuda was asked for, but torch sees no CUDA"):
        build(checkpoint, device="cuda")
    runner, _ = build(checkpoint, device="auto")
    assert runner.device.type == "cpu"
