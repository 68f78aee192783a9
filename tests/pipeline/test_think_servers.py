"""A target that thinks behind real vLLM servers: with its reasoning parser, without any, and with prefilled thinking.

One weight file and two servers make the three set-ups: whether the prompt ends with `<think>` is for the chat template
to decide, and a template argument switches it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from tokenizers import Tokenizer

from eyas import paths
from eyas.answers import MISFILED_REASONING, SERVER_PARSER_MISSING
from eyas.errors import GateError
from eyas.serving.endpoint import read_metrics
from eyas.serving.vllm import LocalVllm, server_python
from eyas.target.template import render_prompt
from tests.pipeline.think_model import END_ID, END_OF_TURN_ID, START_ID, think_model
from tests.pipeline.think_project import (
    DATASET,
    NAME,
    STAGES,
    Message,
    answer,
    create,
    reassemble,
    reassembly_report,
    server_profile,
    user,
)
from tests.serving.example import server_params

pytestmark = [pytest.mark.pipeline, pytest.mark.timeout(900)]

PARSER = "qwen3"
PREFILL = {"prefill": True}
WITHOUT_END = "Grüße, 你好 \U0001f600"
"""Here the model ends its turn while it is still thinking."""
PROMPTS = [
    *(f"What is {a} plus {b}?" for a, b in ((2, 3), (4, 9), (6, 6), (7, 8))),
    *(f"Which day follows {day}?" for day in ("Monday", "Thursday", "Saturday")),
    "Write the word garden. " + "Take your time. " * 10,
    "Explain in one sentence why the sky is blue.",
    WITHOUT_END,
]
DRIFTING = {
    "validate": STAGES["validate"]
    | dict.fromkeys(
        (
            "max_quarantined_share",
            "max_unreasoned_share",
            "max_short_share",
            "max_text_difference_share",
        ),
        1.0,
    ),
    "reassemble": STAGES["reassemble"] | {"max_refused_share": 1.0, "max_drift_share": 1.0},
}
"""Params with which wild answers stop nothing."""
MODES = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest) -> Path:
    return think_model(request.config.cache)


@pytest.fixture(scope="module")
def parsing(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalVllm]:
    yield from serve(model, tmp_path_factory.mktemp("parsing"), "--reasoning-parser", PARSER)


@pytest.fixture(scope="module")
def bare(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalVllm]:
    yield from serve(model, tmp_path_factory.mktemp("bare"))


def serve(model: Path, folder: Path, *extra: str) -> Iterator[LocalVllm]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EYAS_VLLM_PYTHON", str(server_python()))
        patch.chdir(folder)
        params = server_params(start_timeout_s=400.0, max_num_seqs=8, extra_args=["--enforce-eager", *extra])
        with LocalVllm(model, NAME, "float32", params, "test-think") as server:
            yield server


@pytest.fixture
def project(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Creates a project and makes it the working directory."""
    numbers = count()

    def create_project(conversations: list[list[Message]] | None = None, *, prefilled: bool = False) -> None:
        asked = conversations or [[user(prompt)] for prompt in PROMPTS]
        monkeypatch.chdir(create(tmp_path / str(next(numbers)), model, asked, prefilled=prefilled))

    return create_project


def sequence(row: dict[str, Any]) -> list[int]:
    return [*row["prompt_token_ids"], *row["token_ids"]]


def content(row: dict[str, Any]) -> str:
    return str(row["messages"][0]["content"])


@MODES
def test_parsed_unparsed_and_prefilled_thinking_are_the_same_sequences(
    project: Callable[..., None], parsing: LocalVllm, bare: LocalVllm, stream: bool
) -> None:
    project()
    parsed = answer(parsing.base_url, stream=stream)
    project()
    unparsed = answer(bare.base_url, stream=stream, accept_unparsed_reasoning=True)
    assert [content(row) for row in parsed] == PROMPTS
    for row, other in zip(parsed, unparsed, strict=True):
        assert (row["prompt_token_ids"], row["token_ids"]) == (other["prompt_token_ids"], other["token_ids"])
        assert row["token_ids"][0] == START_ID
        assert row["finish_reason"] == other["finish_reason"]
        assert SERVER_PARSER_MISSING in other["flags"]
        assert SERVER_PARSER_MISSING not in row["flags"]
        assert row["reasoning"] == other["reasoning"]
        assert row["content"] == other["content"]
        ended = END_ID in row["token_ids"]
        assert ended == (content(row) != WITHOUT_END)
        assert (MISFILED_REASONING in row["flags"]) == (not ended)
    for accept, server in ((False, parsing), (True, bare)):
        project(prefilled=True)
        prefilled = answer(
            server.base_url, stream=stream, accept_unparsed_reasoning=accept, chat_template_kwargs=PREFILL
        )
        for row, other in zip(parsed, prefilled, strict=True):
            assert other["prompt_token_ids"] == [*row["prompt_token_ids"], START_ID]
            if row["finish_reason"] == "stop":
                assert sequence(other) == sequence(row)
                assert row["token_ids"][-1] == END_OF_TURN_ID
                assert (other["reasoning"], other["content"]) == (row["reasoning"], row["content"])
            else:
                assert sequence(other)[:-1] == sequence(row)


