"""The two verdicts of a run, and runs that end between them."""

from __future__ import annotations

from itertools import count
from threading import Timer

import pytest

from eyas.errors import GateError, ServerError
from eyas.generate.gate import Gate, Outcome
from eyas.generate.session import open_journal
from eyas.generate.summary import read_summary
from tests.generate.asking import in_both_modes
from tests.generate.example import generate_params, profile, write_prompts
from tests.generate.running import (
    PROMPTS,
    generate,
    journal_lines,
    rows,
)
from tests.generate.scripted import MODEL, Scripted, ScriptedServer, answer, completion


@in_both_modes
def test_a_bad_second_verdict_stops_and_takes_every_answer_back(server: ScriptedServer, stream: bool) -> None:
    """The first eight are fine; then most answers are cut: known at 100, and nothing of it is used."""
    write_prompts("a", PROMPTS)
    numbers = count(1)

    def script(prompt: str, number: int) -> Scripted:
        if next(numbers) <= 8:
            return answer(prompt, number)
        return Scripted(completion(prompt, finish_reason="length", token_ids=list(range(7, 23)), usage=None))

    server.script = script
    with pytest.raises(GateError, match=r"cut by generate\.max_tokens"):
        generate(gate_max_truncated_share=0.3, stream=stream)
    assert 100 <= server.posts.total() < 110
    with open_journal("a", profile(), generate_params()) as journal:
        assert len(journal) == 0
        summary = read_summary(journal.directory)
    assert summary is not None
    assert [summary["rows"][name] for name in ("waiting", "failed", "left")] == [0, 0, 200]
    rejected = [line for line in journal_lines() if line.get("error", {}).get("reason") == "gate"]
    assert len({line["key"] for line in rejected}) == 100
    server.script = answer
    assert generate(gate_max_truncated_share=0.3, stream=stream).rows == 200


