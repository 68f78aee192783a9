"""Real vLLM serves spoiled drafters without a word; the diagnosis names what was spoiled.

The stress test takes drafter, target and stores of a finished default run: of this repository, or of the folder that
EYAS_RUN names. Each drafter gets a server of its own, so it takes a quarter of an hour on two cores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eyas.acceptance import AcceptanceCounts
from eyas.doctor.diagnosis import Diagnosis, EngineCounts, diagnose
from eyas.doctor.material import read_material
from eyas.doctor.view import likelihood
from eyas.drafter.checkpoint import load_drafter
from eyas.drafter.config import DrafterConfig
from eyas.drafter.model import Drafter
from eyas.engine.client import Endpoint, ask
from eyas.engine.counters import acceptance_between, settled_metrics
from eyas.engine.questions import Question
from eyas.serving.params import ServerParams
from eyas.serving.vllm import LocalVllm
from eyas.shards import HiddenStore, SequenceStates, ShardWriter
from eyas.target.model import TargetHead, capture, load_target
from eyas.target.spec import TargetProfile
from tests.doctor.tiny_run import tiny_run
from tests.pipeline.quick_training import new_drafter, train
from tests.pipeline.sabotage import sabotages, write_spoiled
from tests.referee.hand_made import plain_config, plain_tensors, write_folder

pytestmark = pytest.mark.pipeline

SERVER = ServerParams(
    concurrency=8,
    start_timeout_s=300.0,
    request_timeout_s=300.0,
    idle_timeout_s=None,
    connect_timeout_s=10.0,
    max_attempts=1,
    give_up_after_s=60.0,
    ask_refused_again=False,
    max_model_len=1024,
    max_num_seqs=8,
    kv_cache_gib=1,
    extra_args=["--enforce-eager", "--no-enable-prefix-caching"],
)
STEPS = 3
QUESTIONS = 30
LEARNED = 240
OTHER_LAYERS = [5, 11, 22]
IDS = "eagle_aux_hidden_state_layer_ids"


def served(target: Path, folder: Path, asked: Sequence[SequenceStates], max_model_len: int) -> EngineCounts:
    """What real vLLM counts with a drafter over the stored prompts; its answers must be the stored ones."""
    questions = [
        Question(each.sequence_id, "d", None, ids[: _prompt(each)], ids[_prompt(each) :])
        for each in asked
        for ids in [each.token_ids.tolist()]
    ]
    speculative = {"method": "eagle3", "model": str(folder.resolve()), "num_speculative_tokens": STEPS}
    server = replace(SERVER, max_model_len=max_model_len)
    with LocalVllm(target, "t", "float32", server, f"test-{folder.name}", speculative) as vllm:
        endpoint = Endpoint(vllm.base_url, "t", server)
        answers = ask(endpoint, questions, concurrency=8)
        counts = acceptance_between({}, settled_metrics(vllm.base_url))
    assert {each.sequence_id: each.answer_ids for each in questions} == {
        name: answer.token_ids for name, answer in answers.by_id.items()
    }  # whatever it drafts
    assert counts is not None
    return EngineCounts(counts, same_answers=True)


def _prompt(states: SequenceStates) -> int:
    return int((~states.loss_mask).sum())


def test_a_spoiled_drafter_and_a_sound_one_in_the_real_engine(tmp_path: Path) -> None:
    """On a tiny target, so that a server is there in seconds."""
    run = tiny_run(tmp_path, hidden_size=64, num_attention_heads=2, num_key_value_heads=1, head_dim=32)
    # an engine ends where the target says its end token, which tiny_run does not
    asked = [each for each in run.sequences if 0 not in each.token_ids[_prompt(each) : -1].tolist()][
        :QUESTIONS
    ]
    assert len(asked) > QUESTIONS // 2
    order = next(each for each in sabotages(run.head.lm_head) if each.name == "order")
    spoiled = write_spoiled(tmp_path / "spoiled", run.sound, order.spoil)
    chosen = {each.sequence_id for each in asked}
    for folder, cause in ((run.sound, None), (spoiled, "aux_order")):
        counted = served(run.target, folder, asked, max_model_len=64)
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


@dataclass(frozen=True)
class Stores:
    """Other states than those of the run."""

    held_out: HiddenStore
    learned: HiddenStore


@dataclass(frozen=True)
class Run:
    """A finished default run."""

    root: Path

    @property
    def sound(self) -> Path:
        return self.root / "models/export/vllm"

    @property
    def target(self) -> Path:
        return self.root / "models/target"

    def store(self, split: str) -> HiddenStore:
        return HiddenStore(self.root / "data/hidden" / split)

    @property
    def asked(self) -> list[SequenceStates]:
        store = self.store("eval")
        names = [name for name in store.sequence_ids if name.startswith("rg-heldout:")]
        step = max(1, len(names) // QUESTIONS)
        return [store[store.sequence_ids.index(name)] for name in names[::step][:QUESTIONS]]

    def diagnosis(
        self, folder: Path, counted: EngineCounts, stores: Stores | None = None, trained: Path | None = None
    ) -> Diagnosis:
        chosen = {each.sequence_id for each in self.asked}
        material = read_material(
            folder,
            self.target,
            stores.held_out if stores else self.store("eval"),
            stores.learned if stores else self.store("train"),
            engine="vllm",
            steps=STEPS,
            wanted=lambda name: name in chosen,
            trained=trained,
        )
        return diagnose(material, "vllm", counted)


class Workshop:
    """Makes the drafters that are served: spoiled, weak, tuned further."""

    def __init__(self, run: Run, directory: Path) -> None:
        self.run, self.directory = run, directory
        profile = TargetProfile.read(run.root / "models/profile.json")
        self.head = TargetHead.read(run.target, profile, "float32")
        self.drafter, self.vocab = load_drafter(run.root / "models/drafter")
        store = run.store("train")
        order = np.random.default_rng(1).permutation(len(store))[:LEARNED]
        self.sequences = [store[int(place)] for place in order]

    def trained(self, name: str, drafter: Drafter, learn: dict[str, Any], **config: Any) -> Path:
        sequences = learn.pop("sequences", self.sequences)
        train(
            drafter, self.vocab, sequences, self.head.embedding, **{"draft_steps": STEPS, "lr": 1e-3, **learn}
        )
        written = plain_config(drafter, **config)
        kept = {key: value for key, value in written.items() if value is not None}
        return write_folder(self.directory / name, kept, plain_tensors(drafter, self.vocab))

    def new(self, **changes: Any) -> Drafter:
        config: DrafterConfig = replace(self.drafter.config, **changes)
        return new_drafter(config, self.vocab, self.head.lm_head)

    def barely(self) -> Path:
        return self.trained("barely", self.new(), {"steps": 60})

    def tuned(self) -> Path:
        drafter, _ = load_drafter(self.run.root / "models/drafter")
        return self.trained("tuned", drafter, {"steps": 30, "lr": 2e-4})

    def first_step_only(self) -> Path:
        return self.trained("first", self.new(), {"steps": 90, "draft_steps": 1})

    def other_layers(self) -> Stores:
        """States of OTHER_LAYERS, as a run would have stored them."""
        model = load_target(self.run.target, "float32")
        stores = []
        for name, sequences in (("eval", self.run.asked), ("train", self.sequences[: LEARNED // 2])):
            meta = replace(self.run.store(name).meta, aux_layer_ids=OTHER_LAYERS)
            writer = ShardWriter(self.directory / f"hidden-{name}", meta, shard_bytes=10**9)
            for each in sequences:
                states = capture(model, each.token_ids[None].long(), None, OTHER_LAYERS)
                writer.add(replace(each, aux=states.aux[0].clone()))
            writer.close()
            stores.append(HiddenStore(writer.directory))
        return Stores(*stores)

    def default_layers(self, stores: Stores) -> Path:
        """Trained on other layers than the default ones, and its folder says nothing of layers."""
        learn = {"steps": 70, "sequences": list(stores.learned)}
        return self.trained("layers", self.new(aux_layer_ids=OTHER_LAYERS), learn, **{IDS: None})


SKIPPED = ("d2t-absolute", "ids-input", "hidden-norm")
"""vLLM runs into an index error with the first; the others are variants of causes that are there."""


@pytest.mark.stress
@pytest.mark.timeout(3600)
def test_every_cause_in_the_real_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(Path(os.environ.get("EYAS_RUN", Path(__file__).parents[2])))
    if not run.sound.exists():
        pytest.skip("there is no finished default run: dvc pull, or set EYAS_RUN")
    shop = Workshop(run, tmp_path)
    others = shop.other_layers()
    made: list[tuple[str, str | None, Callable[[], Path]]] = [
        ("sound", None, lambda: run.sound),
        ("barely trained", None, shop.barely),
        ("tuned further", None, shop.tuned),
        ("first step only", "first_step_only", shop.first_step_only),
        ("default layers", "aux_layers_default", lambda: shop.default_layers(others)),
    ]
    for each in sabotages(shop.head.lm_head):
        if each.name not in SKIPPED:
            write = lambda each=each: write_spoiled(tmp_path / each.name, run.sound, each.spoil)  # noqa: E731
            made.append((each.name, each.cause, write))
    wrong: list[str] = []
    for name, cause, make in made:
        folder = make()
        counted = served(run.target, folder, run.asked, SERVER.max_model_len)
        found = run.diagnosis(
            folder,
            counted,
            others if cause == "aux_layers_default" else None,
            # the target's head is right where training froze it: only training's own file can tell
            run.root / "models/drafter/drafter.safetensors" if cause == "head_of_target" else None,
        )
        with capsys.disabled():
            print(f"\n{name:16} {_rates(counted.counts)}  {found.verdict}")
            if found.suspects:
                print(f"{'':16} {likelihood(found.suspects[0])}")
        if found.cause != cause:
            wrong.append(f"{name}: {found.verdict}")
        if cause is None:
            assert found.cause is None, found.verdict
    assert len(wrong) <= 1, "\n".join(wrong)


def _rates(counts: AcceptanceCounts) -> str:
    return " ".join(f"{rate:.3f}" for rate in counts.rates if rate is not None)


def test_the_workshop_skips_only_what_exists() -> None:
    names = {each.name for each in sabotages(torch.zeros(0))}
    assert set(SKIPPED) < names
    assert len({each.cause for each in sabotages(torch.zeros(0)) if each.name not in SKIPPED}) + 1 >= 12
