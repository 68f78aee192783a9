"""From findings, repairs and planted faults to the likeliest cause, or to the word that there is none.

Two questions, in this order. Does the engine do what the folder says? Then its counts are those simulated with the
folder as it is; otherwise a planted fault explains them better. And does the folder say what was trained? Then no
other way to read it predicts the target's tokens better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from eyas.acceptance import AcceptanceCounts
from eyas.doctor.causes import title
from eyas.doctor.faults import ENGINE, faults
from eyas.doctor.hypothesis import Change, Hypothesis
from eyas.doctor.likelihood import Advantage, Fit, advantage, fit
from eyas.doctor.material import Material
from eyas.doctor.repairs import layer_repairs, other_layers, repairs
from eyas.doctor.statics import DOUBT, FAULT, Finding, findings
from eyas.doctor.trials import MIN_LOG_RATIO, Judge, Trial, fed, simulate_hypothesis, tells
from eyas.referee.prediction import Predictions
from eyas.referee.simulation import Simulated, simulate

COLLAPSED = 0.5
"""Share of the first step's accuracy below which the second counts as untrained."""
FITS = 3.5
"""Standard deviations up to which the engine's counts are those of the simulation."""
MAX_STATE_ERROR = 0.03
"""Relative error of recomputed states against stored ones; rounding to bfloat16 gives 0.002, 8-bit storage 0.02."""


@dataclass(frozen=True)
class EngineCounts:
    """What an engine counted."""

    counts: AcceptanceCounts
    same_answers: bool
    """Over the very answers that are simulated, so that chance has hardly a part in it."""


@dataclass(frozen=True)
class Suspect:
    """A cause, and what speaks for it."""

    cause: str
    where: str
    """folder | engine | training | target"""
    what: str
    change: Change | None
    log_ratio: float | None
    """Natural logarithm of its likelihood against nothing being wrong; None: read off the folder, and certain."""
    against_next: float | None
    """The same against the next suspect of its kind; None if certain."""
    then: AcceptanceCounts | None
    """Folder: the simulated acceptance with the repair. Engine: the one that the fault would give."""


@dataclass(frozen=True)
class Diagnosis:
    """The answer, and everything that it rests on."""

    suspects: list[Suspect]
    """The likeliest first; empty: no integration fault."""
    findings: list[Finding]
    as_is: AcceptanceCounts | None
    """Simulated with the folder as it is; None if the states of its layers can't be had."""
    accuracy: list[float]
    """[K]: tokens predicted right by draft step, each fed with the right tokens; on the answers readings are judged on."""
    engine: EngineCounts | None
    fit: Fit | None
    """Of the engine's counts to the folder as it is."""
    skipped: list[str] = field(default_factory=list)
    """Hypotheses that could not be tried, and why."""

    @property
    def cause(self) -> str | None:
        """Key of the likeliest cause; None: no integration fault."""
        return self.suspects[0].cause if self.suspects else None

    @property
    def engine_follows(self) -> bool | None:
        """Whether the engine does what the folder says; None without its counts."""
        return None if self.fit is None else self.fit.worst <= FITS

    @property
    def verdict(self) -> str:
        """One paragraph for people."""
        if self.suspects:
            first = self.suspects[0]
            return f"likeliest cause: {title(first.cause)} ({first.where}: {first.what})"
        if self.engine_follows is None:
            return "no integration fault in the folder; without an engine's counts nothing is said about the engine"
        if not self.engine_follows:
            return (
                "the engine's counts are neither those of the folder nor those of a fault that is known here; "
                "were they counted on prompts of the same kind, greedily, by an engine that did nothing else?"
            )
        length = self.engine.counts.length if self.engine else None
        own = (
            f"the acceptance length of {length:.2f} is the drafter's own" if length else "nothing was drafted"
        )
        return f"no integration fault: the engine accepts what the folder predicts; {own}"


