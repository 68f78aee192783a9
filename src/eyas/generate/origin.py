"""Whether the servers loaded the model that params name, as far as their model lists say."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from eyas import paths
from eyas.errors import ServerError
from eyas.serving.endpoint import ModelInfo
from eyas.target.spec import TargetProfile

logger = logging.getLogger(__name__)

_HUB = "hub:"
_OWNED = re.compile(r"([\w.-]+)/[\w.-]+")


def check_origins(models: Mapping[str, ModelInfo], profile: TargetProfile) -> None:
    """Compare hub ids. Any model can be served under any name; a quantised copy answers much like the original.

    vLLM says from which hub id or path it loaded (`root`). An absolute path says nothing, and neither does SGLang,
    which repeats the served name. A relative path may look like a hub id; so another owner is only said. The revision
    is in no list: the ids of the prompts are all the proof there is.

    Raises:
        ServerError: a server loaded another model of the same owner than the target came from.
    """
    if not profile.source.startswith(_HUB):
        return
    expected = profile.source.removeprefix(_HUB)
    for url, model in models.items():
        found = _OWNED.fullmatch(model.root or "")
        if found is None or model.root in (model.name, expected, str(paths.TARGET)):
            continue
        what = f"the server serves {model.root} as {model.name}, the target is {expected}"
        if found[1] != expected.partition("/")[0]:
            logger.warning("%s: %s", url, what)
            continue
        raise ServerError(
            what,
            where=url,
            hint=f"serve {expected} (revision {profile.revision}), or correct `target` in params.yaml",
        )
