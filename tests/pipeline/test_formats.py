"""Real vLLM loads the exported folders of every format, and drafts the same from each."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from eyas import tokenkinds
from eyas.drafter.batch import pack
from eyas.drafter.config import DrafterConfig
from eyas.drafter.formats.serving import Serving
from eyas.drafter.model import Drafter
from eyas.drafter.unroll import unroll
from eyas.drafter.vocab import VocabMap
from eyas.export.writing import Trained, export_drafter
from eyas.serving.vllm import server_environment, server_python
from eyas.shards import SequenceStates, label_positions
from eyas.target.model import TargetHead, capture, load_target
from eyas.target.spec import TargetProfile
from tests.pipeline import engine_counts
from tests.tiny_target import profile_of, write_target

pytestmark = [pytest.mark.pipeline, pytest.mark.timeout(300)]

SERVER = replace(engine_counts.SERVER, concurrency=1, max_model_len=128, max_num_seqs=2)
ENGINES = Path(__file__).parent / "engines_in_turn.py"
FORMATS = ("vllm", "sglang", "speculators")
PROMPTS, ANSWER_TOKENS, DRAFT_TOKENS = 6, 32, 3


@dataclass(frozen=True)
class Made:
    """A tiny target, its greedy answers, and a drafter that is right now and then."""

    target: Path
    profile: TargetProfile
    prompts: list[list[int]]
    answers: list[list[int]]
    trained: Trained


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = write_target(
        tmp_path_factory.mktemp("target") / "tiny",
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
    )
    profile = profile_of(folder, dtype="float32")
    generator = torch.Generator().manual_seed(1)
    prompts = [
        torch.randint(3, 290, (5 + number,), generator=generator).tolist() for number in range(PROMPTS)
    ]
    model, head = load_target(folder, "float32"), TargetHead.read(folder, profile, "float32")
    states = [answered(model, head, profile, prompt) for prompt in prompts]
    seen = sorted({int(token) for each in states for token in each.token_ids[each.kinds > 0]})
    kept = {token for place, token in enumerate(seen) if place % 4} | set(profile.end_of_turn_ids)
    vocab = VocabMap.of_ids(torch.tensor(sorted(kept)), profile.vocab_size)
    drafter = half_trained(profile, vocab, states[::2], head)
    answers = [each.token_ids[each.kinds > 0].tolist() for each in states]
    return Made(folder, profile, prompts, answers, Trained(drafter, vocab, imported=False))


def answered(model: Any, head: TargetHead, profile: TargetProfile, prompt: list[int]) -> SequenceStates:
    """A greedy answer of the target, whose states the drafter learns from."""
    ids = torch.tensor([prompt])
    for _ in range(ANSWER_TOKENS):
        states = capture(model, ids, None, profile.aux_layer_ids)
        ids = torch.cat((ids, head.logits(states.last[0, -1:]).argmax(dim=-1)[None]), dim=1)
    states = capture(model, ids, None, profile.aux_layer_ids)
    mask = torch.arange(ids.shape[1]) >= len(prompt)
    labels = label_positions(mask)
    last = states.last[0, labels.long()]
    logits = head.logits(last)
    return SequenceStates(
        "tiny:0", ids[0], mask.to(torch.uint8) * tokenkinds.ANSWER, 1.0, states.aux[0], labels, last,
        logits.argmax(-1), logits.logsumexp(-1),
    )  # fmt: skip


def half_trained(
    profile: TargetProfile, vocab: VocabMap, states: list[SequenceStates], head: TargetHead
) -> Drafter:
    torch.manual_seed(0)
    config = DrafterConfig(
        hidden_size=64,
        target_hidden_size=64,
        num_aux_layers=3,
        intermediate_size=128,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        vocab_size=profile.vocab_size,
        draft_vocab_size=vocab.size,
        rms_norm_eps=profile.rms_norm_eps,
        rope_theta=profile.rope_theta,
        rope_scaling=profile.rope_scaling,
        max_position_embeddings=profile.max_position_embeddings,
        aux_layer_ids=profile.aux_layer_ids,
        norm_before_fc=True,
        norm_output=True,
    )
    drafter = Drafter(config)
    batch = pack(states, DRAFT_TOKENS)
    labels = vocab.to_draft(batch.argmax)[batch.step_labels]  # [rows, steps]
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=3e-3)
    for _ in range(60):
        optimizer.zero_grad()
        losses = [
            functional.cross_entropy(drafter.logits(output[rows]), labels[rows, step])
            for step, output in enumerate(unroll(drafter, batch, head.embedding, DRAFT_TOKENS))
            if (rows := batch.step_valid[:, step] & (labels[:, step] >= 0)).any()
        ]
        torch.stack(losses).sum().backward()
        optimizer.step()
    return drafter.eval()


def served(made: Made, directory: Path) -> dict[str, dict[str, Any]]:
    """What real vLLM does with each format: answers, drafts, accepted drafts by position."""
    serving = Serving(made.profile, "float32", DRAFT_TOKENS)
    jobs = []
    for name in FORMATS:
        folder = directory / name
        folder.mkdir()
        export_drafter(folder, name, made.trained, serving)
        model = made.target
        speculative: Any = {"method": "eagle3", "model": str(folder), "num_speculative_tokens": DRAFT_TOKENS}
        if (
            name == "speculators"
        ):  # served by its own name: it brings its target and the number of draft tokens
            config = json.loads((folder / "config.json").read_text())
            config["speculators_config"]["verifier"]["name_or_path"] = str(made.target)
            (folder / "config.json").write_text(json.dumps(config))
            model, speculative = folder, None
        jobs.append(
            {
                "model": str(model),
                "speculative": speculative,
                "prompts": made.prompts,
                "max_tokens": ANSWER_TOKENS,
                "result": str(directory / f"{name}.json"),
            }
        )
    (directory / "jobs.json").write_text(json.dumps(jobs))
    done = subprocess.run(
        [str(server_python()), str(ENGINES), str(directory / "jobs.json")],
        env={**server_environment(SERVER), "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
        check=False, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    results = {name: directory / f"{name}.json" for name in FORMATS}
    assert all(path.exists() for path in results.values()), f"{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    return {name: json.loads(path.read_text()) for name, path in results.items()}


def test_vllm_drafts_the_same_from_every_format(made: Made, tmp_path: Path) -> None:
    found = served(made, tmp_path)
    plain = found["vllm"]
    assert found["speculators"] == plain
    assert found["sglang"] == plain  # its top-level layer ids are vLLM's
    assert plain["answers"] == made.answers
    length = 1 + sum(plain["accepted_at"]) / plain["drafts"]
    assert 1.1 < length < 3.9  # both ends would hide a difference
