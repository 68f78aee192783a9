"""Whether texts can stand for the tokens of an answer, judged by their number: for servers that send no ids.

More tokens in the texts than were generated: something was put in, as the spaces around added tokens of
vllm-project/vllm#33457. Fewer tokens prove nothing: a sampled text need not be cut into tokens as the tokenizer would
cut it, and parsers strip whitespace. But where a marker put into a gap of the text explains the number exactly, a
parser has deleted a marker that the answer only spoke of. What leaves no gap, as in `(<think>)`, can't be told from
another cut of the text, and neither can anything where usage is unknown or tool calls were parsed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from eyas.answers import TEXT_NOT_FAITHFUL
from eyas.generate.record import Answer
from eyas.target.spec import ThinkFormat
from eyas.target.template import encode, load_tokenizer

_MOST_GAPS = 8
"""Gaps that are tried per text and marker."""


class LengthCheck:
    """Counts tokens with the target's tokenizer, which is loaded when the first answer comes."""

    def __init__(
        self, tokenizer_dir: Path, think: ThinkFormat | None, *, trust_remote_code: bool = False
    ) -> None:
        self._directory = tokenizer_dir
        self._think = think
        self._trust_remote_code = trust_remote_code

    def flags(self, answer: Answer, opened: bool) -> list[str]:
        """`text_not_faithful` if the texts are not those of the tokens; `opened`: the prompt ended inside thinking.

        Raises:
            InputError: the tokenizer can't be loaded.
        """
        generated = answer.usage.completion_tokens
        if generated is None or answer.tool_calls or (answer.reasoning and self._think is None):
            return []
        size = self._size(answer, opened=opened)
        if size > generated:
            return [TEXT_NOT_FAITHFUL]
        if size < generated and any(
            self._size(longer, opened=opened) == generated for longer in self._with_a_marker(answer)
        ):
            return [TEXT_NOT_FAITHFUL]
        return []

    def _turn(self, answer: Answer, *, opened: bool) -> str:
        """The generated text as far as it is known, without the end of turn."""
        content = answer.content or ""
        if answer.reasoning is None or self._think is None:
            return content
        start = "" if opened else self._think.start
        ended = bool(content) or answer.finish_reason != "length"
        return start + answer.reasoning + (self._think.end if ended else "") + content

    def _size(self, answer: Answer, *, opened: bool) -> int:
        tokenizer = load_tokenizer(self._directory, trust_remote_code=self._trust_remote_code)
        return len(encode(tokenizer, self._turn(answer, opened=opened))) + (answer.finish_reason != "length")

    def _with_a_marker(self, answer: Answer) -> Iterator[Answer]:
        """The answer with one think marker more, at every place where one may have been."""
        if self._think is None:
            return
        for marker in (self._think.start, self._think.end):
            for gap in islice(_gaps(text := answer.content or ""), _MOST_GAPS):
                yield replace(answer, content=text[:gap] + marker + text[gap:])
            for gap in islice(_gaps(text := answer.reasoning or ""), _MOST_GAPS):
                yield replace(answer, reasoning=text[:gap] + marker + text[gap:])


def _gaps(text: str) -> Iterator[int]:
    """Where a deleted word leaves a trace: between two spaces, before a space that begins the text, behind the last."""
    for position in range(len(text) + 1):
        before, after = text[position - 1 : position], text[position : position + 1]
        if before in ("", " ") and after in ("", " ") and before + after:
            yield position
