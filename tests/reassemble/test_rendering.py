from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eyas.errors import GateError, InputError
from eyas.reassemble.rendering import Mismatch, Renderer, mismatches, refuse_mismatches
from eyas.target.template import load_tokenizer, render_prompt
from tests.families import FAMILIES
from tests.hand_made import END, raw, validated
from tests.hand_made_tokenizer import write_tokenizer
from tests.reassemble.golden_rows import row_of, table_of

QUESTION = [{"role": "user", "content": "add one"}]
RENDERED = [1, 8, 10, 20, 21, END, 10, 1, 9, 10]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("target"))


def different(
    target: Path, ids: list[int] | None, messages: Any = QUESTION, **template_kwargs: Any
) -> list[Mismatch]:
    row = raw("talk:1", messages=messages, prompt_token_ids=ids)
    return list(mismatches([validated([row])], Renderer(target, template_kwargs)))


def test_equal_renderings_are_no_mismatch(target: Path) -> None:
    assert different(target, RENDERED) == []
    refuse_mismatches([], 1, load_tokenizer(target))


def test_rows_without_ids_are_passed_over(target: Path) -> None:
    assert different(target, None) == []


def test_template_arguments_are_those_of_the_server(target: Path) -> None:
    assert different(target, [*RENDERED, 3], open_think=True) == []
    assert different(target, [*RENDERED, 3]) == [Mismatch("talk:1", 10, 3, None)]


def test_many_rows_at_once_are_rendered_as_one_by_one(target: Path) -> None:
    texts = ["add one", "", "one\ntwo", "<|end|> <think>", "two two", "é"]
    rows = [
        raw(f"talk:{number}", messages=[{"role": "user", "content": text}])
        for number, text in enumerate(texts)
    ]
    one_by_one = [render_prompt(target, row["messages"]) for row in rows]
    assert Renderer(target, {}).render(validated(rows)) == one_by_one
    right = [row | {"prompt_token_ids": ids} for row, ids in zip(rows, one_by_one, strict=True)]
    right[3] |= {"prompt_token_ids": [1, 8, 10, 0]}
    found = list(mismatches([validated(right[:2]), validated(right[2:])], Renderer(target, {})))
    assert [mismatch.sample_id for mismatch in found] == ["talk:3"]


def test_case_B09_history_is_rendered_as_the_server_does(target: Path) -> None:
    history = [*QUESTION, {"role": "assistant", "content": "<think> two </think> it"}, *QUESTION]
    dropped = [*RENDERED, 30, END, 10, *RENDERED]
    assert different(target, dropped, history) == []


@pytest.mark.parametrize("name", ["kimi-k2-thinking", "kimi-k2.5", "qwen3", "gpt-oss"])
def test_case_J04_a_tool_loop_keeps_its_thinking(name: str, tmp_path: Path) -> None:
    """R1 is in the messages that were sent, so it must be in the server's prompt ids."""
    family = FAMILIES[name]
    turn = family.turn("tool_loop")
    renderer = Renderer(family.tokenizer_dir(tmp_path), {})
    assert list(mismatches([table_of(row_of(family, turn))], renderer)) == []

    forgotten = [message | {"reasoning": None} for message in turn.messages]
    without = renderer.render(table_of(row_of(family, turn, messages=forgotten)))[0]
    assert len(without) < len(turn.prompt_ids)
    found = list(mismatches([table_of(row_of(family, turn, prompt_token_ids=without))], renderer))
    assert len(found) == 1
    position = found[0].position  # where R1 begins
    assert turn.prompt_ids[:position] == without[:position]
    assert found[0].local_id == turn.prompt_ids[position]
    with pytest.raises(
        GateError, match=f"1 of 1 prompts .* differs at token {position}, server {without[position]} "
    ):
        refuse_mismatches(found, 1, renderer.tokenizer)


def test_tools_are_rendered_into_the_prompt(tmp_path: Path) -> None:
    directory = write_tokenizer(tmp_path)
    template = directory / "chat_template.jinja"
    template.write_text(
        "{% for tool in tools or [] %}{{ tool.function.name }}\n{% endfor %}" + template.read_text()
    )
    tools = json.dumps([{"type": "function", "function": {"name": "add"}}])
    row = raw(messages=QUESTION, tools=tools, prompt_token_ids=[20, 10, *RENDERED])
    assert list(mismatches([validated([row])], Renderer(directory, {}))) == []
    found = list(mismatches([validated([row | {"tools": None}])], Renderer(directory, {})))
    assert found == [Mismatch("talk:1", 0, 20, 1)]


def test_a_template_that_refuses_names_the_row(tmp_path: Path) -> None:
    directory = write_tokenizer(tmp_path)
    (directory / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InputError, match=r"(?s)roles must alternate.*where: talk:9"):
        Renderer(directory, {}).render(validated([raw("talk:9")]))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        pytest.param(
            [1, 8, 10, 20, 22, END, 10, 1, 9, 10], "token 4, server 22 'two', here 21 'one'", id="other-word"
        ),
        pytest.param(
            [1, 11, 10, END, 10, *RENDERED], "token 1, server 11 'system', here 8 'user'", id="system-message"
        ),
        pytest.param(RENDERED[:-1], "token 9, server nothing .its prompt ends., here 10", id="shorter"),
        pytest.param([*RENDERED, 3], "token 10, server 3 '<think>', here nothing", id="longer"),
    ],
)
def test_the_first_different_token_is_named_on_both_sides(target: Path, ids: list[int], message: str) -> None:
    found = different(target, ids)
    with pytest.raises(GateError, match="(?s)1 of 7 prompts .*" + message + ".*talk:1"):
        refuse_mismatches(found, 7, load_tokenizer(target))
