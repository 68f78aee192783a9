from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from eyas.datasets import DatasetParams
from eyas.errors import InputError
from eyas.prompts.params import PromptsParams
from eyas.prompts.rows import Problem, RejectedRow, SourceRow, SourceRows
from eyas.prompts.table import PromptTables, build_prompts
from eyas.schema import Prompts, RejectedPrompts, check

ROOT = Path(__file__).resolve().parents[2]


def build(
    name: str, sources: Mapping[str, Sequence[Any]], system: str | None = None, history: str = "regenerate"
) -> PromptTables:
    """Datasets in order, those named `eval...` for evaluation; a row is (id, value[, tools]) or a RejectedRow."""

    def reader(dataset: str, params: DatasetParams) -> SourceRows:
        rows = sources[dataset]
        return SourceRows(
            [
                SourceRow(row[0], f"{dataset}.{row[0]}", row[1], tools=row[2] if len(row) > 2 else None)
                for row in rows
                if isinstance(row, tuple)
            ],
            [row for row in rows if isinstance(row, RejectedRow)],
        )

    datasets = {
        dataset: DatasetParams(
            source="jsonl",
            role="eval" if dataset.startswith("eval") else "train",
            path="x",
            column="c",
            history=history,
        )
        for dataset in sources
    }
    tables = build_prompts(name, datasets, PromptsParams(system=system), reader)
    check(Prompts, tables.prompts, "prompts")
    check(RejectedPrompts, tables.rejected, "rejected")
    return tables


def ids(tables: PromptTables) -> list[str]:
    return tables.prompts["sample_id"].to_list()


def messages(tables: PromptTables) -> dict[str, list[dict[str, Any]]]:
    """By sample_id, without null keys."""
    return {
        sample_id: [
            {name: value for name, value in message.items() if value is not None} for message in conversation
        ]
        for sample_id, conversation in tables.prompts.select("sample_id", "messages").rows()
    }


def rejects(tables: PromptTables) -> dict[str, str]:
    return dict(tables.rejected.select("sample_id", "reason").rows())


def test_prompts_are_sorted_by_id_and_carry_their_dataset() -> None:
    tables = build("a", {"a": [("2", "x"), ("10", "y"), ("1", "z")]}, system="S")
    assert ids(tables) == ["a:1", "a:10", "a:2"]
    assert tables.prompts["dataset"].unique().to_list() == ["a"]
    assert messages(tables)["a:1"] == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "z"},
    ]


def test_rejected_rows_of_source_and_of_normalisation_are_kept_with_their_place() -> None:
    torn = RejectedRow("line-000004", "f.jsonl:4", Problem("not_json", "torn"))
    tables = build("a", {"a": [("1", "x"), ("2", 42), torn]})
    assert ids(tables) == ["a:1"]
    assert tables.rejected.rows() == [
        ("a:2", "content_not_text", "a.2: neither a string nor a list of messages but int"),
        ("a:line-000004", "not_json", "f.jsonl:4: torn"),
    ]


def test_case_I08_within_a_dataset_the_first_row_keeps_a_prompt() -> None:
    tables = build("a", {"a": [("z", "Go on"), ("b", "go  on "), ("c", "other"), ("a", "GO ON")]})
    assert ids(tables) == ["a:c", "a:z"]
    assert rejects(tables) == {"a:a": "duplicate", "a:b": "duplicate"}
    assert tables.rejected["detail"].unique().to_list() == ["the same prompt as a:z"]


def test_case_I08_across_training_datasets_the_first_of_the_params_keeps_a_prompt() -> None:
    sources = {"first": [("1", "x"), ("2", "y")], "second": [("1", "X"), ("2", "z")]}
    assert ids(build("first", sources)) == ["first:1", "first:2"]
    second = build("second", sources)
    assert ids(second) == ["second:2"]
    assert second.rejected.row(0) == ("second:1", "duplicate_across_datasets", "the same prompt as first:1")
    turned = dict(reversed(sources.items()))
    assert ids(build("second", turned)) == ["second:1", "second:2"]


@pytest.mark.parametrize("order", [("a", "eval-b"), ("eval-b", "a")])
def test_no_training_prompt_is_in_an_evaluation_dataset(order: tuple[str, str]) -> None:
    rows = {"a": [("1", "x"), ("2", "y")], "eval-b": [("1", "X ")]}
    sources = {name: rows[name] for name in order}
    tables = build("a", sources)
    assert ids(tables) == ["a:2"]
    assert tables.rejected.row(0) == ("a:1", "overlaps_evaluation", "the same prompt as eval-b:1")
    assert ids(build("eval-b", sources)) == ["eval-b:1"]


def test_a_row_is_rejected_once_and_evaluation_comes_first() -> None:
    sources = {"a": [("1", "x")], "b": [("1", "x"), ("2", "x"), ("3", "y")], "eval": [("1", "x")]}
    assert rejects(build("b", sources)) == {"b:1": "overlaps_evaluation", "b:2": "duplicate"}


def test_every_row_is_a_prompt_or_rejected() -> None:
    rows = [(str(number), value) for number, value in enumerate(["x", "y", " x", 3, "", "z", "Z"])]
    tables = build("a", {"a": rows, "eval": [("1", "y")]})
    assert sorted(ids(tables) + list(rejects(tables))) == [f"a:{number}" for number, _ in rows]


