"""Real vLLM serves exported drafters: the same tokens, and the acceptance that was simulated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from eyas import tokenkinds
from eyas.drafter.batch import pack
from eyas.drafter.config import DrafterConfig
from eyas.drafter.model import Drafter
from eyas.drafter.unroll import unroll
from eyas.drafter.vocab import VocabMap
from eyas.engine.client import Endpoint, ask
from eyas.engine.compare import compare
from eyas.engine.measure import measure
from eyas.engine.questions import Question, levels
from eyas.evaluate.replay import replay
from eyas.evaluate.report import count
from eyas.export.check import check_plain
from eyas.export.plain import write_plain
from eyas.serving.params import ServerParams
from eyas.serving.vllm import LocalVllm
from eyas.shards import HiddenStore, SequenceStates, ShardWriter, StoreMeta, label_positions
from eyas.target.model import TargetHead, capture, load_target
from eyas.target.spec import TargetProfile
from tests.tiny_target import profile_of, write_target

pytestmark = [pytest.mark.pipeline, pytest.mark.timeout(600)]

SERVER = ServerParams(
    concurrency=8,
    start_timeout_s=300.0,
    request_timeout_s=120.0,
    idle_timeout_s=None,
    connect_timeout_s=10.0,
    max_attempts=1,
    give_up_after_s=60.0,
    ask_refused_again=False,
    max_model_len=256,
    max_num_seqs=8,
    kv_cache_gib=1,
    extra_args=["--enforce-eager", "--no-enable-prefix-caching"],
)
PROMPTS, ANSWER_TOKENS, DRAFT_TOKENS = 16, 48, 3


@dataclass(frozen=True)
class Held:
    """A tiny target with its greedy answers and hidden states."""

    folder: Path
    profile: TargetProfile
    head: TargetHead
    questions: list[Question]
    store: HiddenStore


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Held:
    folder = write_target(
        tmp_path_factory.mktemp("target") / "tiny",
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
    )
    profile = profile_of(folder, dtype="float32")
    rng = np.random.default_rng(1)
    asked = [
        Question(
            f"d:{number}", "d", None, rng.integers(3, 290, size=5 + number).tolist(), [0] * ANSWER_TOKENS
        )
        for number in range(PROMPTS)
    ]
    with LocalVllm(folder, profile.name, "float32", SERVER, "test-without") as server:
        answers = ask(Endpoint(server.base_url, profile.name, SERVER), asked, concurrency=8)
    questions = [replace(each, answer_ids=answers.token_ids[each.sequence_id]) for each in asked]
    head = TargetHead.read(folder, profile, "float32")
    store = extracted(tmp_path_factory.mktemp("hidden"), folder, profile, head, questions)
    return Held(folder, profile, head, questions, store)


def extracted(
    directory: Path, folder: Path, profile: TargetProfile, head: TargetHead, questions: list[Question]
) -> HiddenStore:
    model = load_target(folder, "float32")
    meta = StoreMeta(
        target_digest=profile.digest,
        target_name=profile.name,
        target_revision=profile.revision,
        source_digest="questions",
        dtype="float32",
        aux_layer_ids=profile.aux_layer_ids,
        backend="transformers",
        versions={},
    )
    writer = ShardWriter(directory, meta, shard_bytes=10**9)
    for question in questions:
        ids = torch.tensor([*question.prompt_ids, *question.answer_ids])
        mask = torch.arange(len(ids)) >= len(question.prompt_ids)
        labels = label_positions(mask)
        states = capture(model, ids.unsqueeze(0), None, profile.aux_layer_ids)
        last = states.last[0, labels.long()].clone()
        logits = head.logits(last)
        assert torch.equal(logits.argmax(-1), ids[labels.long() + 1])  # or nothing below would mean anything
        writer.add(
            SequenceStates(
                question.sequence_id,
                ids,
                mask.to(torch.uint8) * tokenkinds.ANSWER,
                1.0,
                states.aux[0].clone(),
                labels,
                last,
                logits.argmax(-1),
                logits.logsumexp(-1),
            )
        )
    writer.close()
    return HiddenStore(directory)


def trained(held: Held, vocab: VocabMap, flags: dict[str, bool]) -> Drafter:
    """Half-way overfitted on every second answer: some of its drafts are right."""
    torch.manual_seed(0)
    profile = held.profile
    config = DrafterConfig(
        hidden_size=profile.hidden_size,
        target_hidden_size=profile.hidden_size,
        num_aux_layers=len(profile.aux_layer_ids),
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
        **flags,
    )
    drafter = Drafter(config)
    batch = pack([held.store[place] for place in range(0, PROMPTS, 2)], DRAFT_TOKENS)
    labels = vocab.to_draft(batch.argmax)[batch.step_labels]  # [P, S]
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=3e-3)
    for _ in range(60):
        optimizer.zero_grad()
        for step, output in enumerate(unroll(drafter, batch, held.head.embedding, DRAFT_TOKENS)):
            rows = batch.step_valid[:, step] & (labels[:, step] >= 0)
            functional.cross_entropy(drafter.logits(output[rows]), labels[rows, step]).backward(
                retain_graph=True
            )
        optimizer.step()
    return drafter.eval()


def draft_vocab(held: Held) -> VocabMap:
    """Two thirds of the generated tokens and every end of turn."""
    seen = sorted({token for question in held.questions for token in question.answer_ids})
    kept = {token for place, token in enumerate(seen) if place % 3} | set(held.profile.end_of_turn_ids)
    return VocabMap.of_ids(torch.tensor(sorted(kept)), held.profile.vocab_size)


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param({}, id="plain", marks=pytest.mark.stress),
        pytest.param(
            {"norm_before_fc": True, "norm_before_residual": True, "norm_output": True}, id="three norms"
        ),
        pytest.param({"fc_norm": True}, id="fc_norm", marks=pytest.mark.stress),
    ],
)
def test_the_engine_accepts_what_was_simulated(held: Held, tmp_path: Path, flags: dict[str, Any]) -> None:
    vocab = draft_vocab(held)
    drafter = trained(held, vocab, flags)
    write_plain(tmp_path, drafter, vocab, held.profile, "float32")
    check_plain(tmp_path, held.profile)
    rounds = replay(drafter, vocab, held.store, held.head.embedding, DRAFT_TOKENS).rounds
    rounds = rounds.filter(rounds["draft_tokens"] == DRAFT_TOKENS)
    simulated = count(rounds, DRAFT_TOKENS)
    speculative = {"method": "eagle3", "model": str(tmp_path), "num_speculative_tokens": DRAFT_TOKENS}
    with LocalVllm(held.folder, held.profile.name, "float32", SERVER, "test-with", speculative) as server:
        endpoint = Endpoint(server.base_url, held.profile.name, SERVER)
        measured = measure(endpoint, levels(held.questions, [8], prompts_at_1=1), None)

    stored = {each.sequence_id: each.answer_ids for each in held.questions}
    assert compare(stored, measured.answers[8]).differences == []
    assert measured.acceptance is not None
    engine = measured.acceptance["d"]
    assert engine.drafts == simulated.drafts
    # An engine also counts what it accepts behind the end of an answer; the simulation can't know that.
    past_end = int((rounds["past_end"] > 0).sum())
    for in_engine, in_simulation in zip(engine.accepted_at, simulated.accepted_at, strict=True):
        assert in_simulation <= in_engine <= in_simulation + past_end
    assert simulated.length is not None
    assert 1.2 < simulated.length < 3.8  # both ends would hide a mistake
