"""The servers of a stage run, found or started when the first row needs one, and the datasets they answer."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from eyas import paths
from eyas.config import read_section
from eyas.errors import EyasError
from eyas.freshness import inputs_digest, read_inputs_digest
from eyas.generate.dialects.choice import dialect
from eyas.generate.gate import Gate
from eyas.generate.origin import check_origins
from eyas.generate.params import GenerateParams
from eyas.generate.publish import Responses
from eyas.generate.rendering import Rendering
from eyas.generate.request import fingerprint
from eyas.generate.run import Asking, Run, Servers
from eyas.generate.table import PromptTable
from eyas.hashing import digest
from eyas.journal import Journal
from eyas.serving.drafted import warn_of_drafted_sampling
from eyas.serving.endpoint import check_models, effective_proxy, external_base_urls
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
        self._asking: Asking | None = None
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
        pending = responses.pending(refused=self._server.ask_refused_again)
        logger.info("%s: %d of %d turns have no answer yet", table.dataset, pending.turns, table.turns)
        if pending.turns:
            Run(table.dataset, journal, self._open()).complete(pending, table.turns)
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

    def _open(self) -> Asking:
        if self._asking is None:
            self._asking = Asking(
                profile=self._profile,
                params=self._params,
                server=self._server,
                servers=self._external() or self._local(),
                dialect=dialect(self._params, self._profile, paths.TARGET),
                gate=self._gate(),
            )
        return self._asking

    def _gate(self) -> Gate:
        """With models/target at hand, the gate compares prompts token by token."""
        if not paths.TARGET.exists():
            return Gate(self._params, self._profile)
        rendering = Rendering(
            paths.TARGET, self._params.chat_template_kwargs, self._profile.trust_remote_code
        )
        return Gate(self._params, self._profile, rendering, rendering.text)

    def _external(self) -> Servers | None:
        urls = external_base_urls()
        if not urls:
            return None
        for url in urls:
            if (proxy := effective_proxy(url)) is not None:
                logger.info("%s is reached through the proxy %s", url, proxy.rpartition("@")[2])
        models = dict(zip(urls, check_models(urls, self._profile.name), strict=True))
        check_origins(models, self._profile)
        return Servers(models)

    def _local(self) -> Servers:
        name = self._profile.name
        if self._params.temperature > 0:
            warn_of_drafted_sampling(self._server)
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
        (model,) = check_models([vllm.base_url], name)
        return Servers({vllm.base_url: model}, vllm.check_alive)