def test_a_dataset_without_any_prompt_is_an_error_with_the_reasons() -> None:
    with pytest.raises(InputError, match=r"(?s)no prompt is left.*2 empty_turn, 1 content_not_text"):
        build("a", {"a": [("1", ""), ("2", 3), ("3", " ")]})


def test_case_I10_unusual_text_is_kept_verbatim_and_counted() -> None:
    dirty = "\ufeff<div class=x>Copy code</div>\u200b"
    tables = build("a", {"a": [("1", dirty), ("2", "broken \ufffd\ufffd"), ("3", "clean")]})
    assert tables.prompts["messages"].list[0].struct.field("content").to_list() == [
        dirty, "broken \ufffd\ufffd", "clean",
    ]  # fmt: skip
    assert tables.unusual == {"byte order mark": 1, "zero-width space": 1, "replacement character U+FFFD": 1}


def test_the_everyday_file_has_150_different_prompts() -> None:
    rows = [json.loads(line) for line in (ROOT / "sources/everyday.jsonl").read_bytes().splitlines()]
    tables = build("everyday", {"everyday": [(row["id"], row["prompt"]) for row in rows]})
    assert tables.prompts.height == 150
    assert tables.rejected.is_empty()


def talk(*texts: str) -> list[dict[str, str]]:
    """User and assistant turns in turn."""
    return [
        {"role": "assistant" if place % 2 else "user", "content": text} for place, text in enumerate(texts)
    ]


def test_history_decides_whether_given_answers_stay() -> None:
    sources = {"a": [("1", talk("q", "old", "r"))]}
    assert messages(build("a", sources))["a:1"] == [talk("q")[0], talk("r")[0]]
    assert messages(build("a", sources, history="keep"))["a:1"] == talk("q", "old", "r")


def test_the_prompt_is_the_same_whatever_the_answers_between() -> None:
    sources = {"a": [("1", talk("q", "old", "r")), ("2", talk("Q", "other", "r")), ("3", talk("q", "", "s"))]}
    for history, reason in (("regenerate", None), ("keep", "empty_turn")):
        tables = build("a", sources, history=history)
        assert rejects(tables) == {"a:2": "duplicate"} | ({} if reason is None else {"a:3": reason})
    first = build("a", sources).prompts["prompt_hash"][0]
    assert first == build("a", sources, history="keep").prompts["prompt_hash"][0]


def test_tools_are_kept_as_canonical_text() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": "\u00e9"}}}
    text = '[{"function":{"name":"f","parameters":{"a":"\u00e9","b":1}},"type":"function"}]'
    tables = build(
        "a", {"a": [("1", "x", [tool]), ("2", "y", json.dumps([tool])), ("3", "z"), ("4", "w", [])]}
    )
    assert tables.prompts["tools"].to_list() == [text, text, None, None]


@pytest.mark.parametrize(
    "tools",
    ["[", "{}", 7, {"a": 1}, ["f"], [{}], [{"type": "function", "function": {}}], '[{"a":1,"a":2}]',
     [{"type": "retrieval", "function": {"name": "f"}}]],
)  # fmt: skip
def test_bad_tools_reject_their_row_alone(tools: Any) -> None:
    tables = build("a", {"a": [("1", "x", tools), ("2", "y")]})
    if tools == "{}":  # no tools at all
        assert ids(tables) == ["a:1", "a:2"]
    else:
        assert (ids(tables), rejects(tables)) == (["a:2"], {"a:1": "bad_tools"})


def test_no_turn_of_a_training_conversation_is_one_of_an_evaluation_set() -> None:
    evaluation = [("1", talk("q", "", "r", "", "s"))]
    training = {
        "same": (talk("q", "", "r", "", "s"), True),
        "begins-alike": (talk("Q ", "", "x"), True),
        "first-turns": (talk("q"), True),
        "goes-on": (talk("q", "", "r", "", "s", "", "t"), True),
        "other-order": (talk("r", "", "q"), False),
        "later-turn": (talk("x", "", "q"), False),
    }
    tables = build("a", {"a": [(name, value) for name, (value, _) in training.items()], "eval": evaluation})
    assert rejects(tables) == {f"a:{name}": "overlaps_evaluation" for name in training if training[name][1]}
    assert set(tables.rejected["detail"]) == {"the same prompt as eval:1"}


def test_with_kept_answers_only_the_last_turn_is_a_prompt() -> None:
    sources = {
        "a": [("1", talk("q", "o", "x")), ("2", talk("q", "o", "r"))],
        "eval": [("1", talk("q", "p", "r"))],
    }
    assert rejects(build("a", sources, history="keep")) == {"a:2": "overlaps_evaluation"}


def test_training_conversations_may_begin_alike_in_two_datasets() -> None:
    sources = {
        "a": [("1", talk("hi", "", "x"))],
        "b": [("1", talk("hi", "", "y")), ("2", talk("hi", "", "x"))],
    }
    assert rejects(build("b", sources)) == {"b:2": "duplicate_across_datasets"}