def test_three_set_ups_make_the_same_exact_sequences(
    project: Callable[..., None], parsing: LocalVllm, bare: LocalVllm
) -> None:
    """`argument`: a template argument that nothing in the profile knows of puts the opening marker into the prompt."""
    unparsed = {"accept_unparsed_reasoning": True}
    made: dict[str, pl.DataFrame] = {}
    for name, server, prefilled, params in (
        ("parsed", parsing, False, {}),
        ("unparsed", bare, False, unparsed),
        ("prefilled", parsing, True, {"chat_template_kwargs": PREFILL}),
        ("argument", parsing, False, {"chat_template_kwargs": PREFILL}),
        ("unparsed argument", bare, False, unparsed | {"chat_template_kwargs": PREFILL}),
    ):
        project(prefilled=prefilled)
        answers = {row["sample_id"]: row for row in answer(server.base_url, **params)}
        made[name] = reassemble()
        quarantined = pl.read_parquet(paths.quarantine(DATASET)).select("sample_id", "rule").rows()
        assert [(content(answers[name]), rule) for name, rule in quarantined] == [
            (WITHOUT_END, "think_end_missing")
        ]
        assert_exact(made[name], answers)
    columns = ["sequence_id", "token_ids", "kinds", "truncated"]
    assert made["parsed"].select(columns).equals(made["unparsed"].select(columns))
    for name in ("prefilled", "argument", "unparsed argument"):
        for row, other in zip(
            made["parsed"].iter_rows(named=True), made[name].iter_rows(named=True), strict=True
        ):
            assert_marker_is_prompt(row, other)


def assert_exact(table: pl.DataFrame, answers: dict[str, dict[str, Any]]) -> None:
    """Every sequence is, id by id, what the server sent, and the report says so."""
    assert table.height == len(PROMPTS) - 1
    assert set(table["origin"]) == {"ids"}
    report = reassembly_report()
    assert (report["answers"], report["rows"], report["exact_by_server_ids"]) == (table.height,) * 3
    assert (report["exact_share"], report["rebuilt_from_text"], report["refused"]) == (1.0, 0, {})
    assert report["prompts_rendered_equal"] == table.height
    for row in table.iter_rows(named=True):
        sent = answers[row["sample_id"]]
        assert row["token_ids"] == sequence(sent)
        assert row["kinds"] == kinds_of(sent)


def kinds_of(row: dict[str, Any]) -> list[int]:
    """Kinds by the markers alone; every prompt of these projects is a plain question."""
    kinds, kind = [0] * len(row["prompt_token_ids"]), 2
    for place, token in enumerate(row["token_ids"]):
        if place == 0 and token == START_ID:
            kinds.append(1)
        elif kind == 2 and token == END_ID:
            kinds.append(1)
            kind = 3
        else:
            kinds.append(5 if token == END_OF_TURN_ID else kind)
    return kinds


def assert_marker_is_prompt(row: dict[str, Any], other: dict[str, Any]) -> None:
    """`other` is `row` with the opening marker in its prompt; a cut answer has room for one token more then."""
    length, marker = len(row["token_ids"]), row["num_prompt_tokens"]
    more = int(row["truncated"])
    assert other["sequence_id"] == row["sequence_id"]
    assert len(other["token_ids"]) == length + more
    assert other["token_ids"][:length] == row["token_ids"]
    assert row["token_ids"][marker] == START_ID
    assert row["kinds"][marker] == 1
    assert other["kinds"][:length] == [*row["kinds"][:marker], 0, *row["kinds"][marker + 1 :]]


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_drift_of_the_texts_is_what_decoding_and_encoding_again_gives(
    project: Callable[..., None], bare: LocalVllm, temperature: float
) -> None:
    """Greedy answers may well drift nowhere; sampled ones of a small model do."""
    asked = [f"{prompt} {number}" for number in range(6) for prompt in PROMPTS]
    project([[user(prompt)] for prompt in asked])
    answer(
        bare.base_url,
        temperature=temperature,
        max_tokens=80,
        gate_min_reasoning_share=0.0,
        accept_unparsed_reasoning=True,
    )
    params = Path("params.yaml")
    params.write_text(yaml.safe_dump(yaml.safe_load(params.read_text()) | DRIFTING))
    reassemble()
    rows = pl.read_parquet(paths.validated(DATASET)).rows(named=True)
    tokenizer = Tokenizer.from_file(str(paths.TARGET / "tokenizer.json"))
    outcomes = Counter(drift_of(row, tokenizer) for row in rows)
    drift = reassembly_report()["text_drift"]
    assert drift["measured"] == len(rows) > len(asked) / 4
    assert {name: count for name, count in drift["outcomes"].items() if count} == dict(outcomes)
    drifted = outcomes["same_length_other_ids"] + outcomes["other_length"]
    assert drift["drifted_share"] == pytest.approx(drifted / (len(rows) - outcomes["refused"]), abs=1e-6)
    assert drifted > 0 or temperature == 0


