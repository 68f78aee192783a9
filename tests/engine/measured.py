"""Measurements for tests of the reports."""

from __future__ import annotations

from collections.abc import Mapping

from eyas.acceptance import AcceptanceCounts
from eyas.engine.answer import Answer
from eyas.engine.asking import GREEDY, Asking
from eyas.engine.margin import Margins
from eyas.engine.measure import Measurement
from eyas.engine.questions import levels
from eyas.engine.runs import Runs
from eyas.engine.timing import Timing

from .examples import QUESTIONS

LEVELS = levels(QUESTIONS, [1, 8], prompts_at_1=1)
STORED = {each.sequence_id: each.answer_ids for each in QUESTIONS}
ACCEPTED = {"a": AcceptanceCounts(1000, [500, 200]), "b": AcceptanceCounts(400, [100, 20])}
SAMPLED = Asking(temperature=0.7, top_p=1.0, top_k=0, max_tokens=9, seed=0)


def measurement(
    acceptance: dict[str, AcceptanceCounts] | None, seconds: float = 1.0, **changed: list[int]
) -> Measurement:
    """The stored answers, but for those that are changed (`a_0` is `a:0`), at concurrency 8; one of them at 1."""
    changes = {name.replace("_", ":"): ids for name, ids in changed.items()}
    return Measurement(
        version="0.32.0",
        answers={8: _answers(STORED | changes), 1: _answers({"a:0": STORED["a:0"]})},
        timings={
            8: {"a": Timing(2, 8, seconds, [0.1, 0.3], [0.2]), "b": Timing(2, 5, seconds)},
            1: {"a": Timing(1, 3, 1.0)},
        },
        acceptance=acceptance,
    )


def runs(
    without: Measurement | None,
    with_drafter: Measurement | None,
    *,
    asking: Asking = GREEDY,
    external: bool = False,
    margins: Margins | None = None,
    **more: Measurement,
) -> Runs:
    """One round; `k3=...` is a further server that drafts three tokens."""
    sides: dict[int | None, Measurement] = {} if without is None else {None: without}
    if with_drafter is not None:
        sides[2] = with_drafter
    sides |= {int(name.removeprefix("k")): each for name, each in more.items()}
    draft_tokens = None if with_drafter is None else 2
    return Runs(asking, [sides], draft_tokens, external, margins=margins or {})


def _answers(token_ids: Mapping[str, list[int]]) -> dict[str, Answer]:
    return {key: Answer(list(ids), 0.1, 0.2) for key, ids in token_ids.items()}