def diagnose(material: Material, engine: str, counted: EngineCounts | None) -> Diagnosis:
    """Find the cause of what an engine counted, or of a folder that is not what was trained.

    Args:
        material: folder, target, answers.
        engine: whose loader rules apply: vllm | sglang.
        counted: None if no engine ran.
    """
    found, skipped = findings(material, engine), list[str]()
    plain = Hypothesis("", "as it is", Change("", "", "", ""), material.as_is, material.as_is.layer_ids)
    for ids in [material.store_ids, material.as_is.layer_ids, *other_layers(material)]:
        material.layers.watch(number for number in ids if 1 <= number < material.target.num_layers)
    judge = Judge(material, plain, skipped)
    as_is, held = judge.usual, fed(material, material.held_out, plain)
    if as_is is None or held is None:
        skipped.append(f"the folder as it is: {material.layers.unavailable}")
        return Diagnosis(_unrun(found), found, None, [], counted, None, skipped)
    simulated = simulate(material.as_is, held, material.steps)
    base = fit(counted.counts, simulated, same_answers=counted.same_answers) if counted else None
    suspects: list[Suspect] = []
    certain = any(each.severity == FAULT and each.cause for each in found)
    if counted and base and base.worst > FITS and not certain:
        suspects = _engine_suspects(material, counted, base, skipped)
    if not suspects:
        suspects = _folder_suspects(material, found, as_is, judge)
    return Diagnosis(suspects, found, simulated.total, as_is.accuracy, counted, base, skipped)


def _unrun(found: Sequence[Finding]) -> list[Suspect]:
    """What can be said without running anything."""
    certain = [each for each in found if each.severity == FAULT]
    layers = [
        each for each in found if each.severity == DOUBT and each.change and "layer_ids" in each.change.key
    ]
    return [
        Suspect(each.cause or "aux_layers_other", "folder", each.text, each.change, None, None, None)
        for each in (*certain, *layers)
    ]


def _folder_suspects(
    material: Material, found: Sequence[Finding], as_is: Predictions, judge: Judge
) -> list[Suspect]:
    trials = _better(material, judge)
    certain = [each for each in found if each.severity == FAULT and each.cause]
    known = {each.cause for each in certain}
    suspects = [_certain(material, each, trials) for each in certain]
    only_first = collapsed(trials[0].predictions if trials else as_is)
    if not suspects and tells(only_first) and not _helps_first_step(trials, judge):
        suspects.append(_untrained(only_first))
    suspects += _tried(material, [each for each in trials if each.hypothesis.cause not in known])
    return suspects


def _better(material: Material, judge: Judge) -> list[Trial]:
    """Repairs that predict better beyond doubt. Stored layers are only doubted if nothing else is found."""
    trials = judge.better(repairs(material))
    if material.as_is.layer_ids != material.store_ids or not trials:
        trials += judge.better(layer_repairs(material))
    return sorted(trials or _stored_layers(material, judge), key=lambda each: -each.advantage.nats)


def _stored_layers(material: Material, judge: Judge) -> list[Trial]:
    """The layers that were stored, if the folder says others and predicts no better with them.

    A run stores what its drafter is trained on, and neighbours of these layers may predict nearly as well: too nearly to be
    beyond doubt on few sequences.
    """
    stored = [each for each in layer_repairs(material) if each.layer_ids == material.store_ids]
    leaning = [judge.leaning(each) for each in stored]
    return [each for each in leaning if each is not None]


def _certain(material: Material, finding: Finding, trials: Sequence[Trial]) -> Suspect:
    same = next((each for each in trials if each.hypothesis.cause == finding.cause), None)
    then = simulate_hypothesis(material, same.hypothesis) if same else None
    return Suspect(
        finding.cause or "",
        "folder",
        finding.text,
        finding.change,
        None,
        None,
        then.total if then else None,
    )


