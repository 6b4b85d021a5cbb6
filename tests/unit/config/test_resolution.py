from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.resolution import resolve_server_args
from app.config.sampling_params import SamplingParams
from app.config.server_args import ServerArgs
from app.config.speculative_shape import max_tree_nodes
from app.speculative.builtin import builtin_algorithms
from app.speculative.registry import AlgorithmRegistration

STEPS, TOPK, NODES = (
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
)


def resolve(algorithm: str | None = None, **fields: object) -> ServerArgs:
    if (algorithm or "").upper() == "STANDALONE":
        fields.setdefault("speculative_draft_model_path", "d")
    if algorithm is not None:
        fields["speculative_algorithm"] = algorithm
    args = ServerArgs(model_path="m", **fields)  # type: ignore[arg-type]
    return resolve_server_args(args, builtin_algorithms())


def shape(args: ServerArgs) -> tuple[int | None, int | None, int | None]:
    return (
        args.speculative_num_steps,
        args.speculative_eagle_topk,
        args.speculative_num_draft_tokens,
    )


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_shared_defaults_and_their_sources() -> None:
    args = resolve("standalone")
    assert args.speculative_algorithm == "STANDALONE"
    assert args.tokenizer_path == "m"
    assert args.max_running_requests == 48
    assert args.speculative_draft_model_revision == "main"
    assert args.sources["tokenizer_path"] == "rule tokenizer"
    assert args.sources["max_running_requests"] == "rule max_running_requests"
    assert args.sources["speculative_draft_model_revision"] == "rule draft_revision"
    assert args.sources[STEPS] == "rule STANDALONE"


def test_what_the_user_gave_stays() -> None:
    args = resolve(
        "STANDALONE",
        tokenizer_path="t",
        max_running_requests=3,
        speculative_draft_model_revision="r",
    )
    assert (args.tokenizer_path, args.max_running_requests) == ("t", 3)
    assert args.speculative_draft_model_revision == "r"


def test_target_alone_has_no_draft_revision() -> None:
    assert resolve().speculative_draft_model_revision is None


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (3, 1, 4)),
        ({STEPS: 5}, (5, 1, 6)),
        ({STEPS: 2, TOPK: 2, NODES: 7}, (2, 2, 7)),
        ({STEPS: 5, TOPK: 1, NODES: 4}, (5, 1, 6)),
    ],
)
def test_standalone_shapes(
    fields: dict[str, int], expected: tuple[int, int, int], caplog: pytest.LogCaptureFixture
) -> None:
    assert shape(resolve("STANDALONE", **fields)) == expected
    adjusted = fields.get(NODES, expected[2]) != expected[2]
    assert len(warnings_of(caplog)) == (1 if adjusted else 0)


