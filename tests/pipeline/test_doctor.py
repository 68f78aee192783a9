"""Real vLLM serves a spoiled drafter without a word; the diagnosis names what was spoiled.

Every cause in turn, on the default run's own drafter: benchmarks/doctor.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from eyas.doctor.diagnosis import diagnose
from eyas.doctor.material import read_material
from tests.doctor.tiny_run import tiny_run
from tests.pipeline.engine_counts import prompt_tokens, served
from tests.pipeline.sabotage import sabotages, write_spoiled

pytestmark = pytest.mark.pipeline

STEPS = 3
QUESTIONS = 30


def test_a_spoiled_drafter_and_a_sound_one_in_the_real_engine(tmp_path: Path) -> None:
    """On a tiny target, so that a server is there in seconds."""
    run = tiny_run(tmp_path, hidden_size=64, num_attention_heads=2, num_key_value_heads=1, head_dim=32)
    # an engine ends where the target says its end token, which tiny_run does not
    asked = [each for each in run.sequences if 0 not in each.token_ids[prompt_tokens(each) : -1].tolist()][
        :QUESTIONS
    ]
    assert len(asked) > QUESTIONS // 2
    order = next(each for each in sabotages(run.head.lm_head) if each.name == "order")
    spoiled = write_spoiled(tmp_path / "spoiled", run.sound, order.spoil)
    chosen = {each.sequence_id for each in asked}
    for folder, cause in ((run.sound, None), (spoiled, "aux_order")):
        counted = served(run.target, folder, asked, STEPS, max_model_len=64)
        material = read_material(
            folder,
            run.target,
            run.store,
            run.store,
            engine="vllm",
            steps=STEPS,
            wanted=lambda name: name in chosen,
        )
        found = diagnose(material, "vllm", counted)
        assert found.engine_follows, found.fit
        assert found.cause == cause, found.verdict