def _tried(material: Material, trials: Sequence[Trial]) -> list[Suspect]:
    suspects = []
    for place, trial in enumerate(trials):
        rest = [each for each in trials[place + 1 :] if each.hypothesis.cause != trial.hypothesis.cause]
        against = trial.against(rest[0]) if rest else trial.advantage
        then = simulate_hypothesis(material, trial.hypothesis) if place == 0 else None
        suspects.append(
            Suspect(
                trial.hypothesis.cause,
                "folder",
                trial.hypothesis.what,
                trial.hypothesis.change,
                trial.advantage.log_ratio,
                against.log_ratio,
                then.total if then else None,
            )
        )
    return suspects


def collapsed(found: Predictions) -> Advantage:
    """How clearly the second draft step predicts less than COLLAPSED of what the first one does."""
    if found.hits.shape[1] < 2:
        return Advantage(0.0, 0.0, 0.0)
    shares = found.hits / np.maximum(found.rows, 1.0)
    return advantage(COLLAPSED * shares[:, 0], shares[:, 1])


def _helps_first_step(trials: Sequence[Trial], judge: Judge) -> bool:
    """A repair of the first step is more than the chance liking of steps that were never trained."""
    for each in trials:
        plain = judge.as_is(len(each.predictions.rows))
        if plain is not None and tells(
            advantage(each.predictions.log_likelihood[:, 0], plain.log_likelihood[:, 0])
        ):
            return True
    return False


def _untrained(found: Advantage) -> Suspect:
    change = Change("params.yaml", "train.ttt_steps", "1", "as many as are drafted")
    what = f"the second draft step predicts less than {COLLAPSED:.0%} of what the first does"
    return Suspect("first_step_only", "training", what, change, found.log_ratio, found.log_ratio, None)


def _engine_suspects(
    material: Material, counted: EngineCounts, base: Fit, skipped: list[str]
) -> list[Suspect]:
    drifted = _drift(material, counted, base)
    if drifted is not None:
        return [drifted]
    results: list[tuple[Hypothesis, Simulated, Fit]] = []
    for hypothesis in faults(material):
        simulated = simulate_hypothesis(material, hypothesis)
        if simulated is None:
            skipped.append(f"{hypothesis.what}: {material.layers.unavailable}")
            continue
        results.append(
            (hypothesis, simulated, fit(counted.counts, simulated, same_answers=counted.same_answers))
        )
    results.sort(key=lambda each: -each[2].log_likelihood)
    suspects = []
    for place, (hypothesis, simulated, found) in enumerate(results):
        ratio = found.log_likelihood - base.log_likelihood
        rest = [each for each in results[place + 1 :] if each[0].cause != hypothesis.cause]
        if ratio < MIN_LOG_RATIO / 2:
            break
        following = max(rest[0][2].log_likelihood if rest else base.log_likelihood, base.log_likelihood)
        where = "target" if hypothesis.cause == "other_target" else "engine"
        suspects.append(
            Suspect(
                hypothesis.cause,
                where,
                hypothesis.what,
                hypothesis.change,
                ratio,
                found.log_likelihood - following,
                simulated.total,
            )
        )
    return suspects


def _drift(material: Material, counted: EngineCounts, base: Fit) -> Suspect | None:
    """The target at hand does not give the stored states: the engine serves another one than was extracted from."""
    ids = material.store_ids
    few = material.layers.of(material.held_out[:2], ids)
    if few is None:
        return None
    errors = [
        float(np.linalg.norm(new.aux - old.aux) / np.linalg.norm(old.aux))
        for new, old in zip(few, material.held_out[:2], strict=True)
    ]
    if max(errors) <= MAX_STATE_ERROR:
        return None
    answers = material.layers.of(material.held_out, ids)
    simulated = simulate(material.as_is, answers or [], material.steps)
    found = fit(counted.counts, simulated, same_answers=False)
    ratio = max(found.log_likelihood - base.log_likelihood, 0.0)
    change = Change(ENGINE, "target", "another revision or quantisation", "the one of the hidden states")
    what = f"its states differ from the stored ones by {max(errors):.0%}"
    return Suspect("other_target", "target", what, change, ratio, ratio, simulated.total)
