from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from eyas.evaluate.rounds import Answers, Rounds, rounds_of

from .engine_walk import Speculation

Array = NDArray[Any]
CHANCES = st.sampled_from([0.0, 0.0, 0.25, 0.5, 0.9, 1.0, 1.0])


def alone(follow: Array, expected: Array | None = None, spare: int = 0) -> list[Rounds]:
    table = past_end_zero(np.asarray(follow, dtype=np.float64))
    other = table if expected is None else past_end_zero(np.asarray(expected, dtype=np.float64))
    return rounds_of(Answers.of([table], [other]), spare)


def past_end_zero(table: Array) -> Array:
    positions, steps = np.indices(table.shape)
    return np.where(positions + steps < len(table), table, 0.0)


@pytest.mark.parametrize(
    ("hits", "positions", "accepted", "judged", "open_end"),
    [
        ([[0, 0], [0, 0], [0, 0]], [0, 1, 2], [0, 0, 0], [2, 2, 1], [0, 0, 0]),
        ([[1, 1], [1, 1], [1, 0]], [0], [2], [2], [0]),
        ([[1, 0], [1, 1], [1, 0]], [0, 2], [1, 1], [2, 1], [0, 1]),
        ([[0, 1], [1, 1], [0, 0]], [0, 1], [0, 2], [2, 2], [0, 0]),
        ([[1, 0]], [0], [1], [1], [1]),
        ([[0, 0]], [0], [0], [1], [0]),
    ],
    ids=[
        "all missed",
        "all accepted",
        "last token accepted, bonus past the end",
        "a later hit does not count",
        "one accepted",
        "one missed",
    ],
)
def test_rounds_of_hand_made_hits(
    hits: list[list[int]],
    positions: list[int],
    accepted: list[int],
    judged: list[int],
    open_end: list[int],
) -> None:
    rounds = alone(np.array(hits))[-1]
    assert rounds.position.tolist() == positions
    assert rounds.weight.tolist() == [1.0] * len(positions)
    assert rounds.accepted_at.sum(axis=1).tolist() == accepted
    assert rounds.judged.tolist() == judged
    assert rounds.open_end.tolist() == open_end


def test_an_answer_of_one_token_has_no_rounds() -> None:
    empty = np.zeros((0, 2))
    found = rounds_of(Answers.of([empty, np.ones((1, 2))], [empty, np.ones((1, 2))]))
    assert [rounds.answer.tolist() for rounds in found] == [[1], [1]]


@dataclass
class Enumerated:
    weight: dict[int, float]
    accepted_at: dict[int, list[float]]


def enumerated(follow: Array, draft_tokens: int, spare: int) -> Enumerated:
    """Every way that the coin flips of the rounds can go, one after another."""
    anchors = len(follow)
    weight: dict[int, float] = {}
    accepted_at: dict[int, list[float]] = {}

    def go(position: int, chance: float) -> None:
        if position >= anchors - spare:
            return
        weight[position] = weight.get(position, 0.0) + chance
        counts = accepted_at.setdefault(position, [0.0] * draft_tokens)
        for accepted in range(draft_tokens + 1):
            taken = chance * float(np.prod(follow[position, :accepted]))
            if accepted < draft_tokens:
                taken *= 1 - follow[position, accepted]
            if taken > 0:
                for place in range(accepted):
                    counts[place] += taken
                go(position + accepted + 1, taken)

    go(0, 1.0)
    return Enumerated(weight, accepted_at)


@settings(max_examples=150)
@given(st.integers(1, 5), st.integers(1, 3), st.integers(0, 2), st.data())
def test_expected_rounds_equal_an_enumeration(
    anchors: int, most: int, spare: int, data: st.DataObject
) -> None:
    cells = data.draw(st.lists(CHANCES, min_size=anchors * most, max_size=anchors * most))
    follow = past_end_zero(np.reshape(cells, (anchors, most)))
    for rounds in alone(follow, spare=spare):
        expected = enumerated(follow[:, : rounds.draft_tokens], rounds.draft_tokens, spare)
        assert dict(zip(rounds.position.tolist(), rounds.weight, strict=True)) == pytest.approx(
            expected.weight
        )
        for place, position in enumerate(rounds.position.tolist()):
            assert (rounds.weight[place] * rounds.followed[place]).tolist() == pytest.approx(
                expected.accepted_at[position]
            )


@settings(max_examples=60)
@given(st.integers(1, 6), st.integers(1, 4), st.data())
def test_tokens_are_conserved(anchors: int, most: int, data: st.DataObject) -> None:
    """Accepted tokens and one of the target's for each round are all tokens behind the first, or overshoot the end."""
    cells = data.draw(st.lists(CHANCES, min_size=anchors * most, max_size=anchors * most))
    follow = past_end_zero(np.reshape(cells, (anchors, most)))
    for rounds in alone(follow):
        accepted = (rounds.weight[:, None] * rounds.followed).sum()
        whole = np.minimum(rounds.judged, rounds.draft_tokens) == anchors - rounds.position
        last = (
            rounds.followed[np.arange(len(rounds.judged)), rounds.judged - 1] * whole
        )  # the bonus is past the end
        assert rounds.weight.sum() + accepted - (rounds.weight * last).sum() == pytest.approx(anchors)


