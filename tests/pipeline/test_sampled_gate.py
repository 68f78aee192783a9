"""Answers that a real vLLM server samples: the gate of extraction knows how they were sampled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml

from eyas import paths
from eyas.errors import GateError
from eyas.extract.table import Sequences
from eyas.generate.session import Session, open_journal
from eyas.generate.table import PromptTable
from eyas.sampling import Sampling
from eyas.serving.vllm import LocalVllm, server_python
from eyas.target.spec import TargetProfile
from tests.extract.drawing import answered
from tests.extract.greedy import make_extractor
from tests.generate.example import GENERATE, generate_params, write_prompts
from tests.serving.example import server_params
from tests.tiny_target import profile_of, write_target

pytestmark = [pytest.mark.pipeline, pytest.mark.timeout(600)]

SERVER = server_params(start_timeout_s=400.0, concurrency=16, max_num_seqs=16)
WORDS = ("the user", "asks", "the assistant", "answers", "why?", "Grüße", "12 + 30", "a list")
PROMPTS = [f"{first} {second}" for first in WORDS for second in WORDS]
PLAIN = Sampling("vllm", 1.0, 1.0, 0)
CUT = Sampling("vllm", 0.7, 0.9, 30)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Sampling, Sequences]]:
    """The prompts answered in two ways by one server. The working directory is that of the tiny target."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EYAS_VLLM_PYTHON", str(server_python()))
        for name in ("DVC_ROOT", "OPENAI_BASE_URL", "OPENAI_API_KEY"):
            patch.delenv(name, raising=False)
        patch.chdir(tmp_path_factory.mktemp("sampled"))
        write_target(
            paths.TARGET, hidden_size=64, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
            intermediate_size=128, initializer_range=0.08,
        )  # fmt: skip
        profile = profile_of(paths.TARGET, dtype="float32")
        datasets = {
            name: {"source": "jsonl", "role": "train", "path": f"{name}.jsonl"} for name in ("plain", "cut")
        }
        Path("params.yaml").write_text(
            yaml.safe_dump({"datasets": datasets, "prompts": {}, "generate": GENERATE})
        )
        with LocalVllm(paths.TARGET, profile.name, "float32", SERVER, "sampled") as server:
            patch.setenv("OPENAI_BASE_URL", server.base_url)
            held = {
                sampling: ask(name, profile, sampling) for name, sampling in (("plain", PLAIN), ("cut", CUT))
            }
        yield held


def ask(dataset: str, profile: TargetProfile, sampling: Sampling) -> Sequences:
    params = generate_params(max_tokens=40, **asdict(sampling))
    write_prompts(dataset, PROMPTS)
    with (
        open_journal(dataset, profile, params) as journal,
        Session(dataset, profile, params, SERVER) as session,
    ):
        responses = session.answer(PromptTable.read(paths.prompts(dataset), dataset), journal)
        responses.publish(paths.responses(dataset))
    rows = [json.loads(line) for line in paths.raw_responses(dataset).read_bytes().splitlines()]
    return answered(
        [row["prompt_token_ids"] + row["token_ids"] for row in rows],
        [len(row["prompt_token_ids"]) for row in rows],
    )


@pytest.mark.parametrize("sampling", [PLAIN, CUT], ids=["plain", "cut"])
def test_sampled_answers_pass(answers: dict[Sampling, Sequences], sampling: Sampling, tmp_path: Path) -> None:
    extractor = make_extractor(paths.TARGET, sampling=sampling)
    result = extractor.extract("train", answers[sampling], tmp_path / "store")
    for counts in result.datasets.values():
        assert counts["generated_tokens"] > 500
        assert counts["agreement"] < 0.9
        assert abs(counts["sampling_z"]) < 4
        assert counts["outside_share"] < 1e-3
        assert counts["odd_sequences"] == 0


@pytest.mark.parametrize(
    ("sampled", "judged"),
    [
        pytest.param(PLAIN, replace(PLAIN, temperature=0.8), id="temperature too low"),
        pytest.param(PLAIN, replace(PLAIN, temperature=1.3), id="temperature too high"),
        pytest.param(PLAIN, replace(PLAIN, top_p=0.9), id="top_p that was not used"),
        pytest.param(CUT, replace(CUT, top_p=1.0, top_k=0), id="cuts that were used"),
        pytest.param(CUT, replace(CUT, top_k=10), id="top_k too low"),
    ],
)
def test_other_params_than_the_server_was_sent_stop_the_run(
    answers: dict[Sampling, Sequences], sampled: Sampling, judged: Sampling, tmp_path: Path
) -> None:
    extractor = make_extractor(paths.TARGET, sampling=judged)
    with pytest.raises(GateError, match=r"surprising than tokens sampled|are none that"):
        extractor.extract("train", answers[sampled], tmp_path / "store")
