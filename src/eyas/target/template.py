"""The target's tokenizer and chat template, without torch where the folder has a tokenizer.json.

Only prompts are rendered: a finished turn is what the target generated, never a rendering of its text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from eyas.errors import InputError

PROBE = "Xq7 probe answer"
"""A text that a template passes through unchanged and that occurs nowhere else in it."""


def load_tokenizer(directory: Path, *, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a model folder; loaded once.

    tokenizer.json is taken literally: the model-specific classes of transformers may replace parts of it, and
    loading them imports torch. Folders without that file go through AutoTokenizer.

    Raises:
        InputError: the folder has no tokenizer that can be loaded.
    """
    try:
        return _loaded(directory.resolve(), trust_remote_code)
    except (OSError, ValueError, ImportError) as error:
        raise InputError(
            f"the tokenizer can't be loaded: {error}",
            where=str(directory),
            hint="the folder needs tokenizer.json and tokenizer_config.json, or target.trust_remote_code: true",
        ) from error


@lru_cache(maxsize=2)
def _loaded(directory: Path, trust_remote_code: bool) -> Any:
    """`directory` is absolute: a relative one means another folder in another working directory."""
    if (directory / "tokenizer.json").exists():
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(directory, clean_up_tokenization_spaces=False)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(
        directory, local_files_only=True, trust_remote_code=trust_remote_code
    )


def render_prompt(
    tokenizer_dir: Path,
    messages: Sequence[Mapping[str, Any]],
    template_kwargs: Mapping[str, Any] | None = None,
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    trust_remote_code: bool = False,
) -> list[int]:
    """Ids of a conversation that ends with the generation prompt, as a server renders it.

    Messages and tools as in a request to an OpenAI-compatible server; `reasoning` and `reasoning_content` are one.

    Raises:
        InputError: the template refuses the messages, or there is no template.
    """
    tokenizer = load_tokenizer(Path(tokenizer_dir), trust_remote_code=trust_remote_code)
    text = render_text(
        tokenizer, messages, generation_prompt=True, template_kwargs=template_kwargs, tools=tools
    )
    return encode(tokenizer, text)


