"""The containers with fakes for models: what is built, in which order, and what is not."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from dependency_injector import errors, providers

import app.containers
from app.config.server_args import ServerArgs
from app.containers import (
    ApplicationContainer,
    DraftScope,
    EngineContainer,
    TargetScope,
    without_weights,
)
from app.loading.meta_loader import MetaLoader
from app.runtime_context import RuntimeContext
from app.scheduling.draft_handoff import build_spec_worker
from app.speculative.builtin import builtin_algorithms
from app.speculative.registry import AlgorithmRegistration
from app.testing.fakes import FakeTpWorker
from app.workers.standalone_worker import StandaloneWorker
from app.workers.target_only_worker import TargetOnlyWorker

CONTEXT_LENGTH = 128


class LoggedWorkers:
    """Fake workers that note when they are built."""

    def __init__(self) -> None:
        self.built: list[str] = []

    def target(self, server_args: ServerArgs, context: RuntimeContext) -> FakeTpWorker:
        """Decides a load-time value as a real target's runner does."""
        self.built.append("target")
        context.override("fake gate", disable_chunked_prefix_cache=True)
        return FakeTpWorker(context_len=CONTEXT_LENGTH, server_args=context.resolved)

    def draft(self, server_args: ServerArgs) -> FakeTpWorker:
        self.built.append("draft")
        return FakeTpWorker(context_len=CONTEXT_LENGTH, server_args=server_args)


def fake_engine(workers: LoggedWorkers | None = None, **fields: Any) -> Any:
    """An engine container whose models are fakes; STANDALONE unless `fields` say otherwise."""
    workers = workers or LoggedWorkers()
    given: dict[str, Any] = {
        "model_path": "target",
        "dtype": "float32",
        "speculative_algorithm": "STANDALONE",
        "speculative_draft_model_path": "draft",
        "max_total_tokens": 256,
        "max_running_requests": 2,
        "skip_tokenizer_init": True,
    }
    if (fields.get("speculative_algorithm") or "") == "NGRAM":
        given["speculative_draft_model_path"] = None
    engine: Any = EngineContainer(server_args=ServerArgs(**(given | fields)))
    engine.target.tp_worker.override(
        providers.Singleton(workers.target, engine.target.server_args, engine.runtime_context)
    )
    swap_in_drafts(engine, providers.Singleton(workers.draft, engine.draft_config))
    return engine


def swap_in_drafts(engine: Any, tp_worker: Any) -> None:
    """The provider itself is handed on: as a plain argument it would be called with the scope."""
    engine.draft_scope.add_kwargs(tp_worker=tp_worker.provider)


# Every provider of every container builds once.


def stand_in(container: Any) -> Any:
    """Replaces what reads checkpoints."""
    fake = FakeTpWorker(context_len=CONTEXT_LENGTH)
    container.model_config.override(providers.Object(fake.model_config))
    container.model_runner.override(providers.Object(object()))
    container.tp_worker.override(providers.Object(fake))
    return container


def assert_every_provider_builds_once(container: Any) -> None:
    for name, provider in container.providers.items():
        value = provider()
        assert value is not None or name == "config_file", f"{name} gives None"
        if isinstance(provider, providers.Singleton | providers.Dependency | providers.Container):
            assert provider() is value, f"{name} is built twice"


def test_every_provider_of_a_target_scope_builds_once() -> None:
    args = ServerArgs(model_path="target")
    scope = TargetScope(server_args=args, runtime_context=RuntimeContext(args))
    assert_every_provider_builds_once(stand_in(scope))


def test_every_provider_of_a_draft_scope_builds_once() -> None:
    args = ServerArgs(model_path="draft", speculative_algorithm="NGRAM")
    scope = DraftScope(
        server_args=args,
        runtime_context=RuntimeContext(args),
        target_worker=FakeTpWorker(),
        algorithms=builtin_algorithms(),
    )
    assert_every_provider_builds_once(stand_in(scope))


def test_every_provider_of_an_engine_builds_once() -> None:
    engine = fake_engine()
    assert_every_provider_builds_once(engine)
    assert type(engine.scheduler().spec_worker) is StandaloneWorker


def test_every_provider_of_an_application_builds_once() -> None:
    application = ApplicationContainer(
        environ={"DRAFTSCOPE_PAGE_SIZE": "4"},
        flags={"model_path": "target"},
        settings=("dtype=float32",),
    )
    assert_every_provider_builds_once(application)
    record = application.engine.server_args()
    assert record is application.server_args()
    assert (record.model_path, record.page_size, record.dtype) == ("target", 4, "float32")