@pytest.mark.parametrize(
    ("algorithm", "fields", "message"),
    [
        ("STANDALONE", {"speculative_draft_model_path": None}, "draft_model_path is needed by"),
        ("STANDALONE", {TOPK: 2}, f"{TOPK} = 2: needs {STEPS} beside it"),
        ("STANDALONE", {NODES: 4}, f"{NODES} = 4: needs {STEPS} beside it"),
        ("STANDALONE", {STEPS: 2, TOPK: 2}, f"{TOPK} = 2: needs {NODES} beside it"),
        ("STANDALONE", {STEPS: 2, TOPK: 2, NODES: 8}, f"{NODES} = 8: {STEPS} = 2 and {TOPK} = 2"),
        ("STANDALONE", {STEPS: 64}, "must be at most speculative_max_draft_tokens = 64"),
        ("NGRAM", {NODES: 65}, "must be at most speculative_max_draft_tokens = 64"),
        (
            "NGRAM",
            {"speculative_ngram_min_bfs_breadth": 11},
            "must be at most speculative_ngram_max_bfs_breadth = 10",
        ),
        (
            "NGRAM",
            {"speculative_ngram_capacity": 17},
            "must be at least speculative_ngram_max_trie_depth = 18",
        ),
        ("EAGEL", {}, "'EAGEL' is unknown; known are NONE, STANDALONE, NGRAM"),
    ],
)
def test_faults_name_the_fields(algorithm: str, fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is checked below
        resolve(algorithm, **fields)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "mode", ["speculative_use_block_verification", "speculative_use_rejection_sampling"]
)
def test_exact_chain_modes_need_a_chain_that_knows_its_probabilities(mode: str) -> None:
    assert getattr(resolve("STANDALONE", **{mode: True}), mode)
    with pytest.raises(ValueError, match=f"{mode} = True: needs a chain"):
        resolve("STANDALONE", **{mode: True, STEPS: 2, TOPK: 2, NODES: 5})
    for threshold in ("single", "acc"):
        with pytest.raises(ValueError, match=f"{mode} = True: needs .*_{threshold} = 1.0"):
            resolve("STANDALONE", **{mode: True, f"speculative_accept_threshold_{threshold}": 0.5})
    with pytest.raises(ValueError, match=f"{mode} = True: needs the draft's probabilities"):
        resolve("NGRAM", **{mode: True})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (1, 10, 12)),
        ({NODES: 40}, (4, 10, 40)),
        ({NODES: 5}, (1, 10, 5)),
        ({"speculative_ngram_max_bfs_breadth": 3}, (4, 3, 12)),
        ({STEPS: 2}, (2, 10, 12)),
    ],
)
def test_ngram_shapes(fields: dict[str, int], expected: tuple[int, int, int]) -> None:
    assert shape(resolve("NGRAM", **fields)) == expected


@pytest.mark.parametrize("algorithm", ["STANDALONE", "NGRAM"])
def test_zero_steps_are_no_speculation(algorithm: str) -> None:
    args = resolve(algorithm, **{STEPS: 0})
    assert args.speculative_algorithm is None
    assert args.sources["speculative_algorithm"] == "rule zero_steps"
    assert shape(args) == (None, None, None)


def test_none_by_name() -> None:
    assert resolve("none").speculative_algorithm is None