def render_text(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    *,
    generation_prompt: bool,
    template_kwargs: Mapping[str, Any] | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> str:
    """The text that the chat template makes of a conversation.

    Raises:
        InputError: the template refuses the messages, or there is no template.
    """
    rendered = _applied(
        tokenizer,
        [_for_template(message) for message in messages],
        generation_prompt=generation_prompt,
        template_kwargs=template_kwargs,
        tools=tools,
    )
    return str(rendered)


def render_texts(
    tokenizer: Any,
    conversations: Sequence[Sequence[Mapping[str, Any]]],
    template_kwargs: Mapping[str, Any] | None = None,
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> list[str]:
    """The texts of many conversations that ask for an answer, as `render_text` makes each, in less time.

    Raises:
        InputError: the template refuses the messages of one of them, or there is no template.
    """
    from transformers import PreTrainedTokenizerBase

    if not conversations:
        return []
    if type(tokenizer).apply_chat_template is not PreTrainedTokenizerBase.apply_chat_template:
        return [  # a tokenizer's own code need not know of several conversations
            render_text(
                tokenizer, messages, generation_prompt=True, template_kwargs=template_kwargs, tools=tools
            )
            for messages in conversations
        ]
    with _refusals(tokenizer):
        _flatten_globals(tokenizer)
    rendered = _applied(
        tokenizer,
        [[_for_template(message) for message in messages] for messages in conversations],
        generation_prompt=True,
        template_kwargs=template_kwargs,
        tools=tools,
    )
    return [str(text) for text in rendered]


def encode(tokenizer: Any, text: str) -> list[int]:
    """Ids of a text, special tokens in it recognised, none added."""
    return [int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]


def generation_prompt(tokenizer: Any, template_kwargs: Mapping[str, Any] | None = None) -> str:
    """What the template appends to ask for an answer.

    Raises:
        InputError: the rendering with it does not continue the rendering without it.
    """
    messages = [{"role": "user", "content": "Hello"}]
    before = render_text(tokenizer, messages, generation_prompt=False, template_kwargs=template_kwargs)
    after = render_text(tokenizer, messages, generation_prompt=True, template_kwargs=template_kwargs)
    appended = after.removeprefix(before)
    if not after.startswith(before) or not appended:
        raise InputError(
            "the chat template's generation prompt does not continue the conversation before it",
            where=str(tokenizer.name_or_path),
            hint="the template must support add_generation_prompt",
        )
    return appended


def generation_prompt_ids(tokenizer: Any, template_kwargs: Mapping[str, Any] | None = None) -> list[int]:
    """The ids of `generation_prompt`: with these arguments, every prompt ends with them."""
    return encode(tokenizer, generation_prompt(tokenizer, template_kwargs))


def template_end_of_turn_id(tokenizer: Any) -> int | None:
    """The special token that the template puts right after an assistant's answer; None if it puts none.

    Derived from a rendered turn: the tokenizer's eos is often another token.
    """
    special = special_ids(tokenizer)
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": PROBE}]
    rendered = render_text(tokenizer, messages, generation_prompt=False)
    if PROBE not in rendered:
        raise InputError(
            "the chat template drops or changes the assistant's answer", where=str(tokenizer.name_or_path)
        )
    tail = encode(tokenizer, rendered.rsplit(PROBE, 1)[1])
    return tail[0] if tail and tail[0] in special else None


def special_ids(tokenizer: Any) -> list[int]:
    """All special and added ids, ascending."""
    return sorted({*map(int, tokenizer.all_special_ids), *map(int, tokenizer.get_added_vocab().values())})


def _applied(
    tokenizer: Any,
    conversations: list[Any],
    *,
    generation_prompt: bool,
    template_kwargs: Mapping[str, Any] | None,
    tools: Sequence[Mapping[str, Any]] | None,
) -> Any:
    """The text of one conversation, or the texts of several."""
    if not tokenizer.chat_template:
        raise InputError(
            "the target has no chat template",
            where=str(tokenizer.name_or_path),
            hint="use an instruction-tuned target whose folder has chat_template.jinja",
        )
    with _refusals(tokenizer):
        return tokenizer.apply_chat_template(
            conversations,
            tools=[dict(tool) for tool in tools] if tools else None,
            tokenize=False,
            add_generation_prompt=generation_prompt,
            **(template_kwargs or {}),
        )


@contextmanager
def _refusals(tokenizer: Any) -> Iterator[None]:
    """What a template raises, as InputError."""
    from jinja2 import TemplateError

    try:
        yield
    except (TemplateError, TypeError, ValueError) as error:
        raise InputError(
            f"the chat template refuses the messages: {error}", where=str(tokenizer.name_or_path)
        ) from error


def _flatten_globals(tokenizer: Any) -> None:
    """Make the globals of the compiled template one dict.

    jinja gives a template a ChainMap and copies it for each rendering, which takes as long as rendering a short prompt.
    """
    from transformers.utils import chat_template_utils

    # not public, but the only way to the template that apply_chat_template renders
    compiled_of = getattr(chat_template_utils, "_compile_jinja_template", None)
    if compiled_of is not None and isinstance(tokenizer.chat_template, str):
        compiled = compiled_of(tokenizer.chat_template)
        compiled.globals = dict(compiled.globals)


def _for_template(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as servers hand it to the template: thinking under both of its names, parsed tool arguments."""
    found = {key: value for key, value in message.items() if value is not None and value != []}
    found.setdefault("content", "")
    thinking = found.get("reasoning", found.get("reasoning_content"))
    if found.get("role") == "assistant" and thinking is not None:
        found["reasoning"] = found["reasoning_content"] = thinking
    if "tool_calls" in found:
        found["tool_calls"] = [_parsed_call(call) for call in found["tool_calls"]]
    return found


def _parsed_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as an object, empty if they are no JSON object: what vLLM and SGLang make of their text."""
    function = dict(call["function"])
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = {}
    function["arguments"] = arguments if isinstance(arguments, dict) else {}
    return {**call, "function": function}
