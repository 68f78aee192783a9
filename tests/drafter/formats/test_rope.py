from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.drafter.formats.findings import Findings
from eyas.drafter.formats.rope import Rope, read_rope, rope_keys

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
scalings = st.one_of(
    st.none(),
    st.just(YARN),
    st.fixed_dictionaries({"rope_type": st.just("linear"), "factor": st.floats(1, 8)}),
)


def read(values: dict[str, Any]) -> tuple[Rope, Findings]:
    found = Findings(Path("drafter"))
    return read_rope(values, found), found


@given(
    st.floats(1.0, 1e8), scalings, st.sampled_from([(), ("rope_parameters",), ("rope_theta", "rope_scaling")])
)
def test_every_spelling_says_the_same(
    theta: float, scaling: dict[str, Any] | None, absent: tuple[str, ...]
) -> None:
    values = {key: value for key, value in rope_keys(Rope(theta, scaling)).items() if key not in absent}
    rope, found = read(values)
    assert rope == Rope(theta, scaling)
    assert (found.problems, found.assumptions) == ([], [])


def test_a_config_without_rope_means_llamas_default() -> None:
    rope, found = read({})
    assert rope == Rope(10000.0, None)
    assert len(found.assumptions) == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
            "10000.0 and 500000.0",
        ),
        ({"rope_theta": 1e4, "rope_parameters": YARN, "rope_scaling": {**YARN, "factor": 8.0}}, "differ"),
        (
            {"rope_theta": 1e4, "rope_scaling": {"rope_type": "mrope", "mrope_section": [1]}},
            "rope_type 'mrope'",
        ),
        (
            {"rope_theta": 1e4, "rope_scaling": {"rope_type": "default", "mrope_section": [1]}},
            "has mrope_section",
        ),
        ({"rope_theta": -1}, "must be a positive number"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "one set of rope settings"),
        ({"rope_theta": 1e4, "rope_scaling": "yarn"}, "one set of rope settings"),
    ],
)
def test_what_engines_would_read_differently_is_refused(values: dict[str, Any], message: str) -> None:
    assert message in "\n".join(read(values)[1].problems)


def test_which_ropes_depend_on_the_length_of_the_config() -> None:
    assert not Rope(1e4, None).depends_on_length
    assert not Rope(1e4, {"rope_type": "linear", "factor": 2.0}).depends_on_length
    assert not Rope(1e4, YARN).depends_on_length
    assert Rope(1e4, {"rope_type": "dynamic", "factor": 2.0}).depends_on_length
