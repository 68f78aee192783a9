"""A real run against a scripted server, seen with `eyas status` and `eyas peek` while it runs and after."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eyas import jsonl, paths
from eyas.cli.main import main
from eyas.errors import GateError
from eyas.generate.params import GenerateParams
from eyas.generate.session import Session, open_journal
from eyas.generate.summary import NAME
from eyas.generate.table import PromptTable
from tests.generate.example import generate_params, profile, write_prompts
from tests.generate.scripted import Scripted, ScriptedServer, completion
from tests.serving.example import server_params

PROMPTS = [f"question {index}" for index in range(150)]
REFUSED = {"question 20", "question 70", "question 120"}
CUT = {f"question {index}" for index in range(0, 150, 10)} - REFUSED


def script(prompt: str, number: int) -> Scripted:
    """Three are refused for good, every seventh is busy at first, the rest is answered."""
    if prompt in REFUSED:
        return Scripted({"error": {"message": "maximum context length", "code": 400}}, status=400)
    if int(prompt.split()[1]) % 7 == 1 and number == 1:
        return Scripted({"error": {"message": "busy", "code": 500}}, status=500)
    return Scripted(completion(prompt, finish_reason="length" if prompt in CUT else "stop"))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    monkeypatch.setattr("eyas.generate.run._PAUSE_S", 0.02)
    with ScriptedServer(script) as scripted:
        monkeypatch.setenv("OPENAI_BASE_URL", scripted.base_url)
        yield scripted


def generate(publish: bool = True, **changes: Any) -> None:
    params: GenerateParams = generate_params(max_failed_share=0.5, max_tokens=3, **changes)
    table = PromptTable.read(paths.prompts("a"), "a")
    with open_journal("a", profile(), params) as journal:
        with Session("a", profile(), params, server_params(max_attempts=5)) as session:
            responses = session.answer(table, journal)
        if publish:
            responses.publish(paths.responses("a"))


def status(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["status", "a", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_the_numbers_are_those_of_the_rows(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    write_prompts("a", PROMPTS)
    generate()
    found = status(capsys)
    answered = len(PROMPTS) - len(REFUSED)
    assert found["state"] == "finished"
    assert found["rows"] == {
        "total": 150, "done": answered, "kept": 0, "waiting": 0, "failed": 3, "refused": 0,
        "left": 0, "unasked": 0, "in_flight": 0,
    }  # fmt: skip
    published = [line.value for line in jsonl.read(paths.raw_responses("a"))]
    answers = found["answers"]
    assert answers["answers"] == len(published) == answered
    assert answers["finish_reasons"] == Counter(row["finish_reason"] for row in published)
    assert answers["finish_reasons"]["length"] == len(CUT)
    assert answers["generated_tokens"] == sum(len(row["token_ids"]) for row in published)
    assert answers["prompt_tokens"] == sum(len(row["prompt_token_ids"]) for row in published)
    assert found["failures"] == [{"kind": "permanent", "reason": "context_length", "count": 3}]
    again = sum(count - 1 for count in server.posts.values())
    assert found["faults"] == [{"kind": "transient", "reason": "http_500", "count": again}]
    (endpoint,) = found["endpoints"]
    assert (endpoint["answered"], endpoint["faults"]) == (answered, again)
    assert found["published"]["rows"] == answered
    # Counting every line of the journal, the unjudged ones of the first batch included, gives the same.
    (Path(found["directory"]) / NAME).unlink()
    counted = status(capsys)
    assert {**counted["answers"], "last_at": 0} == {**answers, "last_at": 0}
    assert counted["damaged_lines"] == 0


def test_a_later_run_adds_up(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    write_prompts("a", PROMPTS[:50])
    generate()
    write_prompts("a", PROMPTS)
    generate()
    found = status(capsys)
    assert found["rows"]["total"] == 150
    assert found["rows"]["done"] == found["answers"]["answers"] == 147
    assert found["rows"]["kept"] == 49
    assert found["rows"]["refused"] == 1
    assert found["run"]["answers"] == 98


def test_rows_that_ask_the_same_are_no_rows_left(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    write_prompts("a", [*PROMPTS[:12], PROMPTS[3]])
    generate()
    rows = status(capsys)["rows"]
    assert (rows["total"], rows["done"], rows["left"], rows["unasked"]) == (13, 12, 0, 1)
    generate()
    assert server.posts["question 3"] == 1


def test_a_run_that_the_gate_stopped(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    write_prompts("a", PROMPTS)
    with pytest.raises(GateError):
        generate(expect_reasoning=True)
    found = status(capsys)
    assert found["state"] == "failed"
    assert "reasoning" in found["detail"]
    assert found["answers"]["answers"] == 0
    assert main(["peek", "a", "--errors", "--where", "reason=gate"]) == 0
    assert "gate (content)" in capsys.readouterr().out


def test_a_living_run_is_seen_from_inside_its_journal(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    write_prompts("a", PROMPTS)
    seen: list[dict[str, Any]] = []

    def watched(prompt: str, number: int) -> Scripted:
        if len(seen) < 3 and prompt in ("question 60", "question 90", "question 140"):
            main(["status", "a", "--json"])
            seen.append(json.loads(capsys.readouterr().out)[0])
        return script(prompt, number)

    server.script = watched
    generate()
    assert [one["state"] for one in seen] == ["running"] * 3
    done = [one["rows"]["done"] for one in seen]
    assert done == sorted(done)
    assert done[-1] > done[0]
    assert all(one["rows"]["total"] == 150 and one["alive"] for one in seen)
    assert status(capsys)["rows"]["done"] == 147
