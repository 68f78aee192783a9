"""Runs of the extract stage (tests.nursery).

A life appends a line to `computed.txt` for each shard that it begins to compute.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stages import extract

from eyas.extract import journal
from eyas.extract.extractor import Computed, Extractor
from eyas.extract.work import Work
from eyas.hashing import Guard
from eyas.process import run_stage
from tests.nursery import ROOT, serve

LOG = "computed.txt"


def computed(directory: Path) -> list[str]:
    """What all lives have begun to compute: `split number` for each shard."""
    log = directory / LOG
    return log.read_text().splitlines() if log.exists() else []


def watch(delay_s: float, prefix: str = "") -> None:
    """Let the extractor write down what it begins. The trial of the memory budget goes another way.

    The digest of the code is left out: the code under test may be edited while many lives pass.
    """
    journal.code_digest = lambda **options: "code"
    Guard.check = lambda self: None  # type: ignore[method-assign]
    compute = Extractor.compute

    def watched(self: Extractor, work: Work, number: int, advance: Callable[[int], None]) -> Computed:
        with Path(LOG).open("a") as log:
            log.write(f"{prefix}{work.split} {number}\n")
        time.sleep(delay_s)
        return compute(self, work, number, advance)

    Extractor.compute = watched  # type: ignore[method-assign]


def live(order: dict[str, Any]) -> None:
    """Each shard takes `delay_s` longer."""
    sys.argv = [str(ROOT / "stages" / "extract.py")]
    watch(order.get("delay_s", 0.0))
    run_stage(extract.main)


if __name__ == "__main__":
    import transformers

    transformers.AutoModelForCausalLM  # noqa: B018 -- transformers imports its parts when they are asked for
    serve(live)
