from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from eyas.reassemble import parts
from eyas.reassemble.parts import PROBES, PartEncoder, packed
from eyas.target.template import load_tokenizer
from tests.families import FAMILIES


@pytest.fixture(scope="module")
def backends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("families")
    return {
        name: load_tokenizer(family.tokenizer_dir(folder)).backend_tokenizer
        for name, family in FAMILIES.items()
    }


class Counting:
    """A tokenizer that notes what it is asked to encode."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.asked: list[str] = []

    def get_added_tokens_decoder(self) -> Any:
        return self._backend.get_added_tokens_decoder()

    def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
        self.asked += texts
        return self._backend.encode_batch_fast(texts, **options)


def whole(backend: Any, texts: list[str]) -> list[bytes]:
    return [packed(backend.encode(text, add_special_tokens=False).ids) for text in texts]


@pytest.mark.parametrize("name", list(FAMILIES))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_parts_are_the_whole(name: str, backends: dict[str, Any], data: st.DataObject) -> None:
    backend = backends[name]
    markers = [token.content for token in backend.get_added_tokens_decoder().values()]
    piece = st.one_of(st.sampled_from([*markers, " ", "\n", "<|im_", "<think"]), st.text(max_size=5))
    texts = data.draw(st.lists(st.lists(piece, max_size=8).map("".join), max_size=8))
    assert PartEncoder(backend).encode(texts) == whole(backend, texts)


def test_what_stands_in_every_text_is_encoded_once(backends: dict[str, Any]) -> None:
    counting = Counting(backends["chatml"])
    encoder = PartEncoder(counting)
    texts = [f"<|im_start|>system Hello there<|im_end|>{number}<|im_end|>" for number in range(500)]
    assert encoder.encode(texts) == whole(backends["chatml"], texts)
    assert sum("Hello" in text for text in counting.asked) <= PROBES + 16
    counting.asked.clear()
    assert encoder.encode([*texts, "<|im_start|>user Hello you"]) == whole(
        backends["chatml"], [*texts, "<|im_start|>user Hello you"]
    )
    assert counting.asked == ["user", " you"]


def test_words_are_forgotten_before_they_fill_the_memory(
    backends: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "MAX_WORDS", 10)
    counting = Counting(backends["chatml"])
    encoder = PartEncoder(counting)
    for start in range(0, 100, 20):
        texts = [f"Hello {number}" for number in range(start, start + 20)]
        assert encoder.encode(texts) == whole(backends["chatml"], texts)
    assert counting.asked.count("Hello") == 6  # by the probes, and in each call


def test_a_tokenizer_whose_tokens_cross_spaces_is_cut_at_control_tokens_only() -> None:
    vocabulary = {"a": 0, " ": 1, "a ": 2, "a a": 3, "[S]": 4}
    backend = Tokenizer(models.BPE(vocabulary, [("a", " "), ("a ", "a")]))
    backend.add_special_tokens(["[S]"])
    counting = Counting(backend)
    encoder = PartEncoder(counting)
    assert encoder.encode(["a a[S]a"]) == whole(backend, ["a a[S]a"]) == [packed([3, 4, 0])]
    counting.asked.clear()
    assert encoder.encode(["a a[S]a", "a[S]a a"]) == whole(backend, ["a a[S]a", "a[S]a a"])
    assert counting.asked == ["a a", "a"]


def test_a_tokenizer_that_looks_beyond_a_cut_gets_its_texts_whole() -> None:
    """Here every text gets a space in front, but no part behind a control token does."""
    vocabulary = {"a": 0, "\u2581a": 1, "\u2581": 2, "[S]": 3}
    backend = Tokenizer(models.BPE(vocabulary, [("\u2581", "a")]))
    backend.normalizer = normalizers.Prepend("\u2581")
    backend.add_special_tokens([AddedToken("[S]", normalized=True)])
    texts = ["a[S]a", "a", "[S]a[S]"]
    assert PartEncoder(backend).encode(texts) == whole(backend, texts)
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    assert PartEncoder(backend).encode(texts) == whole(backend, texts)


def digits(*, joined: bool) -> Tokenizer:
    """Knows digits and `12`, which it makes of two of them only where they are `joined`."""
    vocabulary = {mark: number for number, mark in enumerate([*"a 0123456789", "12"])}
    backend = Tokenizer(models.BPE(vocabulary, [("1", "2")]))
    if not joined:
        backend.pre_tokenizer = pre_tokenizers.Digits(individual_digits=True)
    return backend


def test_digits_are_encoded_once_where_each_stands_for_itself() -> None:
    backend = digits(joined=False)
    counting = Counting(backend)
    encoder = PartEncoder(counting)
    assert encoder.encode(["a 12"]) == whole(backend, ["a 12"]) == [packed([0, 1, 3, 4])]
    counting.asked.clear()
    assert encoder.encode(["a 21a", "1"]) == whole(backend, ["a 21a", "1"])
    assert counting.asked == []


def test_digits_that_are_joined_stay_together_though_no_probe_has_numbers() -> None:
    """Ids of a server that does not join them must not pass for those of this tokenizer."""
    backend = digits(joined=True)
    encoder = PartEncoder(backend)
    assert encoder.encode(["a a"]) == whole(backend, ["a a"])
    assert encoder.encode(["a 12"]) == whole(backend, ["a 12"]) == [packed([0, 1, 12])]


def test_a_tokenizer_without_control_tokens() -> None:
    backend = Tokenizer(models.BPE({"a": 0}, []))
    assert PartEncoder(backend).encode(["aa", ""]) == [packed([0, 0]), b""]


def test_nothing_to_encode(backends: dict[str, Any]) -> None:
    assert PartEncoder(backends["chatml"]).encode([]) == []
