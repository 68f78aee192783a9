"""The conversations of a dataset that still have something to ask."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from eyas.generate.conversation import Conversation, InFlight, Talk
from eyas.generate.ledger import Ledger
from eyas.generate.table import PromptTable


class Pending:
    """Made by one pass over the table; holds 5 bytes a row, and reads the prompts again when they are asked.

    Iterating gives the conversations in the order of the table, without those that `first` gave.
    """

    def __init__(self, table: PromptTable, ledger: Ledger) -> None:
        self._table = table
        self._ledger = ledger
        self._in_flight = InFlight()
        self._rows = np.zeros(table.rows, dtype=np.bool_)
        self._lengths = np.zeros(table.rows, dtype=np.int32)
        self.turns = 0
        """Turns without an answer that can still be asked."""
        self.answered = 0
        """Turns with an answer. The others were refused for good, or stand behind a turn that ended a conversation."""
        for prompt in table:
            talk = Talk(prompt, ledger)
            ledger.open(prompt, talk.history.turns)
            due = talk.due()
            self.answered += talk.history.turn
            if due is not None:
                self._rows[prompt.row] = True
                self.turns += talk.history.turns - talk.history.turn
            elif not talk.history.over:
                self.answered += ledger.answered(
                    ledger.key(prompt, talk.history)
                )  # or its last turn was refused
            self._lengths[prompt.row] = sum(len(message.get("content", "")) for message in prompt.messages)

    def first(self, count: int) -> list[Conversation]:
        """So many conversations from the shortest to the longest, evenly over the ranks; all if there are no more."""
        rows = np.flatnonzero(self._rows)
        ranked = rows[np.argsort(self._lengths[rows], kind="stable")]
        if len(ranked) > count:
            ranked = ranked[np.round(np.linspace(0, len(ranked) - 1, count)).astype(np.int64)]
        chosen = np.zeros_like(self._rows)
        chosen[ranked] = True
        prompts = {prompt.row: prompt for prompt in self._table.only(chosen)}
        self._rows[ranked] = False
        return [Conversation(prompts[row], self._ledger, self._in_flight) for row in ranked.tolist()]

    def __iter__(self) -> Iterator[Conversation]:
        for prompt in self._table.only(self._rows):
            self._rows[prompt.row] = False
            yield Conversation(prompt, self._ledger, self._in_flight)
