"""One answer as a client saw it come in, and what the engine says about its drafts."""

from __future__ import annotations

from dataclasses import dataclass

from eyas.acceptance import AcceptanceCounts


@dataclass(frozen=True)
class Answer:
    """Tokens, times and drafts of one request."""

    token_ids: list[int]
    first_token_s: float
    """From the request to the first token."""
    last_token_s: float
    """From the request to the last token."""
    accepted_by_round: list[int] | None = None
    """Accepted tokens of each draft in order, where the engine tells; also those that it accepted behind the answer's
    end, since engines count before they cut an answer."""
    accepted_histogram: list[int] | None = None
    """How many drafts had 0, 1, 2, ... accepted tokens, counted in the same way, where the engine tells."""
    drafts: int | None = None
    """Drafts (draft rounds), where the engine tells."""

    @property
    def token_s(self) -> float | None:
        """Seconds per token after the first one; None for a single token."""
        following = len(self.token_ids) - 1
        return (self.last_token_s - self.first_token_s) / following if following > 0 else None


def counted(answer: Answer, draft_tokens: int) -> AcceptanceCounts | None:
    """What the engine counts for this answer, drafted tokens behind its end included; None if it does not tell."""
    if answer.accepted_by_round is not None:
        return _counts(answer.accepted_by_round, draft_tokens)
    if answer.accepted_histogram is not None:
        histogram = answer.accepted_histogram
        return AcceptanceCounts(
            drafts=sum(histogram),
            accepted_at=[sum(histogram[position:]) for position in range(1, draft_tokens + 1)],
        )
    return None


def within(answer: Answer, draft_tokens: int) -> AcceptanceCounts | None:
    """The same without what was accepted behind the answer's end, as a simulation counts.

    The first token comes from the prompt; every draft then adds what was accepted and one more token. What this gives
    beyond the answer's length was cut off its last draft, the only one that can reach over the end.
    """
    rounds = answer.accepted_by_round
    if not rounds:
        return None if rounds is None else _counts([], draft_tokens)
    beyond = 1 + sum(accepted + 1 for accepted in rounds) - len(answer.token_ids)
    last = rounds[-1] + 1 - max(beyond, 0)  # tokens of the last draft that are in the answer
    return _counts([*rounds[:-1], min(rounds[-1], last)], draft_tokens)


def _counts(rounds: list[int], draft_tokens: int) -> AcceptanceCounts:
    return AcceptanceCounts(
        drafts=len(rounds),
        accepted_at=[
            sum(accepted >= position for accepted in rounds) for position in range(1, draft_tokens + 1)
        ],
    )
