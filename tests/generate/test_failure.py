"""Which of a server's errors are worth another try."""

from __future__ import annotations

from typing import Any

import pytest

from eyas.generate.failure import RowFailure, error_failure, refuse_error
from tests.generate.replies import CONTEXT_MESSAGE, ERRORS


@pytest.mark.parametrize(("body", "kind", "reason"), ERRORS.values(), ids=ERRORS)
def test_errors_that_come_with_status_200(body: Any, kind: str, reason: str) -> None:
    with pytest.raises(RowFailure) as caught:
        refuse_error(body)
    assert (caught.value.kind, caught.value.reason) == (kind, reason)
    assert caught.value.detail


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"error": None},
        {"error": {}},
        {"error": ""},
        {"object": "chat.completion"},
        {"choices": [{"error": None}]},
    ],
)
def test_what_is_no_error(body: Any) -> None:
    refuse_error(body)


@pytest.mark.parametrize(
    ("error", "status", "kind", "reason"),
    [
        ({"message": "x"}, 400, "permanent", "http_400"),
        ({"message": "x"}, 422, "permanent", "http_422"),
        ({"message": "x"}, 404, "permanent", "http_404"),
        ({"message": "x"}, 403, "content", "http_403"),
        ({"message": "x"}, 408, "transient", "http_408"),
        ({"message": "x"}, 409, "transient", "http_409"),
        ({"message": "x"}, 425, "transient", "http_425"),
        ({"message": "x"}, 429, "transient", "http_429"),
        ({"message": "x"}, 500, "transient", "http_500"),
        ({"message": "x"}, 503, "transient", "http_503"),
        ({"message": "x", "code": 503}, 400, "transient", "http_503"),
        ({"message": "x", "code": "400"}, 500, "permanent", "http_400"),
        ({"message": "x", "code": True}, 500, "transient", "http_500"),
        ({"message": "x", "code": 0}, 500, "transient", "http_500"),
        ({"message": "x", "type": "BadRequestError", "code": None}, None, "permanent", "http_400"),
        ({"message": CONTEXT_MESSAGE}, 400, "permanent", "context_length"),
        ({"message": CONTEXT_MESSAGE}, None, "permanent", "context_length"),
        ({"message": "The context length cache failed"}, 500, "transient", "http_500"),
        ({"detail": "Unexpected fields in the request: {'top_k'}"}, 422, "permanent", "http_422"),
        ("boom", 502, "transient", "http_502"),
        ("boom", None, "transient", "error_in_reply"),
        ({}, None, "transient", "error_in_reply"),
    ],
)
def test_its_own_code_wins_over_the_status(error: Any, status: int | None, kind: str, reason: str) -> None:
    failure = error_failure(error, status)
    assert (failure.kind, failure.reason) == (kind, reason)


def test_a_failure_knows_its_status() -> None:
    assert error_failure({"message": "x"}, 503).status == 503
    assert error_failure({"message": "x", "code": "429"}, 200).status == 429
    assert error_failure({"message": CONTEXT_MESSAGE}, 400).status == 400
    assert error_failure("boom", None).status is None


@pytest.mark.parametrize(
    "message",
    [
        "the request exceeds the available context size, try increasing it",
        "The decoder prompt (length 9) is longer than the maximum model length of 8",
        "Requested token count exceeds the model's maximum context length of 8 tokens",
    ],
)
def test_prompts_that_do_not_fit_in_the_words_of_several_servers(message: str) -> None:
    assert error_failure({"message": message, "code": 400}, 400).reason == "context_length"


def test_the_servers_words_are_kept_up_to_500_characters() -> None:
    assert error_failure({"message": "no such tool", "code": 400}, None).detail == "no such tool"
    assert error_failure({"detail": "no such key"}, 422).detail == "no such key"
    assert len(error_failure("x" * 9000, 500).detail) == 500
    assert error_failure({"weird": 1}, 500).detail == "{'weird': 1}"


def test_a_code_of_many_digits_is_no_code() -> None:
    assert error_failure({"message": "x", "code": "9" * 5000}, 500).reason == "http_500"


def test_a_failure_is_one_line_that_no_terminal_obeys() -> None:
    failure = error_failure("<html>\n  \x1b[31mbusy\n</html>", 502)
    assert str(failure) == "http_502: <html> \\x1b[31mbusy </html>"
    assert failure.detail == "<html>\n  \x1b[31mbusy\n</html>"
