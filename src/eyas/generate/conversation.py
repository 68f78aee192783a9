"""Asking a conversation turn by turn, out of the journal where it can, and no request twice at a time.

Conversations that begin alike ask the same first question, with the same request key. The one that comes first asks;
the others wait for its answer and go on from there, one behind the other.
"""

from __future__ import annotations

from collections import deque

from eyas.generate.history import History
from eyas.generate.ledger import Ledger
from eyas.generate.record import Answer
from eyas.generate.request import ChatRequest
from eyas.generate.table import Prompt


class Talk:
    """One prompt: its history so far, filled from the journal."""

    def __init__(self, prompt: Prompt, ledger: Ledger) -> None:
        self.prompt = prompt
        self.history = History(prompt.messages)
        self._ledger = ledger

    def due(self) -> str | None:
        """Key of the first turn that the journal has no answer to; None if there is nothing to ask any more."""
        while not self.history.over:
            key = self._ledger.key(self.prompt, self.history)
            if not self._ledger.answered(key):
                return None if self._ledger.refused(key) else key
            if self.history.turn == self.history.turns - 1:
                return None
            answer = self._ledger.answer(key)
            assert answer is not None
            self.add(answer)
        return None

    def request(self) -> ChatRequest:
        """The request of that turn."""
        return self._ledger.request(self.prompt, self.history)

    def add(self, answer: Answer) -> None:
        """Take the answer to that turn."""
        self.history.add(answer)
        if self.history.ending is not None:
            self._ledger.lose(self.prompt, self.history)


class InFlight:
    """The requests of a run that are being asked, with the talks that wait for the same answer."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Talk]] = {}
        self._failed: set[str] = set()

    def take(self, key: str, talk: Talk) -> bool:
        """Whether this talk is to ask now. If not, it waits for who does, or is over: the request failed before."""
        if key in self._failed:
            return False
        if key in self._waiting:
            self._waiting[key].append(talk)
            return False
        self._waiting[key] = []
        return True

    def answered(self, key: str) -> list[Talk]:
        """Those who waited for the answer, which they find in the ledger now."""
        return self._waiting.pop(key)

    def failed(self, key: str) -> None:
        """The request is not made again in this run; those who wait end."""
        self._waiting.pop(key)
        self._failed.add(key)


class Conversation:
    """What a worker asks, one request after another: a prompt's turns, then those of prompts that waited for one."""

    def __init__(self, prompt: Prompt, ledger: Ledger, in_flight: InFlight) -> None:
        self.sample_id = prompt.sample_id
        self._ledger = ledger
        self._talks = deque([Talk(prompt, ledger)])
        self._in_flight = in_flight
        self._request: ChatRequest | None = None

    def next(self) -> ChatRequest | None:
        """The request to make now, the same until `add` or `end` is called; None if nothing is left.

        Turns that the journal answers are history. The request names the prompt that it belongs to.
        """
        while self._request is None and self._talks:
            talk = self._talks[0]
            key = talk.due()
            if key is not None and self._in_flight.take(key, talk):
                self._request = talk.request()
            else:
                self._talks.popleft()
        return self._request

    def add(self, answer: Answer) -> None:
        """Go on with the answer to the last request: it is history now, whatever the journal counts it as."""
        request = self._finish()
        self._ledger.hold(request.key, answer)
        self._talks[0].add(answer)
        self._talks += self._in_flight.answered(request.key)

    def end(self) -> None:
        """The last request failed: its prompt's later turns can't be asked. `next` may still have other prompts."""
        request = self._finish()
        self._talks.popleft()
        self._in_flight.failed(request.key)

    def _finish(self) -> ChatRequest:
        assert self._request is not None, "no request was made"
        request, self._request = self._request, None
        return request
