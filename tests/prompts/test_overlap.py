from __future__ import annotations

import polars as pl

from eyas.identity import prompt_hash
from eyas.prompts.overlap import Taken, keys, overlap, turn_hashes


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_every_generated_turn_has_the_hash_of_the_questions_up_to_it() -> None:
    system, result = {"role": "system", "content": "s"}, {"role": "tool", "content": "r"}
    messages = [system, *user("a"), result, *user("b")]
    assert turn_hashes(messages) == [
        prompt_hash(user("a")), prompt_hash(user("a")), prompt_hash(user("a") + user("b")),
    ]  # fmt: skip
    given = [*user("a"), {"role": "assistant", "content": "x"}, *user("b")]
    assert turn_hashes(given) == [prompt_hash(given)]


def test_a_prompt_is_rejected_once_and_names_the_first_owner_of_its_first_taken_turn() -> None:
    prompts = pl.DataFrame({"sample_id": ["a:1", "a:2", "a:3"], "asked": [["x", "y"], ["z"], ["y", "x"]]})
    theirs = pl.DataFrame({"key": ["y", "x", "x"], "owner": ["e:1", "e:2", "e:3"]})
    assert overlap(prompts, Taken("asked", theirs, "taken")).rows() == [
        ("a:1", "taken", "the same prompt as e:2"),
        ("a:3", "taken", "the same prompt as e:1"),
    ]


def test_whole_conversations_are_compared_by_their_own_hash() -> None:
    prompts = pl.DataFrame({"sample_id": ["a:1"], "asked": [["x", "y"]], "prompt_hash": ["y"]})
    assert keys(prompts, "prompt_hash").rows() == [("a:1", "y")]
    assert keys(prompts, "asked").rows() == [("a:1", "x"), ("a:1", "y")]
