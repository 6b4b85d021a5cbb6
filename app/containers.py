"""The composition root: the only file that imports dependency_injector.

A draft can only be wired from `DraftScope`, whose border is four values: the draft's own record,
the runtime context, the target worker and the algorithm registry. See docs/draft-scope.md.

TargetScope and DraftScope repeat each other on purpose: a provider inherited from a common base is
one object, so overriding it on DraftScope would swap the target's too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dependency_injector import containers, providers

from app.config.draft_args import draft_server_args_copy
from app.config.load_config import build_load_config
from app.config.model_config import ModelConfig
from app.config.resolution import resolve_server_args
from app.config.server_args import ServerArgs
from app.config.yaml_io import load_server_args
from app.kernels.capability import detect_cpu_capability
from app.loading.loader import create_model_loader
from app.loading.meta_loader import MetaLoader
from app.runtime_context import RuntimeContext
from app.scheduling.scheduler import Scheduler
from app.speculative.plugins import build_algorithm_registry
from app.speculative.registry import AlgorithmRegistry
from app.tokenizer import load_tokenizer
from app.workers.create import create_spec_worker
from app.workers.model_runner import ModelRunner
from app.workers.tp_worker import BaseTpWorker, TpModelWorker


class TargetScope(containers.DeclarativeContainer):
    server_args = providers.Dependency(instance_of=ServerArgs)

    runtime_context = providers.Dependency(instance_of=RuntimeContext)

    cpu_capability = providers.Singleton(detect_cpu_capability)

    loader_config = providers.Singleton(
        build_load_config,
        server_args,
    )

    model_config = providers.Singleton(
        ModelConfig.from_server_args,
        server_args,
    )

    loader = providers.Singleton(
        create_model_loader,
        loader_config,
        model_config,
    )

    model_runner = providers.Singleton(
        ModelRunner,
        server_args=server_args,
        model_config=model_config,
        loader=loader,
        runtime_context=runtime_context,
        cpu_capability=cpu_capability,
        is_draft_worker=False,
    )

    tp_worker = providers.Singleton(
        TpModelWorker,
        model_runner,
    )


class DraftScope(containers.DeclarativeContainer):
    server_args = providers.Dependency(instance_of=ServerArgs)

    runtime_context = providers.Dependency(instance_of=RuntimeContext)

    target_worker = providers.Dependency(instance_of=BaseTpWorker)

    algorithms = providers.Dependency(instance_of=AlgorithmRegistry)

    cpu_capability = providers.Singleton(detect_cpu_capability)

    loader_config = providers.Singleton(
        build_load_config,
        server_args,
    )

    model_config = providers.Singleton(
        ModelConfig.from_server_args,
        server_args,
    )

    loader = providers.Singleton(
        create_model_loader,
        loader_config,
        model_config,
    )

    model_runner = providers.Singleton(
        ModelRunner,
        server_args=server_args,
        model_config=model_config,
        loader=loader,
        runtime_context=runtime_context,
        cpu_capability=cpu_capability,
        is_draft_worker=True,
    )

    tp_worker = providers.Singleton(
        TpModelWorker,
        model_runner,
    )

    # The provider, not its value: an algorithm without a draft model never loads one.
    spec_worker = providers.Singleton(
        create_spec_worker,
        algorithms=algorithms,
        server_args=server_args,
        target_worker=target_worker,
        draft_worker=tp_worker.provider,
    )


class EngineContainer(containers.DeclarativeContainer):
    server_args = providers.Dependency(instance_of=ServerArgs)

    algorithms = providers.Singleton(
        build_algorithm_registry,
        server_args,
    )

    target_config = providers.Singleton(
        resolve_server_args,
        server_args,
        algorithms,
    )

    runtime_context = providers.Singleton(
        RuntimeContext,
        target_config,
    )

    target = providers.Container(
        TargetScope,
        server_args=target_config,
        runtime_context=runtime_context,
    )

    # The target worker is an argument, so that its load, and what it overrides while loading,
    # happen before the copy is made.
    draft_config = providers.Factory(
        draft_server_args_copy,
        runtime_context,
        algorithms=algorithms,
        target_worker=target.tp_worker,
    )

    # By value: the scope's border holds objects, so a dropped draft is freed and closing it cannot
    # reach the target.
    draft_scope = providers.Factory(
        DraftScope,
        server_args=draft_config,
        runtime_context=runtime_context,
        target_worker=target.tp_worker,
        algorithms=algorithms,
    )

    tokenizer = providers.Singleton(
        load_tokenizer,
        target_config,
    )

    scheduler = providers.Singleton(
        Scheduler,
        runtime_context=runtime_context,
        target_worker=target.tp_worker,
        algorithms=algorithms,
        draft_scope=draft_scope.provider,
    )


class ApplicationContainer(containers.DeclarativeContainer):
    config_file: providers.Dependency[Path | None] = providers.Dependency(
        default=providers.Object(None)
    )

    environ: providers.Dependency[Mapping[str, str]] = providers.Dependency()

    flags: providers.Dependency[Mapping[str, object]] = providers.Dependency()

    settings: providers.Dependency[Sequence[str]] = providers.Dependency()

    server_args = providers.Singleton(
        load_server_args,
        config_file,
        environ,
        flags,
        settings,
    )

    engine = providers.Container(
        EngineContainer,
        server_args=server_args,
    )


def without_weights(container: EngineContainer) -> EngineContainer:
    """Make the target of `container` a meta-device model: the same gates run, no weight is read."""
    container.target.loader.override(
        providers.Singleton(MetaLoader, container.target.loader_config)
    )
    return container
