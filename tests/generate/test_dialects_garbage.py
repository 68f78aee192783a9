"""Whatever a server puts in the place of anything, one row fails and nothing else does."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.generate.failure import RowFailure
from eyas.generate.record import Answer
from tests.generate import replies
from tests.generate.reading import feed, make, request
from tests.generate.replies import TURNS, Turn
from tests.hand_made_tokenizer import write_tokenizer

JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**65), 2**65),
        st.floats(allow_nan=False, allow_infinity=False),
        st.sampled_from(["", "x", "\ud800", "stop", "length", "abort", "error", "400", "tool_calls"]),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)
WHOLE: dict[str, Callable[..., Any]] = {
    "vllm": replies.vllm,
    "sglang": replies.sglang,
    "sglang-generate": replies.sglang_generate,
    "openai": replies.openrouter,
}
EVENTS: dict[str, Callable[..., Any]] = {
    "vllm": replies.vllm_events,
    "sglang-generate": replies.sglang_generate_events,
    "openai": replies.openrouter_events,
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("target"))


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value, the value itself first."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from places(item, (*path, key))


def spoiled(value: Any, path: tuple[Any, ...], garbage: Any) -> Any:
    if not path:
        return garbage
    value = copy.deepcopy(value)
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = garbage
    return value


def check(read: Any) -> None:
    try:
        answer = read()
    except RowFailure:
        return
    assert isinstance(answer, Answer)
    assert answer.finish_reason in ("stop", "length", "tool_calls")
    json.dumps(answer.to_json(), ensure_ascii=False).encode()  # no lone surrogate has come through
    assert all(0 <= token < 2**31 for token in [*(answer.token_ids or []), *(answer.prompt_token_ids or [])])
    for text in (answer.reasoning, answer.content):
        assert text is None or (isinstance(text, str) and text)


@pytest.mark.parametrize("server", WHOLE)
@settings(max_examples=100)
@given(data=st.data(), turn=st.sampled_from(list(TURNS.values())), garbage=JSON)
def test_in_one_piece(server: str, tokenizer: Path, data: st.DataObject, turn: Turn, garbage: Any) -> None:
    reply = WHOLE[server](turn)
    reply = spoiled(reply, data.draw(st.sampled_from(list(places(reply)))), garbage)
    check(lambda: make(server, tokenizer=tokenizer, max_tokens=3).read(reply, request()))


@pytest.mark.parametrize("server", EVENTS)
@settings(max_examples=100)
@given(data=st.data(), turn=st.sampled_from(list(TURNS.values())), garbage=JSON, done=st.booleans())
def test_in_a_stream(
    server: str, tokenizer: Path, data: st.DataObject, turn: Turn, garbage: Any, done: bool
) -> None:
    events = EVENTS[server](turn)
    path = data.draw(st.sampled_from([path for path in places(events) if path]))
    events = spoiled(events, path, garbage)
    speaker = make(server, tokenizer=tokenizer, max_tokens=3, stream=True)
    check(lambda: feed(speaker, events, request(), done=done))
