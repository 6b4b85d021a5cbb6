"""A draft's load format is its own: what is read, by which loader, with what options."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dependency_injector import providers
from safetensors.torch import load_file, save_file

from app.containers import EngineContainer
from app.loading.default_loader import DefaultModelLoader
from app.loading.dummy_loader import DummyModelLoader
from app.loading.layered_loader import LayeredModelLoader
from app.loading.sharded_state_loader import ShardedStateLoader, save_sharded_state
from app.testing.shared_experts_checkpoint import write_shared_experts_checkpoint
from tests.integration.pairs import (
    Pair,
    control_fails,
    decode,
    draft_tp_worker,
    embeddings_of,
    swap_in_drafts,
    target_is_untouched,
    weights_of,
    write_pair,
)

EMBEDDINGS = "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return write_pair(tmp_path_factory.mktemp("pair"))


def stored_embeddings(checkpoint: Path) -> torch.Tensor:
    return load_file(checkpoint / "model.safetensors")[EMBEDDINGS]


def random_embeddings(pair: Pair, checkpoint: Path) -> torch.Tensor:
    """What load format dummy gives such a model."""
    args = pair.args(model_path=str(checkpoint), load_format="dummy")
    return embeddings_of(EngineContainer(server_args=args).target.tp_worker())


def assert_only_one_is_random(container: Any, pair: Pair, *, random: str) -> None:
    draft = draft_tp_worker(container.scheduler())
    found = {
        "target": embeddings_of(container.target.tp_worker()),
        "draft": embeddings_of(draft),
    }
    for name, checkpoint in (("target", pair.target), ("draft", pair.draft)):
        stored = stored_embeddings(checkpoint)
        expected = random_embeddings(pair, checkpoint) if name == random else stored
        assert torch.equal(found[name], expected), f"the {name}'s weights are not its own"


def test_a_dummy_draft_beside_a_real_target(pair: Pair) -> None:
    container = pair.build(speculative_draft_load_format="dummy")
    with target_is_untouched(container):
        assert_only_one_is_random(container, pair, random="draft")
    assert container.runtime_context().resolved.load_format == "auto"
    assert decode(container) == pair.decode_alone()


def test_a_real_draft_beside_a_dummy_target(pair: Pair) -> None:
    container = pair.build(load_format="dummy", speculative_draft_load_format="safetensors")
    assert_only_one_is_random(container, pair, random="target")


def test_control_a_draft_that_loads_with_the_targets_loader(pair: Pair) -> None:
    container = pair.build(speculative_draft_load_format="dummy")
    swap_in_drafts(container, loader=providers.Factory(lambda x: x, container.target.loader))
    with control_fails("the draft's weights are not its own"):
        assert_only_one_is_random(container, pair, random="draft")


@pytest.mark.parametrize("load_format", ["auto", "safetensors", "dummy"])
def test_the_targets_format_is_inherited_when_the_drafts_is_unset(
    pair: Pair, load_format: str
) -> None:
    container = pair.build(load_format=load_format)
    draft = draft_tp_worker(container.scheduler())
    assert draft.server_args.load_format == load_format
    stored = stored_embeddings(pair.draft)
    expected = random_embeddings(pair, pair.draft) if load_format == "dummy" else stored
    assert torch.equal(embeddings_of(draft), expected)


# Every format of the draft beside a target of another one.


def as_pt(pair: Pair, directory: Path) -> None:
    torch.save(load_file(directory / "model.safetensors"), directory / "model.pt")


def as_bin(pair: Pair, directory: Path) -> None:
    torch.save(load_file(directory / "model.safetensors"), directory / "pytorch_model.bin")


def as_sharded_state(pair: Pair, directory: Path) -> None:
    worker = EngineContainer(server_args=pair.args(model_path=str(directory))).target.tp_worker()
    save_sharded_state(worker.model_runner.model, directory)


def as_it_is(pair: Pair, directory: Path) -> None:
    return


FORMATS: dict[str, tuple[Callable[[Pair, Path], None], type]] = {
    "safetensors": (as_it_is, DefaultModelLoader),
    "pt": (as_pt, DefaultModelLoader),
    "npcache": (as_bin, DefaultModelLoader),
    "layered": (as_it_is, LayeredModelLoader),
    "sharded_state": (as_sharded_state, ShardedStateLoader),
    "dummy": (as_it_is, DummyModelLoader),
}


@pytest.mark.parametrize("load_format", FORMATS)
def test_every_format_of_a_draft_reaches_its_loader(
    pair: Pair, tmp_path: Path, load_format: str
) -> None:
    directory = Path(shutil.copytree(pair.draft, tmp_path / "draft"))
    convert, loader_class = FORMATS[load_format]
    convert(pair, directory)
    if load_format not in ("safetensors", "layered"):
        # A loader of another format would find nothing here.
        (directory / "model.safetensors").unlink()
    container = pair.build(
        speculative_draft_model_path=str(directory), speculative_draft_load_format=load_format
    )
    scope = container.draft_scope()
    assert type(scope.loader()) is loader_class
    assert scope.loader_config().load_format == load_format
    assert type(container.target.loader()) is DefaultModelLoader
    assert container.target.loader_config().load_format == "auto"
    with target_is_untouched(container):
        draft = draft_tp_worker(container.scheduler())
    if load_format == "dummy":
        assert not torch.equal(embeddings_of(draft), stored_embeddings(pair.draft))
    else:
        reference = EngineContainer(server_args=pair.args(model_path=str(pair.draft)))
        expected = weights_of(reference.target.tp_worker())
        found = weights_of(draft)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert decode(container) == pair.decode_alone()


def test_loader_options_stay_with_the_format_they_were_given_for(
    pair: Pair, tmp_path: Path
) -> None:
    target = Path(shutil.copytree(pair.target, tmp_path / "target"))
    worker = EngineContainer(server_args=pair.args()).target.tp_worker()
    pattern = "own-{rank}-{part}.safetensors"
    save_sharded_state(worker.model_runner.model, target, pattern=pattern)
    (target / "model.safetensors").unlink()
    container = pair.build(
        model_path=str(target),
        load_format="sharded_state",
        model_loader_extra_config={"pattern": pattern},
        speculative_draft_load_format="safetensors",
    )
    with target_is_untouched(container):
        container.scheduler()
    assert container.target.loader().load_config.extra_config == {"pattern": pattern}
    # Its default pattern would not be found, and safetensors knows no options at all.
    assert container.draft_scope().loader().load_config.extra_config == {}
    assert decode(container) == pair.decode_alone()


def test_an_inherited_format_that_the_draft_lacks_is_an_error_naming_the_draft(
    pair: Pair, tmp_path: Path
) -> None:
    target = Path(shutil.copytree(pair.target, tmp_path / "target"))
    as_pt(pair, target)
    container = pair.build(model_path=str(target), load_format="pt")
    with (
        target_is_untouched(container),
        pytest.raises(ValueError, match=rf"draft worker .*{pair.draft} holds no \*\.pt"),
    ):
        container.scheduler()
    again = pair.build(
        model_path=str(target), load_format="pt", speculative_draft_load_format="auto"
    )
    assert decode(again) == pair.decode_alone()


def test_two_formats_of_one_checkpoint(pair: Pair, tmp_path: Path) -> None:
    """The same path for both models makes the format the only thing that tells them apart."""
    both = Path(shutil.copytree(pair.target, tmp_path / "both"))
    tensors = load_file(both / "model.safetensors")
    torch.save({name: tensor * 1.5 for name, tensor in tensors.items()}, both / "model.pt")
    container = pair.build(
        model_path=str(both),
        load_format="safetensors",
        speculative_draft_model_path=str(both),
        speculative_draft_load_format="pt",
    )
    draft = draft_tp_worker(container.scheduler())
    stored = tensors[EMBEDDINGS]
    assert torch.equal(embeddings_of(container.target.tp_worker()), stored)
    assert torch.equal(embeddings_of(draft), stored * 1.5)


def test_ngram_and_draft_formats(pair: Pair) -> None:
    """An algorithm without a draft model reads no weights, whatever the draft's format says."""
    container = pair.build(
        speculative_algorithm="NGRAM",
        speculative_draft_model_path=None,
        speculative_draft_load_format="dummy",
    )
    worker = container.scheduler().spec_worker
    assert worker.server_args.load_format == "dummy"
    assert torch.equal(embeddings_of(container.target.tp_worker()), stored_embeddings(pair.target))
    assert decode(container) == pair.decode_alone()


