from __future__ import annotations

from typing import Any

import pytest

from eyas.prompts.params import PromptsParams


@pytest.mark.parametrize(("key", "value"), [("max_characters", 0), ("system", " ")])
def test_impossible_values_name_their_key(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=key):
        PromptsParams(**{key: value})
