"""What goes wrong before there is a record to publish is the draft's fault too."""

from __future__ import annotations

import pytest

from app.config.server_args import ServerArgs
from app.runtime_context import RuntimeContext
from app.scheduling.draft_handoff import build_spec_worker
from app.workers.base import BaseSpecWorker


class ScopeWithoutRecord:
    def server_args(self) -> ServerArgs:
        raise ValueError("/d/config.json: no such file")

    def spec_worker(self) -> BaseSpecWorker:
        pytest.fail("there is no record to build it with")


def test_a_record_that_cannot_be_made_names_the_draft() -> None:
    context = RuntimeContext(ServerArgs(model_path="target"))
    with pytest.raises(ValueError, match=r"^draft worker \(its configuration\): /d/config\.json"):
        build_spec_worker(ScopeWithoutRecord(), context)
    assert context.server_args.model_path == "target"