def test_a_damaged_draft_of_another_format_leaves_the_target_alone(
    pair: Pair, tmp_path: Path
) -> None:
    directory = Path(shutil.copytree(pair.draft, tmp_path / "draft"))
    tensors = load_file(directory / "model.safetensors")
    tensors.pop("model.norm.weight")
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    container = pair.build(
        speculative_draft_model_path=str(directory), speculative_draft_load_format="layered"
    )
    with (
        target_is_untouched(container),
        pytest.raises(ValueError, match=r"draft worker.*missing.*model\.norm\.weight"),
    ):
        container.scheduler()


# A side channel of the format: NVFP4 scales that differ are noise in a dummy and a fault elsewhere.


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Target with one global scale a layer, draft with one an expert."""
    root = tmp_path_factory.mktemp("experts")
    return Pair(
        write_shared_experts_checkpoint(root / "target"),
        write_shared_experts_checkpoint(root / "draft", has_single_scale=False),
    )


def global_scales(worker: Any) -> list[float]:
    model: torch.nn.Module = worker.model_runner.model
    return [
        float(module.global_scale) for module in model.modules() if hasattr(module, "global_scale")
    ]


def test_a_dummy_draft_may_have_unequal_scales_beside_a_real_target(experts: Pair) -> None:
    container = experts.build(speculative_draft_load_format="dummy")
    before = global_scales(container.target.tp_worker())
    draft = draft_tp_worker(container.scheduler())
    assert set(global_scales(draft)) == {1.0}
    assert global_scales(container.target.tp_worker()) == before
    assert 1.0 not in before
    assert decode(container) == experts.decode_alone()


def test_a_real_draft_may_not_have_unequal_scales_beside_a_dummy_target(experts: Pair) -> None:
    container = experts.build(load_format="dummy", speculative_draft_load_format="auto")
    with pytest.raises(ValueError, match=r"draft worker .*weight_scale_2.*reshard"):
        container.scheduler()
    assert set(global_scales(container.target.tp_worker())) == {1.0}
    mended = experts.build(
        load_format="dummy",
        speculative_draft_load_format="auto",
        speculative_draft_model_path=str(experts.target),
    )
    assert 1.0 not in global_scales(draft_tp_worker(mended.scheduler()))
    assert set(global_scales(mended.target.tp_worker())) == {1.0}