def test_an_application_reads_its_file(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("model_path: target\npage_size: 2\n")
    application: Any = ApplicationContainer(
        config_file=config, environ={}, flags={}, settings=("page_size=8",)
    )
    assert application.engine.target_config().page_size == 8
    assert application.engine.target_config().sources["model_path"] == str(config)


# Borders.


@pytest.mark.parametrize(
    "missing", ["server_args", "runtime_context", "target_worker", "algorithms"]
)
def test_a_draft_scope_without_its_border_says_what_is_missing(missing: str) -> None:
    args = ServerArgs(model_path="draft", speculative_algorithm="NGRAM")
    border: dict[str, Any] = {
        "server_args": args,
        "runtime_context": RuntimeContext(args),
        "target_worker": FakeTpWorker(),
        "algorithms": builtin_algorithms(),
    }
    del border[missing]
    scope = DraftScope(**border)
    with pytest.raises(errors.Error, match=rf"DraftScope\.{missing}"):
        scope.check_dependencies()


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("server_args", {}), ("runtime_context", 1), ("target_worker", 1), ("algorithms", {})],
)
def test_a_draft_scope_checks_what_crosses_its_border(name: str, wrong: object) -> None:
    args = ServerArgs(model_path="draft", speculative_algorithm="NGRAM")
    border: dict[str, Any] = {
        "server_args": args,
        "runtime_context": RuntimeContext(args),
        "target_worker": FakeTpWorker(),
        "algorithms": builtin_algorithms(),
    }
    scope = DraftScope(**(border | {name: wrong}))
    with pytest.raises(errors.Error, match="is not an instance of"):
        getattr(scope, name)()


def test_an_engine_has_no_undefined_dependencies() -> None:
    engine = fake_engine()
    engine.check_dependencies()
    engine.draft_scope().check_dependencies()
    with pytest.raises(errors.Error, match=r"EngineContainer\.server_args"):
        EngineContainer().check_dependencies()


def test_every_container_keeps_its_own_context() -> None:
    one, two = fake_engine(), fake_engine()
    assert one.runtime_context() is one.target.runtime_context()
    assert one.runtime_context() is one.draft_scope().runtime_context()
    assert one.runtime_context() is not two.runtime_context()


# Order.


def test_the_target_loads_before_the_drafts_record_is_made() -> None:
    workers = LoggedWorkers()
    engine = fake_engine(workers)
    record = engine.draft_config()
    assert workers.built == ["target"]
    assert record.disable_chunked_prefix_cache
    assert record.sources["disable_chunked_prefix_cache"] == "fake gate"
    assert record.context_length == CONTEXT_LENGTH
    assert not engine.target_config().disable_chunked_prefix_cache


def test_the_scheduler_makes_one_scope_with_one_record() -> None:
    engine = fake_engine()
    made: list[ServerArgs] = []
    original = app.containers.draft_server_args_copy

    def counting(*args: Any, **parts: Any) -> ServerArgs:
        made.append(original(*args, **parts))
        return made[-1]

    engine.draft_config.set_provides(counting)
    swap_in_drafts(engine, providers.Factory(FakeTpWorker))
    worker = engine.scheduler().spec_worker
    assert made == [worker.server_args]
    assert made[0] is worker.server_args


@pytest.mark.parametrize(
    ("fields", "worker_class", "built"),
    [
        ({}, StandaloneWorker, ["target", "draft"]),
        ({"speculative_algorithm": "NGRAM"}, None, ["target"]),
        ({"speculative_num_steps": 0}, TargetOnlyWorker, ["target"]),
        ({"speculative_algorithm": "none"}, TargetOnlyWorker, ["target"]),
    ],
)
def test_a_draft_model_is_built_only_for_an_algorithm_that_has_one(
    fields: dict[str, Any], worker_class: type | None, built: list[str]
) -> None:
    workers = LoggedWorkers()
    engine = fake_engine(workers, **fields)
    worker = engine.scheduler().spec_worker
    assert workers.built == built
    if worker_class is not None:
        assert type(worker) is worker_class
        assert (engine.scheduler().algorithm is None) == (worker_class is TargetOnlyWorker)


def test_a_target_alone_makes_no_draft_scope() -> None:
    engine = fake_engine(speculative_algorithm=None)
    engine.draft_scope.override(providers.Factory(pytest.fail, "a draft scope was made"))
    assert type(engine.scheduler().spec_worker) is TargetOnlyWorker


