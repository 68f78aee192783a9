"""The `server` section."""

from __future__ import annotations

from typing import Any

import pytest

from eyas.config import build, load_section
from eyas.errors import ConfigError
from eyas.serving.params import ServerParams
from tests.serving.example import SERVER


def test_the_shipped_section_is_valid() -> None:
    assert load_section("server", ServerParams).concurrency >= 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("concurrency", 0),
        ("max_attempts", 0),
        ("max_model_len", -1),
        ("max_num_seqs", 0),
        ("kv_cache_gib", 0),
        ("start_timeout_s", 0),
        ("request_timeout_s", -2.5),
        ("idle_timeout_s", 0),
        ("give_up_after_s", 0),
        ("give_up_after_s", None),
        ("ask_refused_again", "perhaps"),
        ("connect_timeout_s", 0.0),
        ("unknown", 1),
        ("concurrency", "many"),
    ],
)
def test_an_impossible_value_is_named(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=key):
        build("server", ServerParams, SERVER | {key: value})


@pytest.mark.parametrize("key", SERVER)
def test_every_key_is_needed(key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        build("server", ServerParams, {name: value for name, value in SERVER.items() if name != key})
