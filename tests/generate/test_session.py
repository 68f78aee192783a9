"""A whole generation against a scripted server: resume, gate, failures, asking ahead, publishing."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from eyas import paths
from eyas.errors import GateError, JournalError, ServerError
from eyas.generate import session as session_module
from eyas.generate.gate import Gate
from eyas.generate.params import GenerateParams
from eyas.generate.session import Session, open_journal
from eyas.generate.table import PromptTable
from tests.generate.asking import in_both_modes
from tests.generate.example import generate_params, profile, write_prompts
from tests.generate.scripted import Scripted, ScriptedServer, answer, completion
from tests.serving.example import server_params

PROMPTS = [f"question {index}" + "?" * index for index in range(20)]


def generate(dataset: str = "a", **changes: Any) -> list[dict[str, Any]]:
    """Run the stage's steps; returns the rows of raw_responses.jsonl."""
    params: GenerateParams = generate_params(**changes)
    table = PromptTable.read(paths.prompts(dataset), dataset)
    with open_journal(dataset, profile(), params) as journal:
        with Session(dataset, profile(), params, server_params(max_attempts=1)) as session:
            responses = session.answer(table, journal)
            session.answer_ahead()
        responses.publish(paths.responses(dataset))
    return lines(paths.raw_responses(dataset))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@in_both_modes
def test_every_prompt_is_asked_once_and_published_in_order(server: ScriptedServer, stream: bool) -> None:
    write_prompts("a", PROMPTS)
    rows = generate(stream=stream)
    assert server.posts == dict.fromkeys(PROMPTS, 1)
    assert [row["sample_id"] for row in rows] == [f"a:{index:04}" for index in range(20)]
    assert rows[3] == {
        "sample_id": "a:0003",
        "turn": 0,
        "dataset": "a",
        "prompt_hash": f"{3:064x}",
        "messages": [{"role": "user", "content": PROMPTS[3]}],
        "tools": None,
        "flags": [],
        "reasoning": None,
        "content": f"answer to {PROMPTS[3]}",
        "tool_calls": None,
        "finish_reason": "stop",
        "stop_reason": None,
        "usage": {"prompt_tokens": 5, "completion_tokens": 3, "reasoning_tokens": None},
        "prompt_token_ids": [5, 6, 1, 520, 198],
        "token_ids": [1000 + len(PROMPTS[3]), 7, 2],
        "model": "tiny",
        "request_key": rows[3]["request_key"],
    }
    assert len({row["request_key"] for row in rows}) == 20
    servers = json.loads(paths.server_profile("a").read_bytes())
    assert servers["versions"] == ["0.32.0"]
    assert servers["max_model_lens"] == [512]
    assert servers["rows"] == servers["rows_with_token_ids"] == 20
    assert servers["rows_streamed"] == (20 if stream else 0)
    assert sorted(file.name for file in paths.responses("a").iterdir()) == [
        "errors.jsonl",
        "raw_responses.jsonl",
        "server_profile.json",
    ]


def test_a_second_run_asks_nothing_and_writes_the_same_bytes(server: ScriptedServer) -> None:
    write_prompts("a", PROMPTS)
    generate()
    before = {file.name: file.read_bytes() for file in paths.responses("a").iterdir()}
    generate()
    assert server.posts.total() == 20
    assert {file.name: file.read_bytes() for file in paths.responses("a").iterdir()} == before


def test_only_new_prompts_are_asked_whatever_their_place(server: ScriptedServer) -> None:
    write_prompts("a", PROMPTS[5:15])
    generate()
    write_prompts("a", PROMPTS)
    rows = generate()
    assert server.posts == dict.fromkeys(PROMPTS, 1)
    assert [row["messages"][0]["content"] for row in rows] == PROMPTS


def test_changing_the_temperature_back_and_forth_asks_once_per_value(server: ScriptedServer) -> None:
    write_prompts("a", PROMPTS)
    greedy = generate()
    assert [body["temperature"] for body in server.bodies] == [0.0] * 20
    generate(temperature=0.7)
    assert server.posts.total() == 40
    assert generate() == greedy
    generate(temperature=0.7)
    assert server.posts.total() == 40


