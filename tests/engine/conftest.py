from __future__ import annotations

import pytest

from eyas.engine import counters


@pytest.fixture(autouse=True)
def _readings_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "SETTLE_EVERY_S", 0.005)