def test_a_failed_draft_is_built_anew_and_the_target_is_kept() -> None:
    workers = LoggedWorkers()
    engine = fake_engine(workers)
    failures = iter([True, False])

    def sometimes(record: ServerArgs) -> FakeTpWorker:
        if next(failures):
            raise ValueError("truncated")
        return workers.draft(record)

    swap_in_drafts(engine, providers.Singleton(sometimes, engine.draft_config))
    with pytest.raises(ValueError, match=r"draft worker \(STANDALONE, model draft\): truncated"):
        engine.scheduler()
    assert engine.scheduler().spec_worker.draft.worker.server_args.model_path == "draft"
    assert workers.built == ["target", "draft"]


# The hand-off.


class LoggedScope:
    """Notes which record is published when its providers are called."""

    def __init__(self, context: RuntimeContext, fails: Exception | None = None) -> None:
        self.seen: list[tuple[str, str]] = []
        self._context = context
        self._fails = fails
        self._record = ServerArgs(model_path="draft", speculative_algorithm="STANDALONE")

    def server_args(self) -> ServerArgs:
        self.seen.append(("server_args", self._context.server_args.model_path))
        return self._record

    def spec_worker(self) -> Any:
        self.seen.append(("spec_worker", self._context.server_args.model_path))
        if self._fails is not None:
            raise self._fails
        return "the worker"


def test_the_hand_off_publishes_the_record_around_the_worker_alone() -> None:
    context = RuntimeContext(ServerArgs(model_path="target"))
    scope = LoggedScope(context)
    assert build_spec_worker(scope, context) == "the worker"
    assert scope.seen == [("server_args", "target"), ("spec_worker", "draft")]
    assert context.server_args.model_path == "target"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (ValueError("no file"), r"^draft worker \(STANDALONE, model draft\): no file$"),
        (RuntimeError("no memory"), "^no memory$"),
        (KeyboardInterrupt("stop"), "^stop$"),
    ],
)
def test_the_hand_off_restores_the_record_after_any_failure(
    fault: BaseException, message: str
) -> None:
    context = RuntimeContext(ServerArgs(model_path="target"))
    scope = LoggedScope(context, fault)  # type: ignore[arg-type]
    with pytest.raises(type(fault), match=message):
        build_spec_worker(scope, context)
    assert context.server_args.model_path == "target"
    context.override("afterwards", page_size=2)


def test_a_draft_cannot_decide_for_the_engine_while_it_is_built() -> None:
    engine = fake_engine()

    def deciding(record: ServerArgs) -> FakeTpWorker:
        engine.runtime_context().override("draft", attention_backend="torch_dense")
        raise AssertionError("the override was let through")

    swap_in_drafts(engine, providers.Singleton(deciding, engine.draft_config))
    with pytest.raises(RuntimeError, match="draft: the engine's record cannot change"):
        engine.scheduler()
    assert engine.runtime_context().resolved.attention_backend == "torch_paged"


def test_only_the_scheduler_hands_off(root: Path) -> None:
    def users_of(name: str) -> list[str]:
        return [
            str(path.relative_to(root))
            for path in sorted((root / "app").rglob("*.py"))
            if any(
                isinstance(node, ast.Name) and node.id == name
                for node in ast.walk(ast.parse(path.read_text("utf-8")))
            )
        ]

    assert users_of("build_spec_worker") == ["app/scheduling/scheduler.py"]
    assert users_of("draft_server_args_copy") == ["app/containers.py"]


# Without weights.


def test_without_weights_replaces_the_targets_loader_alone() -> None:
    engine: Any = without_weights(EngineContainer(server_args=ServerArgs(model_path="target")))
    assert type(engine.target.loader()) is MetaLoader
    assert engine.target.loader().load_config is engine.target.loader_config()
    other: Any = EngineContainer(server_args=ServerArgs(model_path="target"))
    assert other.target.loader.overridden == ()


# A registry of one's own.


def test_an_engine_takes_another_registry() -> None:
    registry = builtin_algorithms().with_registration(
        AlgorithmRegistration(name="MINE", create_worker=lambda args: TargetOnlyWorker)
    )
    args = ServerArgs(model_path="target", speculative_algorithm="mine")
    engine: Any = EngineContainer(server_args=args, algorithms=registry)
    assert engine.algorithms() is registry
    assert engine.target_config().speculative_algorithm == "MINE"
    with pytest.raises(ValueError, match="'MINE' is unknown"):
        EngineContainer(server_args=args).target_config()


def test_a_faulty_record_stops_before_anything_is_built() -> None:
    workers = LoggedWorkers()
    engine = fake_engine(workers, speculative_num_steps=2, speculative_num_draft_tokens=64,
                         speculative_eagle_topk=2)  # fmt: skip
    with pytest.raises(ValueError, match="at most 7 with the root"):
        engine.scheduler()
    assert workers.built == []
