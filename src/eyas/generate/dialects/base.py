"""What a dialect is: how a server is asked, and how its reply is read into the one record type."""

from __future__ import annotations

from typing import Any, Protocol

from eyas.generate.record import Answer
from eyas.generate.request import ChatRequest


class Collector(Protocol):
    """Collects the events of one streamed reply."""

    def feed(self, event: Any) -> None:
        """Take the JSON value of one `data:` line, `[DONE]` apart.

        Raises:
            RowFailure: the event is an error, or contradicts those before it; the stream can be closed.
        """

    def answer(self, done: bool) -> Answer:
        """The answer, once the stream has ended; `done`: with `[DONE]`.

        Equal to what `Dialect.read` makes of the same generation in one piece, but for `streamed`.

        Raises:
            RowFailure: the stream ended too early, or what it brought is no answer.
        """


class Dialect(Protocol):
    """One kind of server. Has no state of single requests, so that any number may be in flight."""

    @property
    def name(self) -> str:
        """As in `generate.dialect`."""

    @property
    def path(self) -> str:
        """Where to POST, from the server's root: `/v1/chat/completions`."""

    @property
    def returns_ids(self) -> bool:
        """Every answer carries prompt and generated token ids."""

    @property
    def supports_stream(self) -> bool:
        """The server can stream without losing what `returns_ids` promises."""

    def body(self, request: ChatRequest) -> dict[str, Any]:
        """The JSON body, with every sampling parameter explicit: a server fills gaps from the model's files.

        Raises:
            RowFailure: permanent; the prompt can't be rendered.
        """

    def read(self, reply: Any, request: ChatRequest) -> Answer:
        """Read the JSON value of a reply that was not streamed.

        Raises:
            RowFailure: the reply is an error, is not finished, or contradicts itself.
        """

    def collector(self, request: ChatRequest) -> Collector:
        """For the reply to one request of a streaming run; a new attempt needs a new one."""