def test_a_good_second_verdict_counts_all_and_is_asked_for_once(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_prompts("a", PROMPTS)
    judged: list[int] = []
    early = Gate.early

    def watched(self: Gate, outcomes: list[Outcome]) -> None:
        judged.append(len(outcomes))
        early(self, outcomes)

    monkeypatch.setattr(Gate, "early", watched)
    assert generate().rows == 200
    assert judged == [100]
    assert server.posts == dict.fromkeys(PROMPTS, 1)
    entries = journal_lines()
    assert len(entries) == 300  # the first hundred twice: unjudged, and judged
    assert sum("error" in entry for entry in entries) == 100


def test_a_small_dataset_is_judged_once_and_counts_at_once(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_prompts("a", PROMPTS[:99])
    monkeypatch.setattr(Gate, "early", lambda self, outcomes: pytest.fail("no second verdict is due"))
    assert generate().rows == 99
    assert len(journal_lines()) == 99 + 8


def test_a_run_that_ends_between_the_verdicts_loses_nothing(server: ScriptedServer) -> None:
    """A server that dies behind 60 answers: the next run judges them with its own and asks only the others."""
    write_prompts("a", PROMPTS)
    left = count(1)

    def script(prompt: str, number: int) -> Scripted:
        return answer(prompt, number) if next(left) <= 60 else Scripted(b"", status=401)

    server.script = script
    with pytest.raises(ServerError, match="key"):
        generate()
    with open_journal("a", profile(), generate_params()) as journal:
        assert len(journal) == 0
    asked = set(server.posts)
    server.script = answer
    server.posts.clear()
    assert generate().rows == 200
    assert len(asked - set(server.posts)) == 60
    assert server.posts == dict.fromkeys(server.posts, 1)


def test_held_answers_of_a_wrong_server_are_taken_back_wherever_they_are(server: ScriptedServer) -> None:
    """The run before ended between the verdicts; its wrong answers are met by a run without a second one."""
    write_prompts("a", PROMPTS)
    left = count(1)

    def wrong_from_9_to_60(prompt: str, number: int) -> Scripted:
        place = next(left)
        if place > 60:
            return Scripted(b"", status=401)
        return Scripted(completion(prompt, model="tiny" if place <= 8 else "other"))

    server.script = wrong_from_9_to_60
    with pytest.raises(ServerError, match="key"):
        generate()
    write_prompts("a", PROMPTS[:90])
    server.script = answer
    assert generate().rows == 90
    assert {row["model"] for row in rows()} == {"tiny"}


@in_both_modes
def test_another_model_behind_the_last_verdict_stops_the_run(server: ScriptedServer, stream: bool) -> None:
    """A gateway changes the model behind a name in the middle: none of its answers is kept."""
    write_prompts("a", PROMPTS)
    numbers = count(1)

    def script(prompt: str, number: int) -> Scripted:
        if next(numbers) <= 150:
            return Scripted(completion(prompt, model=MODEL))
        return Scripted(completion(prompt, model="other"), delay_s=1.0)  # all good ones are there by then

    server.script = script
    with pytest.raises(GateError, match=f"asked {MODEL}, but other answered"):
        generate(stream=stream)
    with open_journal("a", profile(), generate_params()) as journal:
        assert len(journal) == 150
    server.script = answer
    assert generate(stream=stream).rows == 200
    assert all(row["model"] == MODEL for row in rows())


def test_a_server_that_comes_back_is_judged_again(server: ScriptedServer) -> None:
    """It went down behind the second verdict, and came back with another chat template."""
    write_prompts("a", PROMPTS)
    numbers = count(1)

    def script(prompt: str, number: int) -> Scripted:
        place = next(numbers)
        if place == 151:
            server.pages["/health"] = (500, {})
            timer.start()
            return Scripted(reset=True)
        if place < 151:
            return answer(prompt, number)
        return Scripted(completion(prompt, prompt_token_ids=[5, 6, 1, 520, 199]))

    timer = Timer(0.5, lambda: server.pages.update({"/health": (200, {})}))
    server.script = script
    with pytest.raises(GateError, match="the server's prompt ends with"):
        generate(server={"concurrency": 1, "max_attempts": 3})
    timer.join()
    with open_journal("a", profile(), generate_params()) as journal:
        assert len(journal) == 150


def test_a_server_that_the_first_batch_did_not_reach_is_judged_by_its_first_answer(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_prompts("a", PROMPTS[:50])
    numbers = count(1)

    def busy_from_the_ninth(prompt: str, number: int) -> Scripted:
        busy = Scripted({"error": {"message": "slow down"}}, status=429, headers={"Retry-After": "60"})
        return answer(prompt, number) if next(numbers) <= 8 else busy

    server.script = busy_from_the_ninth
    with ScriptedServer(
        lambda prompt, number: Scripted(completion(prompt, prompt_token_ids=[5, 6, 1, 520, 199]))
    ) as other:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.base_url},{other.base_url}")
        with pytest.raises(GateError, match="the server's prompt ends with") as caught:
            generate(server={"concurrency": 1})
        assert other.posts.total() == 1
        assert caught.value.where is not None
        assert caught.value.where.endswith(f", answered by {other.base_url}")
    with open_journal("a", profile(), generate_params()) as journal:
        assert len(journal) == 8


def test_the_first_verdict_names_the_server_that_is_wrong(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_prompts("a", PROMPTS[:50])
    server.script = lambda prompt, number: Scripted(completion(prompt), delay_s=0.05)
    with ScriptedServer(
        lambda prompt, number: Scripted(
            completion(prompt, prompt_token_ids=[5, 6, 1, 520, 199]), delay_s=0.05
        )
    ) as other:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.base_url},{other.base_url}")
        with pytest.raises(GateError, match=f"answered by {other.base_url}"):
            generate(server={"concurrency": 8})
        assert server.posts.total() + other.posts.total() == 8
