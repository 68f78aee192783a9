from __future__ import annotations

from pathlib import Path

import pytest

from eyas.extract import reference as reference_module
from eyas.extract.backend import TransformersBackend
from eyas.extract.fixture import FixtureSequence, check_fixture
from eyas.extract.reference import Reference
from eyas.target.model import TargetHead
from tests.extract.spoiled import spoiled
from tests.tiny_target import profile_of, write_target

SEQUENCES = [FixtureSequence("s:a", list(range(20, 50))), FixtureSequence("s:b", [1, 50, 51])]


def test_another_backend_is_compared_with_the_target_in_main_memory(
    tiny: Path, backend: TransformersBackend, head: TargetHead
) -> None:
    foreign = spoiled(backend, list)
    reference = Reference.of(foreign, tiny, profile_of(tiny))
    assert reference.missing is None
    assert check_fixture(foreign, head, reference, SEQUENCES).sequences == 2
    own = Reference.of(backend, tiny, profile_of(tiny))
    assert own.hidden_states == backend.reference


def test_a_target_too_large_for_a_comparison(
    tiny: Path,
    backend: TransformersBackend,
    head: TargetHead,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(reference_module, "MEMORY_SHARE", 0.0)
    foreign = spoiled(backend, list)
    reference = Reference.of(foreign, tiny, profile_of(tiny))
    assert "GB are free" in caplog.text
    result = check_fixture(foreign, head, reference, SEQUENCES)
    assert result.worst is None
    assert result.skipped is not None
    assert "the target takes 0.0 GB" in result.skipped


def test_a_target_that_transformers_can_not_load(
    tmp_path: Path, backend: TransformersBackend, tiny: Path
) -> None:
    broken = write_target(tmp_path / "broken")
    (broken / "config.json").write_text('{"model_type": "no such"}')
    reference = Reference.of(spoiled(backend, list), broken, profile_of(tiny))
    assert reference.hidden_states is None
    assert reference.missing is not None
    assert "transformers can't load the target" in reference.missing
