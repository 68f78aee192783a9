from __future__ import annotations

import hashlib
import unicodedata

import pytest

from eyas.identity import normalised, prompt_hash


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_hash_is_sha256_of_the_normalised_user_turns() -> None:
    assert prompt_hash(user(" What's\n UP ")) == hashlib.sha256(b'["what\'s up"]').hexdigest()


@pytest.mark.parametrize(
    "other",
    [
        "why is it so? ",
        "Why  is\tit so?",
        "WHY IS IT SO?",
        "\ufeffWhy is it so?",
        "Why is it so\uff1f",
        "Why\u00a0is it so?",
    ],
    ids=["trailing-space", "inner-space", "case", "byte-order-mark", "full-width", "no-break-space"],
)
def test_case_I08_spellings_of_one_prompt_have_one_hash(other: str) -> None:
    assert prompt_hash(user(other)) == prompt_hash(user("Why is it so?"))


def test_case_I08_composed_and_decomposed_letters_are_equal() -> None:
    text = "Où est le café ?"
    assert normalised(unicodedata.normalize("NFD", text)) == normalised(unicodedata.normalize("NFC", text))


def test_other_words_are_another_prompt() -> None:
    assert prompt_hash(user("add 1 and 2")) != prompt_hash(user("add 12"))
    assert prompt_hash(user("ab") + user("c")) != prompt_hash(user("a") + user("bc"))


def test_only_user_turns_count() -> None:
    rich = [
        {"role": "system", "content": "S"},
        *user("a"),
        {"role": "assistant", "content": "b"},
        *user("c"),
    ]
    assert prompt_hash(rich) == prompt_hash([*user("a"), {"role": "assistant", "content": "z"}, *user("c")])