def drift_of(row: dict[str, Any], tokenizer: Tokenizer) -> str:
    """What encoding the decoded spans between the markers again makes of an answer."""
    ids = row["token_ids"]
    end = ids[-1:] if row["finish_reason"] == "stop" else []
    spans, markers = [ids[1 : len(ids) - len(end)]], [[START_ID]]
    if END_ID in spans[0]:
        cut = spans[0].index(END_ID)
        spans, markers = [spans[0][:cut], spans[0][cut + 1 :]], [[START_ID], [END_ID]]
    texts = [tokenizer.decode(span, skip_special_tokens=False) for span in spans]
    if {*row["flags"]} - {SERVER_PARSER_MISSING} or any(
        name in text for text in texts for name in ("\ufffd", "<think>", "</think>")
    ):
        return "refused"
    again = [
        token
        for marker, text in zip(markers, texts, strict=True)
        for token in (*marker, *tokenizer.encode(text, add_special_tokens=False).ids)
    ] + end
    if again == ids:
        return "same"
    return "same_length_other_ids" if len(again) == len(ids) else "other_length"


@MODES
def test_case_A04_without_a_parser_the_first_batch_stops_the_run_and_names_the_flag(
    project: Callable[..., None], bare: LocalVllm, stream: bool
) -> None:
    project()
    before = read_metrics(bare.base_url)
    with pytest.raises(GateError) as caught:
        answer(bare.base_url, stream=stream)
    asked = requests(read_metrics(bare.base_url)) - requests(before)
    assert asked == 8
    assert "the server has no reasoning parser" in caught.value.what
    assert "--reasoning-parser" in str(caught.value.hint)
    assert "accept_unparsed_reasoning" in str(caught.value.hint)
    assert caught.value.where in {f"{DATASET}:{number:04}" for number in range(len(PROMPTS))}
    assert not paths.responses(DATASET).exists()
    rows = answer(bare.base_url, stream=stream, accept_unparsed_reasoning=True)
    assert len(rows) == len(PROMPTS)


def requests(metrics: dict[str, float]) -> float:
    return sum(value for name, value in metrics.items() if name.startswith("vllm:request_success_total"))


def test_case_A10_the_next_turn_sees_the_thinking_of_the_turn_before(
    project: Callable[..., None], parsing: LocalVllm
) -> None:
    turns = [
        {"role": "user", "content": "What is 2 plus 3?"},
        {"role": "user", "content": "What is 4 plus 5?"},
    ]
    project([turns])
    kept = {"keep_thinking": True}
    first, second = answer(parsing.base_url, chat_template_kwargs=kept)
    assert (first["turn"], second["turn"]) == (0, 1)
    asked = second["messages"]
    assert [message["role"] for message in asked] == ["user", "assistant", "user"]
    assert asked[1]["reasoning"] == first["reasoning"] is not None
    assert second["prompt_token_ids"] == render_prompt(paths.TARGET, asked, kept)
    assert second["prompt_token_ids"] != render_prompt(paths.TARGET, asked)
    assert second["prompt_token_ids"].count(START_ID) == 1


def test_the_profile_of_the_server_says_how_thinking_came(
    project: Callable[..., None], parsing: LocalVllm
) -> None:
    project(prefilled=True)
    answer(parsing.base_url, chat_template_kwargs=PREFILL)
    servers = server_profile()
    rows = len(PROMPTS)
    assert servers["rows_with_token_ids"] == rows
    assert servers["rows_by_reasoning_field"] == {"reasoning": rows}
    assert servers["rows_by_prompt_end"] == {"think_marker": rows}
    assert servers["rows_by_flag"] == {MISFILED_REASONING: 1}
    assert servers["rows_by_usage_key"]["completion_tokens"] == rows
    assert servers["max_model_lens"] == [512]
