"""Puts outcomes into the journal and counts them; answers count once the gate has judged them.

Until the last verdict (that on the first batch, or the second at `generate.gate_rows` answers) every answer is in the
journal as *unjudged*: a kill loses none, the next run judges what it finds, and a failed gate takes all of them back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from eyas.errors import GateError
from eyas.generate.entry import entry, held, judged, rejected, unjudged
from eyas.generate.excerpt import place
from eyas.generate.gate import Gate, Outcome
from eyas.generate.params import GenerateParams
from eyas.generate.progress import Counts
from eyas.generate.request import ChatRequest
from eyas.journal import Journal
from eyas.serving.endpoint import ModelInfo


class Recorder:
    """What one run does with its outcomes."""

    def __init__(
        self,
        journal: Journal,
        gate: Gate,
        params: GenerateParams,
        models: Mapping[str, ModelInfo],
        counts: Counts,
        left: int,
    ) -> None:
        """`models`: what each endpoint serves, by URL. `left`: turns that this run has to ask."""
        self._journal = journal
        self._gate = gate
        self._params = params
        self._models = models
        self._counts = counts
        self._answered_before = len(journal) > 0
        # what little a resumed run has left may be what fails or is cut: no sample of the data
        self._second_gate = left >= params.gate_rows > len(journal)
        self._first_judged = False
        self._holds = True
        self._waiting: list[Outcome] = []
        self._bad_verdict: GateError | None = None
        self._held: set[str] = set()
        self._judged_servers: set[tuple[str | None, int]] = set()

    def held(self, request: ChatRequest) -> Outcome | None:
        """The answer that an earlier run got and did not come to judge. It needs no POST.

        It is judged alone first: the server of that run may have been a wrong one.
        """
        outcome = held(request, self._journal.error(request.key))
        if outcome is None or not self._accepts(outcome):
            return None
        self._held.add(request.key)
        return outcome

    def record(self, outcome: Outcome) -> None:
        """Keep an outcome; once this returns, a kill can't lose it.

        Raises:
            GateError: the second verdict is due and bad, or too many rows have failed.
            JournalError: the journal can't be written.
        """
        if self._bad_verdict is not None:  # it arrived while the run was being stopped
            raise self._bad_verdict
        was_held = outcome.request.key in self._held
        if not self._holds and not was_held:
            self._judge_later(outcome)
        if not was_held:
            model = self._models.get(outcome.url or "")
            self._journal.append((unjudged if self._holds else entry)(outcome, model))
        if outcome.answer is None:
            self._counts.add(outcome, outcome.url)
        elif not self._holds:
            self._accept(outcome, was_held)
        if self._holds:
            self._waiting.append(outcome)
            self._counts.waiting = self._arrived()
        if self._first_judged:
            self._check_failed(outcome)
            if self._holds and self._arrived() >= self._params.gate_rows:
                self._judge(lambda: self._gate.early(self._waiting))
                self._let_go()

    def judge_first(self) -> None:
        """The verdict on what has been recorded until now, the first batch.

        Raises:
            GateError: it is bad, and none of these answers will be used; or too many rows have failed.
        """
        self._judge(lambda: self._gate.first(self._waiting, answered_before=self._answered_before))
        self._first_judged = True
        failed = [outcome for outcome in self._waiting if outcome.answer is None]
        if not self._second_gate:
            self._let_go()
        if failed:
            self._check_failed(failed[-1])

    def finish(self) -> None:
        """The run has asked everything: what still waits for a second verdict counts without it."""
        self._let_go()

    def _arrived(self) -> int:
        return sum(outcome.answer is not None for outcome in self._waiting)

    def _accepts(self, outcome: Outcome) -> bool:
        try:
            self._gate.first([outcome], answered_before=True)
        except GateError as error:
            self._journal.append(rejected(outcome.request, error.what))
            return False
        return True

    def _judge_later(self, outcome: Outcome) -> None:
        """Judge an answer behind the last verdict: the first of a server, or of one that came back, in full."""
        if outcome.answer is None:
            return
        server = (outcome.url, outcome.outages)
        try:
            self._gate.later(outcome)
            if server not in self._judged_servers:
                self._gate.first([outcome], answered_before=True)
        except GateError as error:
            self._bad_verdict = error
            self._name_server(error, [outcome])
            self._journal.append(rejected(outcome.request, error.what))
            raise
        self._judged_servers.add(server)

    def _judge(self, verdict: Callable[[], None]) -> None:
        try:
            verdict()
        except GateError as error:
            self._bad_verdict = error
            self._name_server(error, self._waiting)
            self._counts.waiting = 0
            for outcome in self._waiting:
                if outcome.answer is not None:
                    self._journal.append(rejected(outcome.request, error.what))
            raise

    def _name_server(self, error: GateError, outcomes: Sequence[Outcome]) -> None:
        """Say which of several servers answered: often only one of them is wrong."""
        if len(self._models) > 1:
            urls = [outcome.url for outcome in outcomes if place(outcome.request) == error.where]
            error.where = f"{error.where}, answered by {urls[0]}" if urls else error.where

    def _let_go(self) -> None:
        self._holds = False
        waiting, self._waiting = self._waiting, []
        self._judged_servers |= {(outcome.url, outcome.outages) for outcome in waiting if outcome.answer}
        self._counts.waiting = 0
        for outcome in waiting:
            if outcome.answer is not None:
                self._accept(outcome, was_unjudged=True)

    def _accept(self, outcome: Outcome, was_unjudged: bool) -> None:
        if was_unjudged:
            kept = self._journal.error(outcome.request.key)
            assert kept is not None
            self._journal.append(judged(kept))
        self._counts.add(outcome, outcome.url)

    def _check_failed(self, outcome: Outcome) -> None:
        failed, total = self._counts.failed, self._counts.total
        if failed > self._params.max_failed_share * total:
            raise too_many_failed(failed, total, self._params, outcome)


def too_many_failed(failed: int, total: int, params: GenerateParams, example: Outcome) -> GateError:
    """The error of a run whose failed rows exceed the allowed share."""
    return GateError(
        f"{failed} of {total} rows failed, more than generate.max_failed_share {params.max_failed_share:g}; "
        f"the last one: {example.failure}",
        where=example.request.sample_id,
        hint="look at the server's log and run again: answered rows are kept, failed ones are asked again",
    )
