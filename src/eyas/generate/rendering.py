"""The target's own chat template and tokenizer: what a server's prompts are compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.target.template import load_tokenizer, render_prompt


@dataclass(frozen=True)
class Rendering:
    """Renders prompts as a server must that serves the folder `tokenizer_dir` with these template arguments."""

    tokenizer_dir: Path
    template_kwargs: Mapping[str, Any]
    trust_remote_code: bool = False

    def __call__(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> list[int]:
        """The ids of a prompt.

        Raises:
            InputError: the template refuses the messages.
        """
        return render_prompt(
            self.tokenizer_dir,
            messages,
            self.template_kwargs,
            tools=tools,
            trust_remote_code=self.trust_remote_code,
        )

    def text(self, ids: Sequence[int]) -> str:
        """What ids stand for, special tokens shown."""
        tokenizer = load_tokenizer(self.tokenizer_dir, trust_remote_code=self.trust_remote_code)
        return str(tokenizer.decode(list(ids), skip_special_tokens=False))
