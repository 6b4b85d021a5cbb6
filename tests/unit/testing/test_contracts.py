"""The contract tests on the built-in algorithms, and on broken ones that they must refuse."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from app.config.server_args import ServerArgs
from app.speculative.builtin import builtin_algorithms
from app.speculative.registry import AlgorithmRegistration
from app.testing.contracts import AlgorithmContract
from app.workers.base import BaseSpecWorker
from app.workers.batch import DecodeState, StepOutput
from app.workers.ngram_worker import NGRAMWorker
from app.workers.proposal import Proposal


def load_example_plugin() -> AlgorithmRegistration:
    path = Path(__file__).parents[3] / "docs" / "plugins" / "prompt_lookup.py"
    spec = spec_from_file_location("prompt_lookup", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    registration: AlgorithmRegistration = module.registration
    return registration


class TestExamplePlugin(AlgorithmContract):
    registration = load_example_plugin()


class TestNgram(AlgorithmContract):
    registration = builtin_algorithms().get("NGRAM")


class TestStandaloneChain(AlgorithmContract):
    registration = builtin_algorithms().get("STANDALONE")


class TestStandaloneTree(AlgorithmContract):
    registration = builtin_algorithms().get("STANDALONE")
    settings = {  # noqa: RUF012
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 2,
        "speculative_num_draft_tokens": 6,
    }


class _Forgetful(NGRAMWorker):
    """Emits its own proposal instead of what the target says."""

    def after_verify(self, outputs: Sequence[StepOutput]) -> None:
        super().after_verify(outputs)
        for output in outputs:
            output.token_ids[-1] = (output.token_ids[-1] + 1) % 64


class _Holder(BaseSpecWorker):
    """Keeps a slot."""

    def propose(self, states: Sequence[DecodeState]) -> Proposal | None:
        self.target.pools.allocator.alloc(1)
        return None


def _registration(worker: type[BaseSpecWorker]) -> AlgorithmRegistration:
    def create_worker(server_args: ServerArgs) -> type[BaseSpecWorker]:
        return worker

    ngram = builtin_algorithms().get("NGRAM")
    return AlgorithmRegistration(name="BROKEN", create_worker=create_worker, resolve=ngram.resolve)


def test_the_contract_refuses_a_lossy_algorithm(tmp_path: Path) -> None:
    contract = AlgorithmContract()
    contract.registration = _registration(_Forgetful)  # type: ignore[misc]
    with pytest.raises(AssertionError, match="draft"):
        contract.test_greedy_text_is_the_targets(tmp_path)


def test_the_contract_refuses_an_algorithm_that_keeps_slots(tmp_path: Path) -> None:
    contract = AlgorithmContract()
    contract.registration = _registration(_Holder)  # type: ignore[misc]
    with pytest.raises(AssertionError):
        contract.test_an_aborted_request_returns_its_slots(tmp_path)
