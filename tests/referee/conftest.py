from __future__ import annotations

import pytest

from tests.referee.hand_made import HandMade, hand_made


@pytest.fixture(scope="session")
def made() -> HandMade:
    return hand_made()
