"""The extract stage as a process of its own that writes down what it computes, and fails where it is told to.

python tests/extract/rank_life.py      in the directory of a project. Environment: EYAS_TEST_DELAY_S, EYAS_TEST_FAIL_RANK
"""

from __future__ import annotations

import os
from collections.abc import Callable

from stages import extract

from eyas.errors import GateError
from eyas.extract.extractor import Computed, Extractor
from eyas.extract.work import Work
from eyas.process import run_stage
from tests.extract import lives

RANK = os.environ.get("RANK", "0")
DELAY_S = float(os.environ.get("EYAS_TEST_DELAY_S", "0"))


def fail_sometime(begun: int = 3) -> None:
    """Let this rank's third shard be wrong."""
    compute, numbers = Extractor.compute, iter(range(1, 1_000_000))

    def failing(self: Extractor, work: Work, number: int, advance: Callable[[int], None]) -> Computed:
        if next(numbers) == begun:
            raise GateError("planted", where=f"shard {number}", hint="nothing")
        return compute(self, work, number, advance)

    Extractor.compute = failing  # type: ignore[method-assign]


if __name__ == "__main__":
    restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    if os.environ.get("EYAS_TEST_FAIL_RANK") == RANK and not restarted:
        fail_sometime()
    lives.watch(DELAY_S, prefix=f"{RANK} {os.getpid()} ")
    run_stage(extract.main)
