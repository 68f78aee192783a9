"""The decoder of event streams: hand-made streams, and every stream cut at random places."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from eyas.generate.sse import Decoder


def decode(*chunks: bytes) -> list[bytes]:
    decoder = Decoder()
    found = [payload for chunk in chunks for payload in decoder.feed(chunk)]
    return [*found, *decoder.close()]


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[begin:end] for begin, end in itertools.pairwise(bounds)]


def test_a_stream_as_vllm_sends_it() -> None:
    stream = b'data: {"a":1}\n\ndata: {"b":2}\n\ndata: [DONE]\n\n'
    assert decode(stream) == [b'{"a":1}', b'{"b":2}', b"[DONE]"]


def test_comments_other_fields_and_empty_events_are_passed_over() -> None:
    stream = b": keep-alive\n\nevent: message\nid: 7\nretry: 10\ndata: 1\n\n\n\n:\n\ndatax: 2\n\ndata: 3\n\n"
    assert decode(stream) == [b"1", b"3"]


def test_several_data_lines_are_one_payload() -> None:
    assert decode(b'data: {"a":\ndata:1}\ndata\ndata:  x\n\n') == [b'{"a":\n1}\n\n x']


def test_every_line_end_of_the_standard() -> None:
    assert decode(b"data: 1\r\n\r\ndata: 2\r\rdata: 3\n\ndata: 4\r\n\n") == [b"1", b"2", b"3", b"4"]


def test_a_cut_line_end_is_one_line_end() -> None:
    assert decode(b"data: 1\r", b"\ndata: 2\r", b"\n\r", b"\n") == [b"1\n2"]


def test_an_event_is_given_as_soon_as_its_end_is_there() -> None:
    decoder = Decoder()
    assert list(decoder.feed(b"data: 1\n")) == []
    assert list(decoder.feed(b"\n")) == [b"1"]
    assert list(decoder.feed(b"data: 2\r")) == []
    assert list(decoder.feed(b"\r")) == [b"2"]


def test_at_the_end_a_whole_line_counts_and_a_cut_one_does_not() -> None:
    assert decode(b"data: 1\n\ndata: [DONE]\n") == [b"1", b"[DONE]"]
    assert decode(b'data: 1\n\ndata: {"choi') == [b"1"]


def test_a_byte_order_mark_only_at_the_start() -> None:
    assert decode(b"\xef\xbb\xbfdata: 1\n\n\xef\xbb\xbfdata: 2\n\n") == [b"1"]


def test_characters_that_only_text_tools_take_for_line_ends() -> None:
    payload = '{"a":"\u2028\u2029\u0085\x0b\x0c"}'.encode()
    assert decode(b"data: " + payload + b"\n\n") == [payload]


def test_a_line_of_30_mb_in_small_chunks() -> None:
    payload = b"x" * 30_000_000
    stream = b"data: " + payload + b"\n\n"
    chunks = [stream[start : start + 65536] for start in range(0, len(stream), 65536)]
    assert decode(*chunks, b"data: [DONE]\n\n") == [payload, b"[DONE]"]


EVENTS = st.lists(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=20), min_size=1, max_size=3
    ),
    max_size=6,
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(EVENTS, ENDS, st.lists(st.integers(min_value=0), max_size=12), st.booleans())
def test_payloads_do_not_depend_on_chunk_boundaries(
    events: list[list[str]], end: bytes, places: list[int], comments: bool
) -> None:
    stream = b""
    for lines in events:
        stream += b": ping" + end + end if comments else b""
        stream += b"".join(b"data: " + line.encode() + end for line in lines) + end
    expected = ["\n".join(lines).encode() for lines in events]
    assert decode(stream) == expected
    assert decode(*cut(stream, places)) == expected
    assert decode(*(stream[index : index + 1] for index in range(len(stream)))) == expected