def test_prompts_with_equal_messages_share_one_answer(server: ScriptedServer) -> None:
    write_prompts("a", ["same", "other", "same"])
    rows = generate()
    assert server.posts == {"same": 1, "other": 1}
    assert [row["sample_id"] for row in rows] == ["a:0000", "a:0001", "a:0002"]
    assert rows[0]["token_ids"] == rows[2]["token_ids"]


def test_failed_rows_are_listed_and_asked_again(server: ScriptedServer) -> None:
    write_prompts("a", PROMPTS)
    bad = {PROMPTS[4], PROMPTS[11]}

    def script(prompt: str, number: int) -> Scripted:
        if prompt in bad:
            return Scripted({"error": {"message": "no"}}, status=500)
        return answer(prompt, number)

    server.script = script
    rows = generate(max_failed_share=0.1)
    errors = lines(paths.responses("a") / "errors.jsonl")
    assert len(rows) == 18
    assert [(error["sample_id"], error["kind"], error["reason"], error["detail"]) for error in errors] == [
        ("a:0004", "transient", "http_500", "no"),
        ("a:0011", "transient", "http_500", "no"),
    ]
    assert {row["sample_id"] for row in rows}.isdisjoint(error["sample_id"] for error in errors)
    server.script = answer
    assert len(generate(max_failed_share=0.1)) == 20
    assert server.posts == {prompt: 1 + (prompt in bad) for prompt in PROMPTS}
    assert lines(paths.responses("a") / "errors.jsonl") == []


def test_too_many_failed_rows_stop_the_stage_and_keep_the_answers(server: ScriptedServer) -> None:
    write_prompts("a", PROMPTS)
    bad = set(PROMPTS[::5])
    server.script = lambda prompt, number: (
        Scripted(b"", status=500) if prompt in bad else answer(prompt, number)
    )
    with pytest.raises(GateError, match="max_failed_share") as caught:
        generate(max_failed_share=0.1)
    assert "http_500" in str(caught.value)
    assert not paths.responses("a").exists()
    asked = server.posts.copy()
    server.script = answer
    assert len(generate(max_failed_share=0.1)) == 20
    again = {prompt for prompt in PROMPTS if asked[prompt] and server.posts[prompt] > asked[prompt]}
    assert again >= bad & set(asked)
    assert len(again - bad) < 4  # no more than were in flight when the run stopped


def test_a_row_that_is_refused_for_good_does_not_stop_a_resume(server: ScriptedServer) -> None:
    write_prompts("a", PROMPTS)
    too_long = {"error": {"message": "maximum context length is 512 tokens", "code": 400}}

    def script(prompt: str, number: int) -> Scripted:
        return Scripted(too_long, status=400) if prompt == PROMPTS[4] else answer(prompt, number)

    server.script = script
    for _ in range(3):
        assert len(generate(max_failed_share=0.1)) == 19
        assert server.posts == dict.fromkeys(PROMPTS, 1)
        (error,) = lines(paths.responses("a") / "errors.jsonl")
        assert (error["sample_id"], error["kind"], error["reason"]) == (
            "a:0004",
            "permanent",
            "context_length",
        )
    (journal,) = paths.journal("generate").glob("a/*/rows.jsonl")
    errors = [entry["error"]["reason"] for entry in lines(journal) if "error" in entry]
    assert errors.count("context_length") == 1
    with pytest.raises(GateError, match=r"max_failed_share 0\.01"):
        generate(max_failed_share=0.01)


def test_a_dataset_of_which_nothing_was_ever_answered_stops_at_the_first_batch(
    server: ScriptedServer,
) -> None:
    write_prompts("a", PROMPTS)
    server.script = lambda prompt, number: Scripted({"error": {"message": "no", "code": 400}}, status=400)
    for run in (1, 2):
        with pytest.raises(GateError, match="none of the first 8 prompts was answered"):
            generate(max_failed_share=0.9)
        assert server.posts.total() == 8 * run
    assert not paths.responses("a").exists()
    with open_journal("a", profile(), generate_params()) as journal:
        assert len(journal) == 0
        errors = [entry["error"]["reason"] for entry in lines(journal.rows_path)]
    assert errors == ["http_400"] * 16


