"""The index of a journal, against a dict."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas import keyindex
from eyas.keyindex import KeyIndex, Place

KEYS = st.text(max_size=3) | st.sampled_from(["", "é", "\u2028", "a" * 1000])
STEPS = st.lists(st.tuples(KEYS, st.integers(0, 2**46), st.booleans()), max_size=40)


def filled(steps: list[tuple[str, int, bool]]) -> KeyIndex:
    index = KeyIndex()
    for key, offset, is_error in steps:
        index.put(key, Place(offset, is_error))
    return index


@given(steps=STEPS, others=st.lists(KEYS))
def test_it_holds_the_last_answer_or_else_the_last_error(
    steps: list[tuple[str, int, bool]], others: list[str]
) -> None:
    answers = {key: Place(offset, False) for key, offset, is_error in steps if not is_error}
    errors = {key: Place(offset, True) for key, offset, is_error in steps if is_error}
    index = filled(steps)
    assert len(index) == len(answers)
    for key in [*answers, *errors, *others]:
        assert index.get(key) == answers.get(key, errors.get(key))


@given(steps=STEPS)
def test_records_of_one_bucket_do_not_disturb_each_other(steps: list[tuple[str, int, bool]]) -> None:
    """With 14 equal bytes in all digests, every match that is not at the start of a record would be taken."""
    rests: dict[bytes, bytes] = {}

    def narrow(key: str) -> bytes:
        number = rests.setdefault(key.encode(errors="surrogatepass"), len(rests).to_bytes(1))
        return b"\x00\x00" + b"\x00" * 13 + number

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keyindex, "_digest", narrow)
        index = filled(steps)
        for key, _, _ in steps:
            expected = [Place(offset, False) for name, offset, bad in steps if name == key and not bad]
            expected = expected or [Place(offset, True) for name, offset, bad in steps if name == key]
            assert index.get(key) == expected[-1]


def test_a_key_takes_few_bytes_however_long_it_is() -> None:
    index = KeyIndex()
    count = 100_000
    for number in range(count):
        index.put(f"{number:0100}", Place(number * 10_000, False))
    used = sum(sys.getsizeof(bucket) for bucket in index._buckets) + sys.getsizeof(index._buckets)
    assert len(index) == count
    assert used < 100 * count  # a million keys well below 100 MB; a dict takes more than twice that