def test_answers_of_a_batch_do_not_touch() -> None:
    random = np.random.default_rng(0)
    tables = [past_end_zero(random.random((length, 3))) for length in (4, 0, 7, 1)]
    together = rounds_of(Answers.of(tables, tables))
    for place, table in enumerate(tables):
        for one, joint in zip(alone(table), together, strict=True):
            own = joint.answer == place
            assert joint.position[own].tolist() == one.position.tolist()
            assert joint.weight[own].tolist() == pytest.approx(one.weight.tolist())
            assert joint.accepted_at[own] == pytest.approx(one.accepted_at)


@dataclass
class World:
    """A target and a drafter that look at the last token alone; token 0 ends an answer."""

    target: Array
    """[V, V]: what follows a token."""
    drafter: Array
    """[K, V, V]: what each draft step says follows a token, as logits."""
    most_tokens: int

    @property
    def vocab(self) -> int:
        return len(self.target)


def make_world(seed: int = 3, vocab: int = 5, steps: int = 3) -> World:
    random = np.random.default_rng(seed)
    logits = random.normal(scale=1.5, size=(vocab, vocab))
    logits[:, 0] -= 1.0
    target = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    noise = random.normal(scale=0.8, size=(steps, vocab, vocab))
    return World(target, logits + noise, most_tokens=12)


def engine_counts(world: World, speculation: Speculation, answers: int) -> Array:
    """Drafts, then accepted_at, of an engine that samples; what is accepted behind an answer's end is not counted."""
    steps = len(world.drafter)
    counts = np.zeros(1 + steps)
    for _ in range(answers):
        tokens = [speculation.sample(world.target[1])]
        while tokens[-1] != 0 and len(tokens) < world.most_tokens:
            counts[0] += 1
            known = list(tokens)
            fed = tokens[-1]
            for step in range(steps):
                q = speculation.drafted(world.drafter[step, fed])
                proposal = speculation.sample(q)
                if known[-1] == 0 or len(known) >= world.most_tokens:
                    break
                taken = speculation.judge(proposal, world.target[known[-1]], q)
                known.append(taken)
                if taken != proposal:  # a rejected token is never sampled again: nothing is left of its p - q
                    break
                counts[1 + step] += 1
                fed = proposal
            else:
                known.append(speculation.sample(world.target[known[-1]]))
            tokens = known[: world.most_tokens]
    return counts


def stored_counts(world: World, drafting: str, answers: int, seed: int) -> list[Array]:
    """The same numbers from plainly sampled answers, each answer's [1 + K]."""
    speculation = Speculation(1.0, drafting, 1000 + seed)
    tables_follow, tables_expected = [], []
    for _ in range(answers):
        tokens = [speculation.sample(world.target[1])]
        while tokens[-1] != 0 and len(tokens) < world.most_tokens:
            tokens.append(speculation.sample(world.target[tokens[-1]]))
        anchors, steps = len(tokens) - 1, len(world.drafter)
        follow, expected = np.zeros((anchors, steps)), np.zeros((anchors, steps))
        for position in range(anchors):
            for step in range(min(steps, anchors - position)):
                before, after = tokens[position + step], tokens[position + step + 1]
                p, q = world.target[before], speculation.drafted(world.drafter[step, before])
                follow[position, step] = min(1.0, q[after] / p[after])
                expected[position, step] = np.minimum(p, q).sum()
        tables_follow.append(follow)
        tables_expected.append(expected)
    rounds = rounds_of(Answers.of(tables_follow, tables_expected))[-1]
    rows = np.column_stack((rounds.weight, rounds.weight[:, None] * rounds.accepted_at))
    followed = np.column_stack((rounds.weight, rounds.weight[:, None] * rounds.followed))
    return [
        np.stack([np.bincount(rounds.answer, column, minlength=answers) for column in table.T], axis=1)
        for table in (rows, followed)
    ]


@pytest.mark.parametrize("drafting", ["greedy", "probabilistic"])
def test_sampled_answers_predict_what_an_engine_counts(drafting: str) -> None:
    """Monte Carlo against Monte Carlo, independent random numbers: means within five standard errors."""
    world = make_world()
    expected, followed = stored_counts(world, drafting, answers=2000, seed=1)
    blocks = np.array(
        [engine_counts(world, Speculation(1.0, drafting, seed), answers=100) / 100 for seed in range(20)]
    )
    for table in (expected, followed):
        error = np.sqrt(table.var(axis=0) / len(table) + blocks.var(axis=0, ddof=1) / len(blocks))
        assert (np.abs(table.mean(axis=0) - blocks.mean(axis=0)) < 5 * error).all()
    rates = blocks.mean(axis=0)[1:] / blocks.mean(axis=0)[0]
    assert (rates > 0.1).all()
    assert (rates < 0.9).all()


@pytest.mark.parametrize("drafting", ["greedy", "probabilistic"])
def test_expectations_vary_less_than_what_happened(drafting: str) -> None:
    world = make_world()
    means: dict[str, list[float]] = {"expected": [], "followed": []}
    for seed in range(40):
        expected, followed = (table.sum(axis=0) for table in stored_counts(world, drafting, 40, seed))
        means["expected"].append(expected[1] / expected[0])
        means["followed"].append(followed[1] / followed[0])
    assert np.var(means["expected"]) < 0.8 * np.var(means["followed"])
