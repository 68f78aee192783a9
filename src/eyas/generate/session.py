"""The server of a stage run, started when the first row needs it, and the datasets it answers."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from eyas import paths
from eyas.config import read_section
from eyas.errors import EyasError
from eyas.freshness import inputs_digest, read_inputs_digest
from eyas.generate.params import GenerateParams
from eyas.generate.publish import Responses
from eyas.generate.request import fingerprint
from eyas.generate.run import Endpoint, Run
from eyas.generate.table import PromptTable
from eyas.hashing import digest
from eyas.journal import Journal
from eyas.serving.endpoint import check_model, external_base_url
from eyas.serving.params import ServerParams
from eyas.serving.vllm import LocalVllm
from eyas.target.spec import TargetProfile

logger = logging.getLogger(__name__)


def open_journal(dataset: str, profile: TargetProfile, params: GenerateParams) -> Journal:
    """The journal of a dataset's answers under these params.

    Raises:
        JournalError: another process has it open, or it is damaged.
    """
    common = fingerprint(profile, params)
    return Journal(paths.journal("generate") / dataset / digest(common)[:16], common)


class Session:
    """Context manager: answers datasets; a server that it started is stopped at the end."""

    def __init__(
        self, dataset: str, profile: TargetProfile, params: GenerateParams, server: ServerParams
    ) -> None:
        self._dataset = dataset
        self._profile = profile
        self._params = params
        self._server = server
        self._stack = ExitStack()
        self._endpoint: Endpoint | None = None
        self._started = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def answer(self, table: PromptTable, journal: Journal) -> Responses:
        """Ask the prompts of a table that have no answer yet; a server is started only if there are any.

        Raises:
            GateError: the answers are wrong, or too many prompts got none.
            ServerError, JournalError, Interrupted: as in `Run.complete`.
        """
        responses = Responses(table, journal, self._profile, self._params)
        pending = responses.pending()
        logger.info("%s: %d of %d prompts have no answer yet", table.dataset, len(pending), len(table))
        if pending:
            run = Run(table.dataset, journal, self._open(), self._profile, self._params, self._server)
            run.complete(pending, len(table))
        responses.check()
        return responses

    def answer_ahead(self) -> None:
        """While a server of ours is up, ask the other datasets too: each of their stages would start its own.

        Only tables made from the params of now are asked. A failure is their stage's to report; here it is a
        warning, so that this stage's own answers are never in danger.

        Raises:
            Interrupted: a stop signal arrived.
        """
        if not self._started:
            return
        for dataset in read_section("datasets"):
            if dataset == self._dataset:
                continue
            try:
                self._answer_if_fresh(dataset)
            except (EyasError, OSError) as error:
                logger.warning("%s was not asked ahead: %s", dataset, error)

    def _answer_if_fresh(self, dataset: str) -> None:
        path = paths.prompts(dataset)
        if read_inputs_digest(path) != inputs_digest():
            return
        with open_journal(dataset, self._profile, self._params) as journal:
            self.answer(PromptTable.read(path, dataset), journal)

    def _open(self) -> Endpoint:
        if self._endpoint is None:
            self._endpoint = self._external() or self._local()
        return self._endpoint

    def _external(self) -> Endpoint | None:
        base_url = external_base_url()
        if base_url is None:
            return None
        return Endpoint(base_url, check_model(base_url, self._profile.name), lambda: None)

    def _local(self) -> Endpoint:
        name = self._profile.name
        vllm = self._stack.enter_context(
            LocalVllm(
                paths.TARGET,
                name,
                self._profile.dtype,
                self._server,
                f"generate-{self._dataset}",
                trust_remote_code=self._profile.trust_remote_code,
            )
        )
        self._started = True
        return Endpoint(vllm.base_url, check_model(vllm.base_url, name), vllm.check_alive)
