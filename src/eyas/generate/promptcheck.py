"""Whether the server's prompts are those that our copy of the target makes.

A prompt that differs is answered well and looks right in every reply: another chat template, a default system message,
thinking in the history that the template never saw (vllm-project/vllm#33616). Only the ids tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eyas.errors import GateError, InputError
from eyas.generate.excerpt import place, shown
from eyas.generate.params import GenerateParams
from eyas.generate.record import Answer
from eyas.generate.request import ChatRequest
from eyas.target.spec import TargetProfile
from eyas.target.think import prompt_tail, thinking_asked

Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None], list[int]]
Text = Callable[[Sequence[int]], str]

_BEFORE, _BEHIND = 6, 12
_OPENING_TOKENS = 4
"""A default system message stands behind at most so many tokens: beginning of text, start of a turn."""


@dataclass(frozen=True)
class PromptCheck:
    """Compares one prompt after another with the local rendering, or with the profile where there is none."""

    params: GenerateParams
    profile: TargetProfile
    render: Render | None
    """Ids of messages and tools under `generate.chat_template_kwargs`."""
    text: Text | None
    """What ids stand for; without it messages name ids only."""

    def check(self, request: ChatRequest, answer: Answer) -> None:
        """Raises:
        GateError: the server's prompt is another; names the first token that differs, on both sides.
        """
        ours = None if self.render is None else self._ours(request, self.render)
        if answer.prompt_token_ids is None:
            self._check_count(request, answer, ours)
            return
        if ours is not None and ours != answer.prompt_token_ids:
            raise self._differs(request, ours, answer.prompt_token_ids)
        if self._tail_is_known():
            self._check_tail(request, answer.prompt_token_ids)

    def _ours(self, request: ChatRequest, render: Render) -> list[int]:
        try:
            return render(request.messages, request.tools)
        except InputError as error:
            raise GateError(
                f"the server answered a prompt that the target's own chat template refuses: {error.what}",
                where=place(request),
                hint="serve models/target itself: the server uses another chat template",
            ) from error

    def _check_count(self, request: ChatRequest, answer: Answer, ours: list[int] | None) -> None:
        """A server of texts may at least count its prompt's tokens."""
        counted = answer.usage.prompt_tokens
        if ours is not None and counted is not None and counted != len(ours):
            raise GateError(
                f"the server's prompt has {counted} tokens, the target's chat template makes {len(ours)} of it",
                where=place(request),
                hint=self._causes(request, []) or "serve models/target itself, with its own chat template",
            )

    def _differs(self, request: ChatRequest, ours: list[int], theirs: list[int]) -> GateError:
        position = first_difference(ours, theirs)
        lines = [
            f"the server's prompt is not what the target's chat template makes, from token {position} on",
            f"    expected: {self._around(ours, position)}",
            f"    came:     {self._around(theirs, position)}",
        ]
        return GateError("\n".join(lines), where=place(request), hint=self._hint(request, ours, theirs))

    def _around(self, ids: list[int], position: int) -> str:
        """The token at a position, its text, and what stands around it."""
        if position == len(ids):
            return f"the end, after {len(ids)} tokens: {self._shown(ids[-_BEFORE:])}"
        before, behind = ids[max(0, position - _BEFORE) : position], ids[position + 1 : position + _BEHIND]
        token = f"{ids[position]} {self._shown([ids[position]])}".rstrip()
        return f"{token} of {len(ids)} tokens, after {self._shown(before)}, before {self._shown(behind)}"

    def _shown(self, ids: list[int]) -> str:
        if self.text is None:
            return str(ids) if len(ids) != 1 else ""
        return shown(self.text(ids))

    def _hint(self, request: ChatRequest, ours: list[int], theirs: list[int]) -> str:
        bos = self.profile.bos_token_id
        if bos is not None and theirs == [bos, *ours]:
            return f"the server puts a second beginning-of-text token {bos} before the rendered prompt"
        position = first_difference(ours, theirs)
        cause = self._causes(request, theirs)
        if cause is not None:
            return cause
        if position >= min(len(theirs), len(ours) - len(self._tail())):
            return (
                "the prompts differ only in how they ask for an answer: the server ignores "
                f"generate.chat_template_kwargs {dict(self.params.chat_template_kwargs)}, or has its own "
                "--chat-template or --default-chat-template-kwargs"
            )
        if _is_inserted(ours, theirs):
            return "the server's template adds a default system message: set prompts.system, or serve models/target itself"
        if _is_inserted(theirs, ours):
            return (
                "the target's template adds a default system message, the server's does not: serve models/target itself, "
                "or set prompts.system"
            )
        return "serve models/target itself, or bring in the model that is served: its chat template or tokenizer is another"

    def _causes(self, request: ChatRequest, theirs: list[int]) -> str | None:
        """The part of the request that the server left out, if leaving it out here makes its prompt."""
        if self.render is None or not theirs:
            return None
        bare = [{k: v for k, v in message.items() if k != "reasoning"} for message in request.messages]
        if bare != list(request.messages) and self._renders_to(bare, request.tools, theirs):
            return (
                "the server ignores the reasoning of earlier turns (vllm-project/vllm#33616, #42664): update it, "
                "for vLLM to a version whose requests take `reasoning`"
            )
        if request.tools and self._renders_to(request.messages, None, theirs):
            return (
                "the server ignores `tools`: vLLM needs --enable-auto-tool-choice and --tool-call-parser NAME"
            )
        return None

    def _renders_to(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, ids: list[int]
    ) -> bool:
        assert self.render is not None
        try:
            return self.render(messages, tools) == ids
        except InputError:
            return False

    def _tail(self) -> list[int]:
        return prompt_tail(self.profile, self.params.chat_template_kwargs)

    def _tail_is_known(self) -> bool:
        """Arguments that are no switch of thinking may change the tail in ways that the profile does not hold."""
        think = self.profile.think
        known = set() if think is None else {*think.on_kwargs, *(think.off_kwargs or {})}
        return set(self.params.chat_template_kwargs) <= known

    def _check_tail(self, request: ChatRequest, theirs: list[int]) -> None:
        expected = self._tail()
        tail = theirs[-len(expected) :] if expected else []
        if tail == expected:
            return
        think = self.profile.think
        mode = ""
        if think is not None:
            mode = (
                f" with thinking {'on' if thinking_asked(think, self.params.chat_template_kwargs) else 'off'}"
            )
        raise GateError(
            f"the server's prompt ends with {tail} {self._quoted(tail)}, by the target's profile{mode} it ends with "
            f"{expected} {self._quoted(expected)}",
            where=place(request),
            hint="serve models/target itself, or bring in the model that is served, with the same chat template; "
            "if it is the same, run `dvc repro -f target`",
        )

    def _quoted(self, ids: list[int]) -> str:
        return "" if self.text is None else shown(self.text(ids))


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """Index of the first token that differs; the shorter length if one continues the other."""
    for position, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            return position
    return min(len(ours), len(theirs))


def _is_inserted(shorter: Sequence[int], longer: Sequence[int]) -> bool:
    """Whether tokens near the front are all that one prompt has more than the other."""
    position = first_difference(shorter, longer)
    rest = list(shorter[position:])
    return (
        position <= _OPENING_TOKENS
        and 0 < len(rest) < len(longer) - position
        and list(longer[-len(rest) :]) == rest
    )
