"""A conversation while its answers are generated: what each turn is asked, and when it can't go on.

Only the source's system, user and tool turns are given; every answer is the target's own. The answer to a turn
becomes the history of the next, with its text, its reasoning and its tool calls. Whether reasoning of an earlier
turn is shown to the model is for the chat template to decide: Kimi keeps it while a chain of tool calls goes on
(speculators PR #864), others drop it at once. So all of it is handed on.

A conversation ends before its last turn
* with `tool_calls_differ`: the source goes on with results of n tool calls and the answer makes another number of
  them. No result belongs to a call that was not recorded, and a call without a result is refused by servers.
* with `truncated_history`: the answer was cut at a token limit. A template would close it like a finished one, and
  the model would continue from a text that nobody, in any served conversation, accepts as an answer.
* with `empty_history`: the answer is thinking alone. Servers refuse or drop an empty assistant message
  (vllm-project/vllm#21089).
The answers before are kept: each was asked in the right way.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from eyas.generate.failure import RowFailure, content
from eyas.generate.record import Answer
from eyas.turns import Message, questions

ENDINGS = ("tool_calls_differ", "truncated_history", "empty_history")
"""Why a conversation ends early although no request failed."""


class History:
    """The messages of one conversation up to the turn that is asked next."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._questions = questions(messages)
        self._messages: list[Message] = list(self._questions[0]) if self._questions else []
        self.turn = 0
        """The turn that is asked next, from 0; `turns` once all are answered."""
        self.ending: RowFailure | None = None
        """Why no later turn can be asked; one of ENDINGS."""

    @property
    def turns(self) -> int:
        """Turns to generate."""
        return len(self._questions)

    @property
    def over(self) -> bool:
        """Whether nothing is left to ask."""
        return self.ending is not None or self.turn == self.turns

    def messages(self) -> list[Message]:
        """What the next turn is asked: all messages so far, generated answers included."""
        return list(self._messages)

    def add(self, answer: Answer) -> None:
        """Take the answer to the turn that was asked, and go on to the next."""
        self.turn += 1
        if self.turn == self.turns:
            return
        question = self._questions[self.turn]
        self.ending = _ending(answer, question)
        if self.ending is None:
            said = _message(answer)
            self._messages += [said, *_with_call_ids(question, said)]


def _ending(answer: Answer, question: list[Message]) -> RowFailure | None:
    if answer.finish_reason == "length":
        return content("truncated_history", "the answer before was cut at a token limit")
    results = len(_results(question))
    calls = len(answer.tool_calls or [])
    if calls != results:
        return content(
            "tool_calls_differ",
            f"the answer before makes {calls} tool calls, the source has {results} results",
        )
    if not calls and not (answer.content or "").strip():
        return content("empty_history", "the answer before has neither text nor tool calls")
    return None


def _message(answer: Answer) -> Message:
    """An answer as a message of the history."""
    said = {
        "role": "assistant",
        "content": answer.content,
        "reasoning": answer.reasoning,
        "tool_calls": answer.tool_calls or None,
    }
    return {name: value for name, value in said.items() if value is not None}


def _with_call_ids(question: list[Message], said: Message) -> list[Message]:
    """A question whose tool turns name the calls of the generated answer instead of the source's."""
    results = _results(question)
    named = [
        {name: value for name, value in message.items() if name != "tool_call_id"}
        | ({"tool_call_id": call["id"]} if call["id"] is not None else {})
        for message, call in zip(results, said.get("tool_calls", []), strict=True)
    ]
    return [*named, *question[len(results) :]]


def _results(question: list[Message]) -> list[Message]:
    """The tool turns that answer the calls of the turn before."""
    return list(takewhile(lambda message: message["role"] == "tool", question))
