"""Builds engines over a tiny pair and looks at everything of a target that a draft could reach."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from app.config.model_config import ModelConfig
from app.config.sampling_params import SamplingParams
from app.config.server_args import ServerArgs
from app.config.speculative_rules import resolve_standalone
from app.containers import EngineContainer
from app.engine import open_engine
from app.scheduling.scheduler import Scheduler
from app.speculative.builtin import builtin_algorithms
from app.speculative.registry import AlgorithmRegistration, AlgorithmRegistry
from app.testing.checkpoints import write_checkpoint
from app.testing.drafts import write_noisy_draft
from app.workers.base import BaseSpecWorker
from app.workers.standalone_worker import StandaloneWorker
from app.workers.tp_worker import TpModelWorker

CONTEXT_LENGTH = 256
DRAFT_CONTEXT_LENGTH = 64
PROMPTS = ([5, 77, 120, 9, 33], [200, 201, 202], [14] * 9)
MAX_NEW_TOKENS = 12

# A draft that differs from its target in everything it may differ in.
EVERYTHING_DIFFERS: dict[str, Any] = {
    "attention_backend": "torch_dense",
    "json_model_override_args": {"rope_theta": 20000.0},
    "speculative_draft_load_format": "dummy",
    "speculative_draft_dtype": "bfloat16",
    "speculative_draft_kv_cache_dtype": "float16",
    "speculative_draft_attention_backend": "torch_paged",
    "speculative_draft_model_quantization": "unquant",
    "speculative_draft_json_model_override_args": {"rope_theta": 500.0},
    "speculative_num_steps": 2,
}


@dataclass(frozen=True)
class Pair:
    """Two checkpoints."""

    target: Path
    draft: Path

    def args(self, **fields: Any) -> ServerArgs:
        """A record of the target alone."""
        own = {
            "model_path": str(self.target),
            "device": "cpu",
            "max_running_requests": 4,
            "max_total_tokens": 1024,
        }
        return ServerArgs(**(own | fields))

    def standalone(self, **fields: Any) -> ServerArgs:
        """A record with the draft."""
        own = {
            "speculative_algorithm": "STANDALONE",
            "speculative_draft_model_path": str(self.draft),
        }
        return self.args(**(own | fields))

    def build(self, algorithms: AlgorithmRegistry | None = None, **fields: Any) -> Any:
        """A container with the draft; Any, because its providers have no types of their own."""
        given = {} if algorithms is None else {"algorithms": algorithms}
        return EngineContainer(server_args=self.standalone(**fields), **given)

    def decode_alone(self, **fields: Any) -> list[tuple[int, ...]]:
        """What the target emits without any draft, from an engine of its own."""
        return decode(EngineContainer(server_args=self.args(**fields)))


def write_pair(root: Path) -> Pair:
    """The draft is the target plus noise, made for 64 positions instead of 256."""
    target = write_checkpoint(root / "target", num_layers=2)
    draft = write_noisy_draft(target, root / "draft", strength=0.2)
    change_config(draft, max_position_embeddings=DRAFT_CONTEXT_LENGTH)
    return Pair(target, draft)


def change_config(checkpoint: Path, **values: Any) -> None:
    """Rewrite values of a checkpoint's config.json; None drops a key."""
    file = checkpoint / "config.json"
    config = json.loads(file.read_text("utf-8")) | values
    kept = {
        name: value for name, value in config.items() if value is not None or name not in values
    }
    file.write_text(json.dumps(kept), "utf-8")


def decode(
    container: Any,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> list[tuple[int, ...]]:
    """Token ids of each prompt, greedy."""
    params = SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=True)
    with open_engine(container) as engine:
        results = engine.generate(prompts, params)
    assert [result.error for result in results] == [None] * len(prompts)
    return [result.token_ids for result in results]


def draft_tp_worker(scheduler: Scheduler) -> TpModelWorker:
    """The draft's own worker."""
    worker: Any = scheduler.spec_worker
    draft = worker.draft.worker
    assert isinstance(draft, TpModelWorker)
    return draft


def weights_of(worker: Any) -> dict[str, torch.Tensor]:
    """The parameters of a worker's model."""
    model: torch.nn.Module = worker.model_runner.model
    return dict(model.named_parameters())


