"""The runs of the engine stage on servers that are there already: vLLM or SGLang, by URL."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence

from eyas.engine.asking import Asking
from eyas.engine.client import Endpoint
from eyas.engine.margin import Margins
from eyas.engine.measure import Measurement, measure
from eyas.engine.questions import Level
from eyas.engine.run import explained
from eyas.engine.runs import Runs, Variant
from eyas.engine.service import Service, inspect
from eyas.errors import ServerError
from eyas.serving.params import ServerParams

logger = logging.getLogger(__name__)


def run_external(
    base_urls: Sequence[str],
    name: str,
    rounds: Sequence[Sequence[Level]],
    server: ServerParams,
    asking: Asking,
) -> Runs:
    """Measure servers as they are; which of them speculates shows in what they say.

    Of several servers the first without and the first with speculation are measured, in alternating order. One alone
    fills one side of the reports.

    Raises:
        ServerError: one can't be reached, serves another model, or a request failed.
    """
    services = sides([inspect(url, name) for url in base_urls])
    measured: list[dict[Variant, Measurement]] = []
    margins: Margins = {}
    for number, levels in enumerate(rounds):
        found: dict[Variant, Measurement] = {}
        for variant in list(services) if number % 2 == 0 else reversed(list(services)):
            service = services[variant]
            logger.info("round %d of %d, %s", number + 1, len(rounds), service.base_url)
            endpoint = _endpoint(service, name, server, asking)
            found[variant] = measure(endpoint, levels, service.version, service.draft_tokens)
            margins.update(explained(endpoint, levels, found, variant, margins))
        measured.append(found)
    speculating = next((each for each in services.values() if each.speculates), None)
    return Runs(
        asking,
        measured,
        draft_tokens=None if speculating is None else speculating.draft_tokens,
        external=True,
        dialect=(speculating or next(iter(services.values()))).dialect,
        chain=speculating is None or speculating.chain,
        margins=margins,
    )


def sides(services: Sequence[Service]) -> Mapping[Variant, Service]:
    """The servers that are measured, by the tokens that they draft, the one without drafter first.

    Raises:
        ServerError: a speculating one does not say how far it drafts.
    """
    found: dict[Variant, Service] = {}
    plain = [each for each in services if not each.speculates]
    speculating = [each for each in services if each.speculates]
    if plain:
        found[None] = plain[0]
    if speculating:
        if speculating[0].draft_tokens is None:
            raise ServerError(
                "the server speculates but does not say how many tokens it drafts",
                where=speculating[0].base_url,
                hint="start SGLang with --speculative-num-steps",
            )
        found[speculating[0].draft_tokens] = speculating[0]
    for each in [*plain[1:], *speculating[1:]]:
        logger.warning("%s is not measured: one server for each side is enough", each.base_url)
    if len(found) == 1:
        only = "with its drafter" if speculating else "without drafter"
        logger.info("an external server is measured as it is, %s; the other side stays empty", only)
    return found


def _endpoint(service: Service, name: str, server: ServerParams, asking: Asking) -> Endpoint:
    """A salt of its own for each run, since prompts are asked more than once and may be cached."""
    salt = secrets.token_hex(8) if service.dialect == "vllm" else None
    return Endpoint(service.base_url, name, server, asking, service.dialect, salt)
