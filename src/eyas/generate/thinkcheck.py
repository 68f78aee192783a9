"""Whether thinking arrives where it belongs: expected, parsed by the server, neither misfiled nor sent twice."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from eyas.answers import DUPLICATED_THINKING, MISFILED_REASONING, SERVER_PARSER_MISSING
from eyas.errors import GateError
from eyas.generate.chance import beyond_chance
from eyas.generate.excerpt import excerpt, place
from eyas.generate.params import FIRST_BATCH, GenerateParams
from eyas.generate.record import Answer
from eyas.generate.request import ChatRequest
from eyas.target.spec import TargetProfile
from eyas.target.think import thinking_asked

logger = logging.getLogger(__name__)

WRONG_SHARE = 0.1
"""Misfiled or doubled thinking in more answers than this, beyond chance, is the server's doing, not the model's."""
_SERVERS = {"vllm": "vllm", "sglang": "sglang", "openai": "vllm"}
_SOME_PARSERS = "qwen3, kimi_k2, deepseek_r1, glm45, ..."

Answered = tuple[ChatRequest, Answer]


@dataclass(frozen=True)
class ThinkCheck:
    """Judges a batch of answers."""

    params: GenerateParams
    profile: TargetProfile

    def check(self, answers: Sequence[Answered], *, answered_before: bool) -> None:
        """`answered_before`: answers of an earlier run passed, so that these may be no more than what is always so.

        Raises:
            GateError: the server has no reasoning parser or a wrong one, or expected thinking is missing.
        """
        self._check_parser(answers)
        lenient = answered_before and _proven(answers)
        if not lenient:
            self._check_misfiled(answers)
            self._check_doubled(answers)
        thinking = [pair for pair in answers if _thinks(pair[1])]
        if self.params.expect_reasoning:
            self._check_share(answers, thinking, lenient=lenient)
        elif thinking:
            logger.warning(
                "%d of the first %d answers carry thinking although generate.expect_reasoning is false; it is kept",
                len(thinking), len(answers),
            )  # fmt: skip

    def _check_parser(self, answers: Sequence[Answered]) -> None:
        unparsed = [pair for pair in answers if SERVER_PARSER_MISSING in pair[1].flags]
        if not unparsed:
            return
        seen = f"{len(unparsed)} of {len(answers)} answers hold their thinking in `content`"
        if self.params.accept_unparsed_reasoning:
            logger.warning("%s: the server has no reasoning parser; it is divided off here", seen)
            return
        request, answer = unparsed[0]
        raise GateError(
            f"the server has no reasoning parser: {seen}\n"
            "    expected: thinking in `reasoning` or `reasoning_content`, the answer in `content`\n"
            f"    came:\n{excerpt(answer)}",
            where=place(request),
            hint=f"start the server with {self._flag()}, or set generate.accept_unparsed_reasoning: true to divide "
            "texts here (token ids are exact either way)",
        )

    def _check_misfiled(self, answers: Sequence[Answered]) -> None:
        _refuse_flag(
            answers,
            MISFILED_REASONING,
            "the server calls reasoning what the target did not think: {} of {} answers stand in the reasoning field",
            "an answer that follows no thinking in `content`",
            "start the server without --reasoning-parser, or with the parser of this target"
            f"{self._named(': ')}; or switch thinking on in generate.chat_template_kwargs{self._switch()}",
        )

    def _check_doubled(self, answers: Sequence[Answered]) -> None:
        _refuse_flag(
            answers,
            DUPLICATED_THINKING,
            "the server sends thinking twice: in {} of {} answers `content` repeats the reasoning",
            "the answer in `content`, null if thinking was cut",
            f"start the server with the parser of this target{self._named(': ')}, or update it",
        )

    def _check_share(
        self, answers: Sequence[Answered], thinking: Sequence[Answered], *, lenient: bool
    ) -> None:
        missing = len(answers) - len(thinking)
        share = self.params.gate_min_reasoning_share
        if thinking and not beyond_chance(missing, len(answers), 1 - share):
            return
        lacking = [pair for pair in answers if not _thinks(pair[1])]
        lost = [pair for pair in lacking if pair[1].reasoning is None and self._was_generated(pair[1])]
        if lenient and not lost:
            logger.warning(
                "%d of the first %d answers carry no thinking; others did in an earlier run, so they are kept",
                missing, len(answers),
            )  # fmt: skip
            return
        request, answer = (lost or lacking)[0]
        least = "generate.expect_reasoning is true" + (
            "" if not thinking else f" and at least {share:g} must"
        )
        raise GateError(
            f"{len(thinking)} of {len(answers)} answers carry reasoning, but {least}\n"
            f"    expected: text in `reasoning` or `reasoning_content`\n    came:\n{excerpt(answer)}",
            where=place(request),
            hint=self._missing_hint(lost),
        )

    def _missing_hint(self, lost: Sequence[Answered]) -> str:
        think = self.profile.think
        if lost:
            return f"the target did think, its token ids show it: start the server with {self._flag()}"
        if think is not None and not thinking_asked(think, self.params.chat_template_kwargs):
            return (
                "generate.chat_template_kwargs does not ask for thinking: set it"
                f"{self._switch() or ' as the template needs it'}, or set generate.expect_reasoning: false"
            )
        return (
            f"start the server with {self._flag()}, or switch thinking on in generate.chat_template_kwargs"
            f"{self._switch()}; if these prompts need no thinking, set generate.expect_reasoning: false: nothing that "
            "was answered is asked again"
        )

    def _was_generated(self, answer: Answer) -> bool:
        """Whether the ids hold a think marker with something between it and the other."""
        think = self.profile.think
        if think is None or answer.token_ids is None:
            return False
        ends = _position(answer.token_ids, think.end_ids)
        starts = _position(answer.token_ids, think.start_ids)
        if starts is not None:
            inside = (len(answer.token_ids) if ends is None else ends) - starts - len(think.start_ids)
            return inside > 1
        return ends is not None and ends > 1

    def _flag(self) -> str:
        named = self._named("")
        return f"`--reasoning-parser {named}`" if named else f"--reasoning-parser NAME ({_SOME_PARSERS})"

    def _named(self, before: str) -> str:
        """The parser of the target's family for this kind of server, if known."""
        think = self.profile.think
        name = None if think is None else think.parsers.get(_SERVERS.get(self.params.dialect, ""))
        return f"{before}{name}" if name else ""

    def _switch(self) -> str:
        think = self.profile.think
        return f" ({dict(think.on_kwargs)})" if think is not None and think.on_kwargs else ""


def _refuse_flag(answers: Sequence[Answered], flag: str, what: str, expected: str, hint: str) -> None:
    flagged = [pair for pair in answers if flag in pair[1].flags]
    if not beyond_chance(len(flagged), len(answers), WRONG_SHARE):
        return
    request, answer = flagged[0]
    raise GateError(
        f"{what.format(len(flagged), len(answers))} ({flag})\n    expected: {expected}\n    came:\n{excerpt(answer)}",
        where=place(request),
        hint=hint,
    )


def _thinks(answer: Answer) -> bool:
    return answer.reasoning is not None and MISFILED_REASONING not in answer.flags


def _proven(answers: Sequence[Answered]) -> bool:
    """Ids show that nothing was lost on the way; texts alone say little before there are enough of them."""
    return all(answer.token_ids is not None for _, answer in answers) or len(answers) < FIRST_BATCH


def _position(ids: Sequence[int], marker: Sequence[int]) -> int | None:
    size = len(marker)
    if size == 0:
        return None
    return next(
        (start for start in range(len(ids) - size + 1) if list(ids[start : start + size]) == list(marker)),
        None,
    )
