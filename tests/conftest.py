from __future__ import annotations

import os
import signal

import hypothesis
import pytest

# no deadline: how long an example takes says what else the machine does
hypothesis.settings.register_profile("eyas", deadline=None)
hypothesis.settings.load_profile("eyas")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of the person who runs the tests must not reach the code under test."""
    for name in list(os.environ):
        if name.startswith(("DVC_", "OPENAI_", "EYAS_")):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Threads only wait for each other on tensors as small as the tests'."""
    try:
        import torch
    except ImportError:  # the tests of torch-free packages run without it
        return
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """A shell starts background jobs with SIGINT ignored, which we and every child would inherit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
