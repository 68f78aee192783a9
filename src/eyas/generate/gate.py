"""The first answers, judged before the run goes on: wrong data stops in minutes, not hours.

Twice: at the first batch, and again at `generate.gate_rows` answers. What must hold for each reply stops at the first
one; what single replies of a good run may lack stops only if too many do, beyond chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from eyas.errors import GateError
from eyas.generate.chance import beyond_chance
from eyas.generate.excerpt import excerpt, place
from eyas.generate.failure import Kind, RowFailure
from eyas.generate.history import ENDINGS
from eyas.generate.params import GenerateParams
from eyas.generate.promptcheck import PromptCheck, Render, Text
from eyas.generate.record import Answer
from eyas.generate.request import ChatRequest
from eyas.generate.thinkcheck import WRONG_SHARE, Answered, ThinkCheck
from eyas.target.spec import TargetProfile

_NO_IDS = {
    "vllm": "use vLLM 0.10.2 or later, without a proxy that drops unknown fields; for servers that send text only set "
    "generate.dialect: openai",
    "sglang": "use a version of SGLang whose chat endpoint knows return_token_ids, or set generate.dialect: "
    "sglang-generate",
}
_HINTS = {
    "http_400": "the server does not understand the request: check generate.dialect and the server's version",
    "http_403": "set OPENAI_API_KEY, or ask the server's owner what this key may do",
    "http_422": "the server does not know a key of the request: check generate.dialect (openai sends the fewest keys)",
    "context_length": "start the server with a larger --max-model-len, or lower generate.max_tokens",
    "token_count": "the server's token ids and its usage contradict each other: update it, or remove the proxy between",
    "reasoning_conflict": "the server sends two different reasonings: update it, or remove the proxy between",
}


@dataclass(frozen=True)
class Outcome:
    """What became of one request: an answer or a failure."""

    request: ChatRequest
    answer: Answer | None
    failure: RowFailure | None
    seconds: float | None = None
    attempts: int | None = None
    url: str | None = None
    """The server that said so."""
    outages: int = 0
    """How often that server had gone down before, in this run: it may have come back as another one."""


class Gate:
    """Judges a run's first outcomes."""

    def __init__(
        self,
        params: GenerateParams,
        profile: TargetProfile,
        render: Render | None = None,
        text: Text | None = None,
    ) -> None:
        """`render` and `text`: the local rendering (see `Rendering`); without it prompts are checked by their end."""
        self._params = params
        self._profile = profile
        self._prompts = PromptCheck(params, profile, render, text)
        self._thinking = ThinkCheck(params, profile)

    def first(self, outcomes: Sequence[Outcome], answered_before: bool = False) -> None:
        """Judge the first batch.

        `answered_before`: an earlier run of the same requests got answers, so that what is left may be no more than
        what always fails, is cut, or goes without thinking: only what is wrong with the server stops then.

        Raises:
            GateError: the answers show that the run would collect wrong data.
        """
        self._check_ids(outcomes)
        if not answered_before:
            self._check_failures(outcomes)
        self._judge(_answered(outcomes), answered_before=answered_before)

    def early(self, outcomes: Sequence[Outcome]) -> None:
        """Judge again what the run got until now, the first batch included.

        Raises:
            GateError: as above.
        """
        self._check_ids(outcomes)
        self._judge(_answered(outcomes), answered_before=False)

    def later(self, outcome: Outcome) -> None:
        """Judge an answer behind the last verdict: a gateway may put another model behind a name at any time.

        Raises:
            GateError: another model answered.
        """
        for request, answer in _answered([outcome]):
            self._check_model(request, answer)

    def _judge(self, answers: Sequence[Answered], *, answered_before: bool) -> None:
        if not answers:
            return
        for request, answer in answers:
            self._check_model(request, answer)
            self._prompts.check(request, answer)
        self._thinking.check(answers, answered_before=answered_before)
        self._check_ends(answers)
        if not answered_before:
            self._check_truncation(answers)

    def _check_ids(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.failure is not None and outcome.failure.reason == "no_token_ids":
                raise GateError(
                    f"the server sends no token ids: {outcome.failure.detail}",
                    where=place(outcome.request),
                    hint=_NO_IDS.get(self._params.dialect, "check generate.dialect"),
                )

    def _check_failures(self, outcomes: Sequence[Outcome]) -> None:
        """Replies that can't be used, or are refused, at so high a rate are no matter of single prompts."""
        failed = [
            (outcome.request, outcome.failure)
            for outcome in outcomes
            if outcome.failure is not None and outcome.failure.reason not in ENDINGS
        ]
        if failed and all(outcome.answer is None for outcome in outcomes):
            raise self._failed(failed, len(outcomes), "none of the first {1} prompts was answered")
        lasting = [pair for pair in failed if pair[1].kind is not Kind.TRANSIENT]
        share = max(WRONG_SHARE, self._params.max_failed_share)
        if beyond_chance(len(lasting), len(outcomes), share):
            raise self._failed(
                lasting, len(outcomes), "{0} of the first {1} prompts got no answer that can be used"
            )

    def _failed(self, failed: Sequence[tuple[ChatRequest, RowFailure]], total: int, what: str) -> GateError:
        reason, count = Counter(failure.reason for _, failure in failed).most_common(1)[0]
        request, failure = next(pair for pair in failed if pair[1].reason == reason)
        return GateError(
            f"{what.format(len(failed), total)}; {count} times {failure}",
            where=place(request),
            hint=_HINTS.get(reason, "look at the server's log and run again: what failed is asked again"),
        )

    def _check_model(self, request: ChatRequest, answer: Answer) -> None:
        name, model = self._profile.name, answer.model
        if model is None or model == name:
            return
        if self._params.dialect == "openai" and model.startswith(tuple(f"{name}{mark}" for mark in "@-:")):
            return  # with its revision or date: transformers serve says think@main
        raise GateError(
            f"asked {name}, but {model} answered",
            where=place(request),
            hint=f"serve the target as {name} (--served-model-name)",
        )

    def _check_ends(self, answers: Sequence[Answered]) -> None:
        """An answer that ended by itself ends with an end-of-turn id, or the drafter never learns to end."""
        ends = self._profile.end_of_turn_ids
        ended = [pair for pair in answers if pair[1].token_ids and _ended_by_id(pair[1])]
        wrong = [pair for pair in ended if not _ends_with(pair[1], ends)]
        if not beyond_chance(len(wrong), len(ended), WRONG_SHARE):
            return
        request, answer = wrong[0]
        raise GateError(
            f"{len(wrong)} of {len(ended)} finished answers do not end with an end-of-turn id\n"
            f"    expected: one of {ends} as the last id\n"
            f"    came: ... {(answer.token_ids or [])[-4:]}\n{excerpt(answer)}",
            where=place(request),
            hint="serve models/target itself with its generation_config.json; if it is the same, the server cuts the "
            "last id off or end_of_turn_ids in models/profile.json lack one",
        )

    def _check_truncation(self, answers: Sequence[Answered]) -> None:
        cut = [pair for pair in answers if pair[1].finish_reason == "length"]
        limit = self._params.gate_max_truncated_share
        if not beyond_chance(len(cut), len(answers), limit):
            return
        request, answer = cut[0]
        raise GateError(
            f"{len(cut)} of {len(answers)} answers were cut by generate.max_tokens {self._params.max_tokens}\n"
            f"    expected: a share of at most generate.gate_max_truncated_share {limit:g}\n"
            f"    came:\n{excerpt(answer)}",
            where=place(request),
            hint="raise generate.max_tokens (all prompts are then asked anew), or gate_max_truncated_share",
        )


def _answered(outcomes: Sequence[Outcome]) -> list[Answered]:
    return [(outcome.request, outcome.answer) for outcome in outcomes if outcome.answer is not None]


def _ended_by_id(answer: Answer) -> bool:
    return answer.finish_reason == "stop" and not isinstance(answer.stop_reason, str)


def _ends_with(answer: Answer, ids: Sequence[int]) -> bool:
    generated = answer.token_ids
    return generated is not None and len(generated) > 0 and generated[-1] in ids
