from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from eyas.acceptance import AcceptanceCounts
from eyas.engine import run as run_module
from eyas.engine.asking import GREEDY
from eyas.engine.compare import Difference
from eyas.engine.external import run_external, sides
from eyas.engine.questions import dealt
from eyas.engine.run import Served, run_local
from eyas.engine.service import Service, inspect
from eyas.errors import ServerError
from tests.serving.example import server_params

from .examples import known_answers
from .fake_http import FakeServer
from .fake_sglang import FakeSglang
from .fake_vllm import FakeVllm
from .measured import LEVELS, SAMPLED

COUNTED = {"a": AcceptanceCounts(4, [3, 1]), "b": AcceptanceCounts(2, [1, 0])}


def served(name: str = "tiny", **changes: Any) -> Served:
    return Served(Path("models/target"), name, "float32", Path("models/export/vllm"), 2, **changes)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Fake servers in place of real ones; the arguments of each start."""
    starts: list[dict[str, Any]] = []

    @contextmanager
    def start(
        target: Path, name: str, dtype: str, params: Any, log: str, speculative: Any, **_: Any
    ) -> Iterator[FakeVllm]:
        starts.append({"extra_args": params.extra_args, "log": log, "speculative": speculative})
        answers = known_answers()
        logprobs: dict[tuple[int, ...], dict[int, float]] = {}
        if "lossy" in name and speculative is not None:
            prompt = next(iter(answers))
            answers[prompt][1] = 66
            logprobs[(*prompt, 5)] = {6: -0.5, 66: -0.75}
        speculates = speculative is not None and "silent" not in name
        with FakeVllm(answers, speculates=speculates, logprobs=logprobs) as server:
            yield server

    monkeypatch.setattr(run_module, "LocalVllm", start)
    monkeypatch.setattr(run_module, "check_model", lambda url, name: type("M", (), {"version": "0.32.0"}))
    return starts


def test_fresh_servers_are_measured_in_alternating_order(started: list[dict[str, Any]]) -> None:
    runs = run_local(served(sweep=[1, 2]), dealt(LEVELS, 2), server_params(), GREEDY)
    drafted = [
        None if start["speculative"] is None else start["speculative"]["num_speculative_tokens"]
        for start in started
    ]
    assert drafted == [None, 1, 2, 2, 1, None]
    assert [start["log"] for start in started[:2]] == ["engine-without", "engine-with-1"]
    speculative = started[2]["speculative"]
    assert Path(speculative.pop("model")).is_absolute()
    assert speculative == {
        "method": "eagle3",
        "num_speculative_tokens": 2,
        "draft_sample_method": "greedy",
    }
    plain = ["--no-enable-prefix-caching", "--enforce-eager"]
    assert started[0]["extra_args"] == plain
    assert started[1]["extra_args"] == [
        plain[0], "--per-request-spec-decode-metrics", "detailed", plain[1],
    ]  # fmt: skip
    assert runs.without_drafter is not None
    assert runs.without_drafter.acceptance is None
    assert runs.with_drafter is not None
    assert runs.with_drafter.acceptance == COUNTED
    assert sorted(runs.with_drafter.answers[8]) == ["a:0", "a:1", "b:0", "b:1"]
    assert (runs.measured, runs.draft_tokens, runs.version) == ([1, 2], 2, "0.32.0")


@pytest.mark.usefixtures("started")
def test_a_server_that_changes_answers_is_asked_why() -> None:
    runs = run_local(served("lossy"), [LEVELS], server_params(), GREEDY)
    assert runs.margins == {Difference("a:0", 1, 6, 66, (5,)): 0.25}


@pytest.mark.usefixtures("started")
def test_a_drafter_that_is_not_used_is_noticed() -> None:
    with pytest.raises(ServerError, match="counted no drafts"):
        run_local(served("silent"), [LEVELS], server_params(), GREEDY)


@pytest.mark.parametrize("speculates", [True, False])
@pytest.mark.parametrize("make", [FakeVllm, FakeSglang])
def test_an_external_server_is_measured_on_the_side_it_shows(make: Any, speculates: bool) -> None:
    with make(known_answers(), speculates=speculates) as server:
        runs = run_external([server.base_url], "tiny", [LEVELS], server_params(), GREEDY)
    assert (runs.with_drafter is not None, runs.without_drafter is not None) == (speculates, not speculates)
    assert runs.version == ("0.32.0" if make is FakeVllm else "0.5.23")
    assert runs.draft_tokens == (2 if speculates else None)
    if runs.with_drafter is not None:
        assert runs.with_drafter.acceptance == COUNTED


def test_two_external_servers_are_measured_in_alternating_order() -> None:
    with FakeVllm(known_answers()) as plain, FakeSglang(known_answers()) as speculating:
        urls = [speculating.base_url, plain.base_url]
        runs = run_external(urls, "tiny", dealt(LEVELS, 2), server_params(), GREEDY)
    assert [list(each) for each in runs.rounds] == [[None, 2], [2, None]]
    assert (runs.dialect, runs.chain, runs.external) == ("sglang", True, True)
    salts = [body["cache_salt"].split("-")[0] for body in plain.bodies]
    assert len(set(salts)) == 2  # one for each time it is measured


def test_sampled_answers_are_not_explained() -> None:
    changed = known_answers()
    changed[next(iter(changed))] = [9, 9, 9]
    with FakeVllm(known_answers()) as plain, FakeVllm(changed, speculates=True) as speculating:
        urls = [plain.base_url, speculating.base_url]
        runs = run_external(urls, "tiny", [LEVELS], server_params(), SAMPLED)
    assert runs.margins == {}
    assert all(body["stream"] for body in speculating.bodies)


@pytest.mark.parametrize(
    ("arguments", "draft_tokens", "chain"),
    [
        ({"speculative_num_steps": 3, "speculative_eagle_topk": 1}, 3, True),
        ({"speculative_num_steps": 3, "speculative_eagle_topk": 8}, 3, False),
        ({"speculative_num_steps": None, "speculative_num_draft_tokens": 5}, 4, True),
    ],
)
@pytest.mark.parametrize("page", ["/server_info", "/get_server_info"])
def test_sglang_says_how_it_drafts(
    page: str, arguments: dict[str, Any], draft_tokens: int, chain: bool
) -> None:
    server: FakeServer = FakeSglang(
        known_answers(), arguments={"speculative_algorithm": "EAGLE3", **arguments}, info_page=page
    )
    with server:
        found = inspect(server.base_url, "tiny")
    assert found == Service(server.base_url, "sglang", "0.5.23", True, draft_tokens, chain)


def test_vllm_shows_its_drafts_in_its_counters() -> None:
    with FakeVllm(known_answers(), speculates=True) as server:
        assert inspect(server.base_url, "tiny") == Service(server.base_url, "vllm", "0.32.0", True, 2)
    with FakeVllm(known_answers(), metrics=False) as server:
        assert not inspect(server.base_url, "tiny").speculates


def test_a_server_that_hides_how_far_it_drafts_is_refused() -> None:
    with pytest.raises(ServerError, match="how many tokens it drafts"):
        sides([Service("http://x/v1", "sglang", None, True)])


def test_one_server_of_each_kind_is_enough() -> None:
    plain, other = (Service(f"http://{name}/v1", "vllm", None, False) for name in "ab")
    assert dict(sides([plain, other])) == {None: plain}


def test_a_vllm_that_can_not_sample_with_a_drafter_is_not_even_started(
    started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise ServerError("can't sample")

    monkeypatch.setattr(run_module, "check_drafted_sampling", refuse)
    with pytest.raises(ServerError, match="can't sample"):
        run_local(served(), dealt(LEVELS, 1), server_params(), SAMPLED)
    assert started == []
    run_local(served(), dealt(LEVELS, 1), server_params(), GREEDY)
    assert len(started) == 2