def embeddings_of(worker: Any) -> torch.Tensor:
    """The one tensor that no architecture here fuses with another."""
    (found,) = (t for name, t in weights_of(worker).items() if name.endswith("embed_tokens.weight"))
    return found.detach()


def target_view(container: Any) -> dict[str, str]:
    """Everything of a loaded target that building a draft could change, as text."""
    context = container.runtime_context()
    worker = container.target.tp_worker()
    model_config = worker.model_config
    return {
        "configured record": container.target_config().model_dump_json(),
        "record": context.resolved.model_dump_json(),
        "sources": json.dumps(dict(context.resolved.sources)),
        "overrides": repr(context.overrides),
        "worker's record": worker.server_args.model_dump_json(),
        "load config": repr(asdict(container.target.loader_config())),
        "hf config": json.dumps(model_config.hf_config.to_dict(), sort_keys=True, default=str),
        "model config": repr(_facts(model_config)),
        "weights": _digest(worker),
    }


def _facts(model_config: ModelConfig) -> dict[str, object]:
    return {name: value for name, value in vars(model_config).items() if name != "hf_config"}


def _digest(worker: Any) -> str:
    digest = hashlib.sha256()
    for name, tensor in weights_of(worker).items():
        digest.update(name.encode())
        if tensor.is_meta:
            continue  # built without weights
        digest.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def target_is_untouched(container: Any) -> Iterator[dict[str, str]]:
    """Load the target, run the block, and require that nothing of the target has changed."""
    before = target_view(container)
    try:
        yield before
    finally:
        after = target_view(container)
        changed = [name for name, value in before.items() if after[name] != value]
        assert not changed, f"the draft reached the target's {', '.join(changed)}"


@dataclass
class Probe:
    """An algorithm that drafts as STANDALONE does and notes what its factory and worker see.

    `container` is looked at while the draft is built; `fails_in` is "factory", "worker" (before the
    draft loads) or "worker with draft".
    """

    fails_in: str | None = None
    container: Any = None
    factory_record: ServerArgs | None = None
    worker_record: ServerArgs | None = None
    published: list[ServerArgs] = field(default_factory=list)
    views: list[dict[str, str]] = field(default_factory=list)
    copies: list[ServerArgs] = field(default_factory=list)

    def registry(self) -> AlgorithmRegistry:
        return builtin_algorithms().with_registration(
            AlgorithmRegistration(
                name="PROBE",
                create_worker=self._create_worker,
                has_draft_model=True,
                resolve=resolve_standalone,
            )
        )

    def build(self, pair: Pair, **fields: Any) -> Any:
        self.container = pair.build(self.registry(), speculative_algorithm="PROBE", **fields)
        return self.container

    def look(self, place: str) -> None:
        self.published.append(self.container.runtime_context().server_args)
        self.views.append(target_view(self.container))
        self.copies.append(self.container.draft_config())
        if self.fails_in == place:
            raise RuntimeError(f"failed in the {place}")

    def _create_worker(self, server_args: ServerArgs) -> type[BaseSpecWorker]:
        probe = self

        class ProbeWorker(StandaloneWorker):
            def __init__(self, *, server_args: ServerArgs, **parts: Any) -> None:
                probe.worker_record = server_args
                probe.look("worker")
                super().__init__(server_args=server_args, **parts)
                probe.look("worker with draft")

        self.factory_record = server_args
        self.look("factory")
        return ProbeWorker


def without_speculation(container: Any) -> Any:
    """Let a container whose draft could not be built decode with its target alone."""
    container.runtime_context().override("operator", speculative_algorithm=None)
    return container


def swap_in_drafts(container: Any, **parts: Any) -> None:
    """Replace parts of every draft of one engine by other providers.

    The providers themselves are handed on; as plain arguments they would be called when the scope
    is made, before the draft's record is published.
    """
    handed_on = {name: provider.provider for name, provider in parts.items()}
    container.draft_scope.add_kwargs(**handed_on)


def control_fails(message: str) -> Any:
    """What a negative control expects: the property's own assertion fails."""
    return pytest.raises(AssertionError, match=message)
