"""The first answers, judged before the run goes on: wrong data stops in minutes, not hours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from eyas.errors import GateError
from eyas.generate.failure import RowFailure
from eyas.generate.params import GenerateParams
from eyas.generate.record import Answer
from eyas.generate.request import ChatRequest
from eyas.target.spec import TargetProfile

BATCH = 8


@dataclass(frozen=True)
class Outcome:
    """What became of one request: an answer or a failure."""

    request: ChatRequest
    answer: Answer | None
    failure: RowFailure | None
    seconds: float | None = None
    attempts: int | None = None


def spread(requests: Sequence[ChatRequest], count: int = BATCH) -> list[ChatRequest]:
    """So many requests from the shortest to the longest, evenly over the ranks; all if there are no more."""
    ranked = sorted(requests, key=lambda request: (request.length, request.sample_id))
    if len(ranked) <= count:
        return ranked
    return [ranked[round(index * (len(ranked) - 1) / (count - 1))] for index in range(count)]


def judge(
    outcomes: Sequence[Outcome],
    params: GenerateParams,
    profile: TargetProfile,
    answered_before: bool = False,
) -> None:
    """Judge the first answers as a whole; single bad rows pass and are counted later.

    `answered_before`: an earlier run got answers, so what is pending may be no more than what always fails.

    Raises:
        GateError: they show that the run would collect wrong data; says what was expected and what came.
    """
    _refuse_missing_ids(outcomes)
    answers = [(outcome.request, outcome.answer) for outcome in outcomes if outcome.answer is not None]
    if not answers and answered_before:
        return
    if not answers:
        reasons = Counter(str(outcome.failure) for outcome in outcomes)
        raise GateError(
            f"none of the first {len(outcomes)} prompts was answered; {_most_common(reasons)}",
            where=outcomes[0].request.sample_id,
            hint="look at the server's log; the answers that arrive after a correction are all new",
        )
    for request, answer in answers:
        _check_model(request, answer, profile)
        _check_prompt(request, answer, params, profile)
    if params.expect_reasoning and not any(answer.reasoning for _, answer in answers):
        raise GateError(
            f"none of the first {len(answers)} answers carries reasoning, but generate.expect_reasoning is true",
            where=answers[0][0].sample_id,
            hint="start the server with --reasoning-parser NAME (for example qwen3, kimi_k2, deepseek_r1), "
            "or switch thinking on in generate.chat_template_kwargs",
        )


def _refuse_missing_ids(outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        if outcome.failure is not None and outcome.failure.reason == "no_token_ids":
            raise GateError(
                f"the server sends no token ids: {outcome.failure.detail}",
                where=outcome.request.sample_id,
                hint="use vLLM 0.10.2 or later, without a proxy that drops unknown fields",
            )


def _check_model(request: ChatRequest, answer: Answer, profile: TargetProfile) -> None:
    if answer.model != profile.name:
        raise GateError(
            f"asked {profile.name}, but {answer.model} answered",
            where=request.sample_id,
            hint=f"serve the target as {profile.name} (--served-model-name)",
        )


def _check_prompt(
    request: ChatRequest, answer: Answer, params: GenerateParams, profile: TargetProfile
) -> None:
    """Without template arguments the prompt must end with the ids that our copy of the template appends."""
    expected = profile.generation_prompt_ids
    tail = answer.prompt_token_ids[-len(expected) :] if expected else []
    if not params.chat_template_kwargs and tail != expected:
        raise GateError(
            f"the server's prompt ends with {tail}, the target's chat template with {expected}",
            where=request.sample_id,
            hint="serve models/target itself, or bring in the model that is served, with the same chat template",
        )


def _most_common(reasons: Counter[str]) -> str:
    reason, count = reasons.most_common(1)[0]
    return f"{count} times: {reason}"