@pytest.mark.parametrize(
    ("algorithm", "fields", "message"),
    [
        (None, {STEPS: 3}, f"{STEPS} = 3 (argument) has no effect: no speculative_algorithm"),
        ("NGRAM", {"speculative_draft_model_path": "d"}, "NGRAM has no draft model"),
        ("NGRAM", {STEPS: 2}, "NGRAM drafts what it knows"),
        ("NGRAM", {TOPK: 4}, "becomes 10: NGRAM takes it from speculative_ngram_max_bfs_breadth"),
        ("STANDALONE", {"speculative_ngram_capacity": 9}, "only NGRAM reads it"),
        (
            "STANDALONE",
            {
                "speculative_use_block_verification": True,
                "speculative_use_rejection_sampling": True,
            },
            "speculative_use_block_verification replaces token-by-token rejection",
        ),
    ],
)
def test_settings_without_effect_warn(
    algorithm: str | None,
    fields: dict[str, object],
    message: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    resolve(algorithm, **fields)
    (warning,) = warnings_of(caplog)
    assert message in warning


@pytest.mark.parametrize("off", [{"speculative_num_steps": 0}, {"speculative_algorithm": "NONE"}])
def test_turning_speculation_off_on_purpose_is_silent(
    off: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    args = ServerArgs(model_path="m", speculative_algorithm="STANDALONE", **{STEPS: 3, NODES: 4})  # type: ignore[arg-type]
    resolve_server_args(args.derive("flag", off), builtin_algorithms())
    assert warnings_of(caplog) == []


@given(
    algorithm=st.sampled_from([None, "STANDALONE", "NGRAM"]),
    steps=st.none() | st.integers(0, 5),
    topk=st.none() | st.integers(1, 4),
    nodes=st.none() | st.integers(2, 30),
)
def test_resolution_is_idempotent_and_every_tree_can_be_built(
    algorithm: str | None, steps: int | None, topk: int | None, nodes: int | None
) -> None:
    given_fields = {STEPS: steps, TOPK: topk, NODES: nodes}
    try:
        args = resolve(algorithm, **{f: v for f, v in given_fields.items() if v is not None})
    except ValueError:
        return
    again = resolve_server_args(args, builtin_algorithms())
    assert again == args
    assert again.sources == args.sources
    if args.speculative_algorithm == "STANDALONE":
        num_steps, num_candidates, num_nodes = shape(args)
        assert num_steps is not None
        assert num_candidates is not None
        assert num_nodes is not None
        assert 1 <= num_nodes - 1 <= max_tree_nodes(num_steps, num_candidates)
        assert num_candidates > 1 or num_nodes == num_steps + 1


def test_plugin_resolves_and_validates() -> None:
    def validate(args: ServerArgs) -> None:
        if args.page_size != 1:
            raise ValueError("page_size: MINE needs 1")

    registry = builtin_algorithms().with_registration(
        AlgorithmRegistration(
            name="mine",
            create_worker=lambda args: pytest.fail("not needed to resolve"),
            resolve=lambda args: {"speculative_num_draft_tokens": 9},
            validate=validate,
        )
    )
    args = ServerArgs(model_path="m", speculative_algorithm="Mine")
    resolved = resolve_server_args(args, registry)
    assert resolved.speculative_num_draft_tokens == 9
    assert resolved.sources[NODES] == "rule MINE"
    with pytest.raises(ValueError, match="MINE needs 1"):
        resolve_server_args(args.derive("test", {"page_size": 2}), registry)


def test_hub_settings_of_a_model_on_this_machine_warn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    local = ServerArgs(model_path=str(tmp_path), revision="r1")
    resolve_server_args(local, builtin_algorithms())
    (warning,) = warnings_of(caplog)
    assert "revision = 'r1'" in warning
    assert "is not a hub id" in warning
    caplog.clear()
    hub = ServerArgs(model_path="someone/somewhere", revision="r1", download_dir="/d")
    resolve_server_args(hub, builtin_algorithms())
    assert warnings_of(caplog) == []


def test_sampling_numbers_are_numbers_and_in_range() -> None:
    for fields in ({"max_new_tokens": True}, {"temperature": True}, {"top_k": 2**31}):
        with pytest.raises(ValueError, match=next(iter(fields))):
            SamplingParams(**fields)
    assert SamplingParams(temperature=1e-46).is_greedy
    assert not SamplingParams(temperature=1e-3).is_greedy


def test_hub_settings_of_models_on_this_machine_warn_each_by_its_own_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings(**fields: object) -> list[str]:
        caplog.clear()
        resolve("STANDALONE", **fields)
        return [message.split(" ")[0] for message in warnings_of(caplog)]

    local, hub = str(tmp_path), "someone/somewhere"
    draft = {"speculative_draft_model_revision": "r2", "download_dir": "/d"}
    assert warnings(speculative_draft_model_path=hub, **draft) == []
    assert warnings(speculative_draft_model_path=local, **draft) == [
        "speculative_draft_model_revision"
    ]
    assert warnings(speculative_draft_model_path="smollm2-135m", **draft) == [
        "speculative_draft_model_revision"
    ]
    # A revision that a rule chose is nobody's setting.
    assert warnings(speculative_draft_model_path=local) == []


def test_download_dir_counts_while_one_model_is_named_by_a_hub_id(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    args = ServerArgs(model_path=str(tmp_path), download_dir="/d")
    resolve_server_args(args.derive("x", {"tokenizer_path": "some/one"}), builtin_algorithms())
    assert warnings_of(caplog) == []
    resolve_server_args(args, builtin_algorithms())
    (warning,) = warnings_of(caplog)
    assert "download_dir = '/d' (argument) has no effect" in warning


def test_token_ids_are_no_booleans() -> None:
    with pytest.raises(ValueError, match=r"stop_token_ids = .*must not be true or false"):
        SamplingParams(stop_token_ids=(3, True))
    assert SamplingParams(top_k=2**31 - 1, temperature=1).top_k == 2**31 - 1
    assert SamplingParams(ignore_eos=True).ignore_eos
