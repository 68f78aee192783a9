"""What is known of every turn of a dataset, in 33 bytes a turn: its request key, and whether it can be asked at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from eyas.generate.entry import settled
from eyas.generate.history import History
from eyas.generate.record import Answer
from eyas.generate.request import ChatRequest
from eyas.generate.table import Prompt, PromptTable
from eyas.journal import Journal
from eyas.turns import Message

Build = Callable[[Prompt, int, Sequence[Message]], ChatRequest]
"""Makes the request of a prompt's turn from the messages that it is asked with."""

_KEY_BYTES = 32


@dataclass(frozen=True)
class Missing:
    """A turn without an answer."""

    row: int
    """Its prompt's place in the table."""
    key: str | None
    """Null where the turn before has no answer either."""


class Ledger:
    """The turns of a dataset, and the journal's answers to them.

    The key of a first turn is known from the start, that of a later one once the answer before it is: it is the hash
    of the history too. Each is computed once for all that is done with the table.
    """

    def __init__(
        self, table: PromptTable, journal: Journal, build: Build, *, ask_refused: bool = False
    ) -> None:
        """`ask_refused`: requests that a server refused for good are to be made again."""
        self._journal = journal
        self._ask_refused = ask_refused
        self._build = build
        self._starts = np.zeros(table.rows + 1, dtype=np.int64)
        self._keys = np.zeros((table.turns, _KEY_BYTES), dtype=np.uint8)
        self._known = np.zeros(table.turns, dtype=np.bool_)
        self._lost = np.zeros(table.turns, dtype=np.bool_)
        self._held: dict[str, Answer] = {}

    def open(self, prompt: Prompt, turns: int) -> None:
        """Give a prompt its places. Prompts are opened in the order of the table."""
        self._starts[prompt.row + 1] = self._starts[prompt.row] + turns

    def request(self, prompt: Prompt, history: History) -> ChatRequest:
        """The request of the turn that the history has come to."""
        request = self._build(prompt, history.turn, history.messages())
        self._note(prompt, history.turn, request.key)
        return request

    def key(self, prompt: Prompt, history: History) -> str:
        """The key of that request."""
        place = self._starts[prompt.row] + history.turn
        return self._key_at(int(place)) or self.request(prompt, history).key

    def hold(self, key: str, answer: Answer) -> None:
        """Know an answer that the journal does not count yet: those of the first batch, until they are judged."""
        if key not in self._journal:
            self._held[key] = answer

    def answered(self, key: str) -> bool:
        """Whether a request need not be made any more."""
        return key in self._held or key in self._journal

    def refused(self, key: str) -> bool:
        """Whether a server refused a request for good, so that it is not made again."""
        return not self._ask_refused and settled(self._journal.error(key))

    def answer(self, key: str) -> Answer | None:
        """The answer to a request; None if it is still to be made."""
        if key in self._held:
            return self._held[key]
        entry = self._journal.get(key)
        return None if entry is None else Answer.from_json(entry["answer"])

    def lose(self, prompt: Prompt, history: History) -> None:
        """Note that the turns from the one that the history has come to will never be asked."""
        start = self._starts[prompt.row]
        self._lost[start + history.turn : start + history.turns] = True

    def missing(self) -> Iterator[Missing]:
        """The turns that have no answer, without those that will never be asked; in the order of the table."""
        for place in map(int, np.flatnonzero(~self._lost)):
            key = self._key_at(place)
            if key is None or key not in self._journal:
                yield Missing(int(np.searchsorted(self._starts, place, side="right")) - 1, key)

    def _key_at(self, place: int) -> str | None:
        return bytes(self._keys[place]).hex() if self._known[place] else None

    def _note(self, prompt: Prompt, turn: int, key: str) -> None:
        place = self._starts[prompt.row] + turn
        self._keys[place] = np.frombuffer(bytes.fromhex(key), dtype=np.uint8)
        self._known[place] = True
