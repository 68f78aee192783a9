"""The question that decides whether real vLLM may sample with a drafter gets an answer from the vLLM that is installed."""

from __future__ import annotations

import contextlib
import logging

import pytest

from eyas.errors import ServerError
from eyas.serving.drafted import check_drafted_sampling
from tests.pipeline.engine_counts import SERVER

pytestmark = [pytest.mark.pipeline, pytest.mark.timeout(300)]


def test_the_installed_vllm_answers(caplog: pytest.LogCaptureFixture) -> None:
    """Yes or no depends on its build; one that can't be asked is let through with a warning."""
    with caplog.at_level(logging.WARNING), contextlib.suppress(ServerError):
        check_drafted_sampling(SERVER)
    assert caplog.records == []