def test_answers_of_a_failed_gate_are_never_used(server: ScriptedServer) -> None:
    write_prompts("a", PROMPTS)
    server.script = lambda prompt, number: Scripted(completion(prompt, model="other"))
    with pytest.raises(GateError, match="other answered"):
        generate()
    assert server.posts.total() == 8
    assert not paths.responses("a").exists()
    with open_journal("a", profile(), generate_params()) as journal:
        assert len(journal) == 0
        errors = [entry["error"] for entry in lines(journal.rows_path)[8:]]
    assert [(error["kind"], error["reason"]) for error in errors] == [("content", "gate")] * 8
    assert "other answered" in errors[0]["detail"]
    server.script = answer
    assert [row["model"] for row in generate()] == ["tiny"] * 20
    assert server.posts.total() == 28


def interrupted(*arguments: object, **options: object) -> None:
    """Stands in for `Gate.first`: the run ends when the first batch has arrived and is not judged yet."""
    raise ServerError("ended before the judgement")


def test_answers_kept_before_they_were_judged_are_judged_by_the_next_run(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_prompts("a", PROMPTS)
    server.script = lambda prompt, number: Scripted(completion(prompt, model="other"))
    with monkeypatch.context() as patch:
        patch.setattr(Gate, "first", interrupted)
        with pytest.raises(ServerError, match="before the judgement"):
            generate()
    server.script = answer
    assert [row["model"] for row in generate()] == ["tiny"] * 20
    assert server.posts.total() == 28  # each of the eight was judged alone, taken back and asked again


def test_right_answers_kept_before_they_were_judged_are_published(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_prompts("a", PROMPTS)
    generate()
    expected = {file.name: file.read_bytes() for file in paths.responses("a").iterdir()}
    shutil.rmtree(paths.journal("generate"))
    server.posts.clear()
    with monkeypatch.context() as patch:
        patch.setattr(Gate, "first", interrupted)
        with pytest.raises(ServerError, match="before the judgement"):
            generate()
    generate()
    assert server.posts == dict.fromkeys(PROMPTS, 1)
    assert {file.name: file.read_bytes() for file in paths.responses("a").iterdir()} == expected
    with open_journal("a", profile(), generate_params()) as journal:
        assert len(journal) == 20


def test_a_failed_gate_keeps_nothing_and_stops_after_the_first_batch(server: ScriptedServer) -> None:
    write_prompts("a", PROMPTS)
    server.script = lambda prompt, number: Scripted(completion(prompt, token_ids=None))
    with pytest.raises(GateError, match="no token ids"):
        generate()
    assert server.posts.total() == 8
    server.script = answer
    assert len(generate()) == 20
    assert server.posts.total() == 28


def test_reasoning_that_is_expected_and_absent_stops(server: ScriptedServer) -> None:
    write_prompts("a", PROMPTS)
    with pytest.raises(GateError, match="expect_reasoning"):
        generate(expect_reasoning=True)
    server.script = lambda prompt, number: Scripted(
        completion(prompt, message={"reasoning_content": f"thought about {prompt}\ud83d"})
    )
    rows = generate(expect_reasoning=True)
    assert [row["reasoning"] for row in rows] == [f"thought about {prompt}\ufffd" for prompt in PROMPTS]
    servers = json.loads(paths.server_profile("a").read_bytes())
    assert servers["rows_by_reasoning_field"] == {"reasoning_content": 20}
    assert servers["rows_by_flag"]["surrogates_replaced"] == 20


def test_a_server_with_another_model_is_not_asked(server: ScriptedServer) -> None:
    write_prompts("a", PROMPTS)
    table = PromptTable.read(paths.prompts("a"), "a")
    other = profile(name="other")
    with (
        open_journal("a", other, generate_params()) as journal,
        Session("a", other, generate_params(), server_params()) as session,
        pytest.raises(ServerError, match="serves tiny, not other"),
    ):
        session.answer(table, journal)
    assert server.posts.total() == 0


def test_an_external_server_is_not_asked_ahead(server: ScriptedServer) -> None:
    for dataset in ("a", "b"):
        write_prompts(dataset, PROMPTS[:3])
    generate("a")
    assert server.posts == dict.fromkeys(PROMPTS[:3], 1)


def test_no_prompts_fail_the_stage(server: ScriptedServer) -> None:
    write_prompts("a", [])
    with pytest.raises(GateError, match="no prompts"):
        generate()


class StartedServer:
    """Stands in for a server of our own: counts starts, answers through a scripted server."""

    starts: list[str]
    scripted: ScriptedServer
    alive = True

    def __init__(
        self, model_dir: Path, served_name: str, dtype: str, params: object, log_name: str, **options: object
    ) -> None:
        self.base_url = self.scripted.base_url
        self.starts.append(log_name)

    def __enter__(self) -> StartedServer:
        return self

    def __exit__(self, *arguments: object) -> None:
        self.starts.append("stopped")

    def check_alive(self) -> None:
        if not self.alive:
            raise ServerError("the vLLM server has ended")


@pytest.fixture
def started(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> type[StartedServer]:
    monkeypatch.delenv("OPENAI_BASE_URL")
    fake = type("Fake", (StartedServer,), {"starts": [], "scripted": server})
    monkeypatch.setattr(session_module, "LocalVllm", fake)
    return fake


def test_one_start_answers_all_fresh_datasets(started: type[StartedServer]) -> None:
    for dataset in ("a", "b", "c"):
        write_prompts(dataset, [f"{dataset} {prompt}" for prompt in PROMPTS])
    for dataset in ("b", "a", "c"):
        assert len(generate(dataset)) == 20
    assert started.starts == ["generate-b", "stopped"]
    assert started.scripted.posts.total() == 60
    assert not (paths.RESPONSES / "d").exists()


@pytest.mark.parametrize(("temperature", "asked"), [(0.0, 0), (0.7, 1)])
def test_whether_sampling_can_be_measured_is_asked_when_answers_are_sampled(
    started: type[StartedServer], monkeypatch: pytest.MonkeyPatch, temperature: float, asked: int
) -> None:
    questions: list[object] = []
    monkeypatch.setattr(session_module, "warn_of_drafted_sampling", questions.append)
    write_prompts("a", PROMPTS[:3])
    assert len(generate("a", temperature=temperature)) == 3
    assert len(questions) == asked


def test_stale_and_missing_prompts_are_not_asked_ahead(started: type[StartedServer]) -> None:
    write_prompts("a", PROMPTS[:3])
    write_prompts("b", ["made from older params"], inputs="0" * 64)
    generate("a")
    assert started.scripted.posts == dict.fromkeys(PROMPTS[:3], 1)


def test_a_failure_while_asking_ahead_is_a_warning(
    started: type[StartedServer], caplog: pytest.LogCaptureFixture
) -> None:
    write_prompts("a", PROMPTS)
    write_prompts("b", ["bad", "good"])
    write_prompts("c", ["fine"])
    paths.prompts("c").write_bytes(b"not a table")
    started.scripted.script = lambda prompt, number: (
        Scripted(b"", status=400) if prompt == "bad" else answer(prompt, number)
    )
    with caplog.at_level(logging.WARNING):
        assert len(generate("a")) == 20
    warnings = [record.getMessage() for record in caplog.records]
    assert [warning.split(":")[0] for warning in warnings] == [
        "b was not asked ahead",
        "c was not asked ahead",
    ]
    assert "max_failed_share" in warnings[0]


def test_a_journal_in_use_is_no_danger_to_the_own_dataset(
    started: type[StartedServer], caplog: pytest.LogCaptureFixture
) -> None:
    write_prompts("a", PROMPTS[:2])
    write_prompts("b", PROMPTS[:2])
    with open_journal("b", profile(), generate_params()):
        with pytest.raises(JournalError, match="another process"):
            open_journal("b", profile(), generate_params())
        assert len(generate("a")) == 2
    assert "b was not asked ahead: another process" in caplog.text


def test_a_server_that_dies_stops_the_run_and_keeps_the_answers(started: type[StartedServer]) -> None:
    write_prompts("a", PROMPTS)

    def script(prompt: str, number: int) -> Scripted:
        if sum(started.scripted.posts.values()) > 12:
            started.alive = False
            return Scripted(completion(prompt), delay_s=5.0)
        return answer(prompt, number)

    started.scripted.script = script
    with pytest.raises(ServerError, match="has ended"):
        generate("a")
    assert started.starts[-1] == "stopped"
    with open_journal("a", profile(), generate_params()) as journal:
        assert len(journal) == 12
