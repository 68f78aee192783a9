from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers.utils import chat_template_utils

from eyas.errors import InputError
from eyas.target.template import (
    generation_prompt_ids,
    load_tokenizer,
    render_prompt,
    render_text,
    render_texts,
)
from tests.tiny_target import write_target

MESSAGES = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "three"},
]


def test_rendered_prompt(llama: Path) -> None:
    ids = render_prompt(llama, MESSAGES, {})
    text = load_tokenizer(llama).decode(ids)
    assert text == (
        "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\ntwo<|im_end|>\n"
        "<|im_start|>user\nthree<|im_end|>\n<|im_start|>assistant\n"
    )
    assert ids.count(1) == 4
    assert ids.count(2) == 3


def test_a_relative_folder_is_that_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second"):
        template = "{% for m in messages %}{{ m['content'] }}{% endfor %} " + name
        write_target(tmp_path / name / "target", template=template)
        monkeypatch.chdir(tmp_path / name)
        text = load_tokenizer(Path("target")).decode(render_prompt(Path("target"), MESSAGES[:1]))
        assert text == f"one {name}"


def test_template_arguments_are_passed(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}{{ mood }}"
    folder = write_target(tmp_path / "t", template=template)
    assert load_tokenizer(folder).decode(render_prompt(folder, MESSAGES[:1], {"mood": "calm"})) == "onecalm"


def test_tools_are_passed_and_none_are_none(tmp_path: Path) -> None:
    template = "{% if tools %}{{ tools[0].function.name }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
    folder = write_target(tmp_path / "t", template=template)
    tokenizer = load_tokenizer(folder)
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    assert tokenizer.decode(render_prompt(folder, MESSAGES[:1], tools=[tool])) == "addone"
    assert tokenizer.decode(render_prompt(folder, MESSAGES[:1], tools=[])) == "one"


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("read", ["reasoning", "reasoning_content"])
def test_thinking_has_one_name_for_the_template(key: str, read: str, tmp_path: Path) -> None:
    folder = write_target(tmp_path / "t", template="{% for m in messages %}{{ m." + read + " }}|{% endfor %}")
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", key: "R"}]
    assert load_tokenizer(folder).decode(render_prompt(folder, messages)) == "|R|"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param('{"a": 2}', '{"a": 2}', id="text"),
        pytest.param("", "{}", id="empty"),
        pytest.param("{torn", "{}", id="no JSON"),
        pytest.param("[1]", "{}", id="no object"),
        pytest.param({"a": 2}, '{"a": 2}', id="object"),
        pytest.param(None, "{}", id="null"),
    ],
)
def test_tool_arguments_reach_the_template_as_an_object(
    arguments: object, expected: str, tmp_path: Path
) -> None:
    template = "{{ messages[0].content }}{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    folder = write_target(tmp_path / "t", template=template)
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": arguments}}
    message: dict[str, object] = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert load_tokenizer(folder).decode(render_prompt(folder, [message])) == expected


def test_a_null_or_empty_key_is_as_if_absent(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}{{ m.tool_calls is defined }}{{ m.reasoning is defined }}{% endfor %}"
    folder = write_target(tmp_path / "t", template=template)
    message: dict[str, object] = {"role": "assistant", "content": "x", "reasoning": None, "tool_calls": []}
    assert load_tokenizer(folder).decode(render_prompt(folder, [message])) == "xFalseFalse"


def test_the_generation_prompt_follows_the_arguments(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'off' if deep is false else 'on' }}{% endif %}"
    )
    tokenizer = load_tokenizer(write_target(tmp_path / "t", template=template))
    assert tokenizer.decode(generation_prompt_ids(tokenizer)) == "on"
    assert tokenizer.decode(generation_prompt_ids(tokenizer, {"deep": False})) == "off"


def test_a_template_that_refuses(tmp_path: Path) -> None:
    folder = write_target(tmp_path / "t", template="{{ raise_exception('no system role') }}")
    with pytest.raises(InputError, match="no system role"):
        render_prompt(folder, MESSAGES)


def test_a_folder_without_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="tokenizer can't be loaded"):
        render_prompt(tmp_path, MESSAGES)


def test_rendering_needs_no_torch(llama: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from eyas.target.template import render_prompt;"
        "import eyas.target.spec, eyas.target.layers, eyas.target.think, eyas.target.params;"
        "assert render_prompt(Path(sys.argv[1]), [{'role': 'user', 'content': 'x'}]);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(llama)], check=False).returncode == 0


@pytest.mark.parametrize("own_code", [False, True], ids=["transformers", "own-code"])
def test_many_conversations_are_rendered_as_one_by_one(
    llama: Path, own_code: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = load_tokenizer(llama)
    if own_code:
        apply = type(tokenizer).apply_chat_template

        def apply_to_one(self: Any, conversation: list[Any], **options: Any) -> Any:
            assert isinstance(conversation[0], dict)
            return apply(self, conversation, **options)

        monkeypatch.setattr(type(tokenizer), "apply_chat_template", apply_to_one)
    empty: dict[str, Any] = {"role": "assistant", "tool_calls": [], "reasoning": None}
    conversations: list[list[dict[str, Any]]] = [
        [*MESSAGES[:1]], [*MESSAGES], [{"role": "user", "content": "one"}, empty]
    ]  # fmt: skip
    texts = render_texts(tokenizer, conversations)
    assert texts == [render_text(tokenizer, messages, generation_prompt=True) for messages in conversations]
    assert render_texts(tokenizer, []) == []


def test_globals_of_a_template_are_one_dict(llama: Path) -> None:
    """They are copied for each rendering; transformers may name what compiles a template otherwise one day."""
    tokenizer = load_tokenizer(llama)
    compiled = chat_template_utils._compile_jinja_template(tokenizer.chat_template)
    before = dict(compiled.globals)
    assert len(render_texts(tokenizer, [MESSAGES])) == 1
    assert type(compiled.globals) is dict
    assert compiled.globals == before


def test_a_template_that_is_none_is_refused_for_many_as_for_one(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_target(tmp_path / "broken"))
    tokenizer.chat_template = "{% for %}"
    for refused in (
        lambda: render_texts(tokenizer, [MESSAGES]),
        lambda: render_text(tokenizer, MESSAGES, generation_prompt=True),
    ):
        with pytest.raises(InputError, match="the chat template refuses the messages: "):
            refused()
