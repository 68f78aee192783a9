from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from eyas.datasets import load_datasets
from eyas.errors import ConfigError

ENTRIES = {
    "train": {"source": "jsonl", "role": "train", "path": "x.jsonl"},
    "eval": {"source": "jsonl", "role": "eval", "path": "y.jsonl"},
}


@pytest.mark.parametrize(("missing", "there"), [("train", "eval"), ("eval", "train")])
def test_a_missing_role_is_shown_how_to_add(missing: str, there: str, tmp_path: Path) -> None:
    """What the message says to add makes the section whole."""
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump({"datasets": {"given": ENTRIES[there]}}))
    with pytest.raises(ConfigError, match=f"no entry with role: {missing}") as caught:
        load_datasets(path)
    hint = caught.value.hint
    assert hint is not None
    assert f"set `role: {missing}`" in hint
    added = re.findall(r"`([^`]+)`", hint)[0]
    path.write_text(yaml.safe_dump({"datasets": {"given": ENTRIES[there]} | yaml.safe_load(added)}))
    assert [dataset.role for dataset in load_datasets(path).values()] == [there, missing]
