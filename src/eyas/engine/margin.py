"""Why two answers part: how much more likely one of the two tokens is to the target at that place.

An engine computes in batches of changing shape, and the last bits of its logits change with them. Where two tokens are
nearly as likely as each other, that decides; a drafter must decide nowhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

import httpx2
from openai import OpenAIError

from eyas.engine.client import Endpoint, connect
from eyas.engine.compare import Difference
from eyas.engine.dialect import DIALECTS
from eyas.engine.questions import Question

logger = logging.getLogger(__name__)

NEAR_TIE = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.3}
"""Largest margin, in nats, that rounding explains: a few units in the last place of logits between 16 and 32."""
MOST = 16
"""Differences of one run that are looked into: their requests come on top of the measured ones."""

Margins = dict[Difference, float]


def near_tie(margin: float | None, dtype: str) -> bool | None:
    """Whether rounding explains a difference; None if its margin or the dtype is not known."""
    limit = NEAR_TIE.get(dtype)
    return None if margin is None or limit is None else abs(margin) <= limit


def margins_of(
    endpoint: Endpoint, questions: Mapping[str, Question], differences: Sequence[Difference]
) -> Margins:
    """Log-probability of the expected token minus that of the found one behind what both answers begin with.

    The server computes them in one pass over prompt and answer. Differences where it gives none are left out: the token
    is not among the most likely ones, one answer has ended, or the server has no log-probabilities.
    """
    asked = [each for each in differences if each.expected is not None and each.found is not None][:MOST]
    return asyncio.run(_margins(endpoint, questions, asked)) if asked else {}


async def _margins(
    endpoint: Endpoint, questions: Mapping[str, Question], differences: Sequence[Difference]
) -> Margins:
    found: Margins = {}
    async with connect(endpoint, concurrency=1) as client:
        for each in differences:
            ids = [*questions[each.sequence_id].prompt_ids, *each.common]
            try:
                logprobs = await DIALECTS[endpoint.dialect].top_logprobs(client, endpoint.model, ids)
                found[each] = logprobs[each.expected] - logprobs[each.found]  # type: ignore[index]
            except (OpenAIError, httpx2.HTTPError, LookupError, TypeError, ValueError) as error:
                logger.debug("no margin for %s: %s", each.sequence_id, error)
    return found
