"""Checks of a target before anything is built on it: tokenizer, chat template, head, and one greedy answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eyas.errors import GateError
from eyas.target.model import TargetHead, capture, load_target
from eyas.target.spec import TargetProfile
from eyas.target.template import encode, load_tokenizer, render_prompt, render_text
from eyas.target.think import opens_thinking, prompt_tail

HARD_STRINGS = (
    "plain words, and a full stop.",
    "12345678901234567890 3.14159 1,000,000 -7 0x1F 007",
    "  two spaces before   three within and one after ",
    "a\tb\n\nc\r\nd\n",
    "    def f(x):\n        return x ** 2  # comment\n",
    "don't we'll I'VE it's o'clock",
    "café naïve Å Å ñ",
    "你好，世界。 مرحبا بالعالم नमस्ते",
    "😀👩‍👩‍👧 🇩🇪 ½ ∑ ≠ \u200b zero width",
    '{"key": [1, 2.5, null], "path": "C:\\\\dir"}',
    "<b>html</b> & <think> </think> $x^2$ [a](b)",
)
"""Texts that must come back from the tokenizer unchanged."""

QUESTION = "What is the capital of France?"
ANSWER_TOKENS = 48
MIN_DISTINCT_SHARE = 0.2
"""Answers that repeat themselves beyond this come from damaged weights or a wrong prompt."""


@dataclass(frozen=True)
class Answer:
    """What the target says to the check's question, greedily."""

    token_ids: list[int]
    text: str
    ended: bool


def check_target(directory: Path, profile: TargetProfile) -> Answer:
    """All checks; returns the greedy answer for the log.

    Raises:
        GateError: names the check that failed and what was seen.
    """
    tokenizer = load_tokenizer(directory.resolve(), trust_remote_code=profile.trust_remote_code)
    check_round_trips(tokenizer)
    check_template(tokenizer, profile)
    check_modes(tokenizer, profile)
    model = load_target(directory, profile.dtype, trust_remote_code=profile.trust_remote_code)
    prompt = render_prompt(
        directory.resolve(),
        [{"role": "user", "content": QUESTION}],
        trust_remote_code=profile.trust_remote_code,
    )
    check_head(model, TargetHead.read(directory, profile, profile.dtype), profile, prompt)
    answer = greedy_answer(model, tokenizer, profile, prompt)
    check_answer(answer)
    return answer


def check_round_trips(tokenizer: Any, texts: Sequence[str] = HARD_STRINGS) -> None:
    """Each text must decode from its ids to itself.

    Raises:
        GateError: shows the first text that changes.
    """
    for text in texts:
        back = tokenizer.decode(encode(tokenizer, text), skip_special_tokens=False)
        if back != text:
            raise GateError(
                f"the tokenizer changes a text: {text!r} comes back as {back!r}",
                where=str(tokenizer.name_or_path),
                hint="the tokenizer files are incomplete or converted wrongly",
            )


def check_template(tokenizer: Any, profile: TargetProfile) -> None:
    """Contents must appear unchanged and in order, the prompt must end as the profile says, and a turn must end.

    Raises:
        GateError: says which of these fails.
    """
    contents = ["first question", "first answer", "second question"]
    roles = ["user", "assistant", "user"]
    messages = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=True)]
    text = render_text(tokenizer, messages, generation_prompt=True)
    positions = [text.find(content) for content in contents]
    if -1 in positions or positions != sorted(positions):
        raise GateError(f"the chat template drops or reorders messages: {text!r}")
    tail = profile.generation_prompt_ids
    ids = encode(tokenizer, text)
    if not tail or ids[-len(tail) :] != tail:
        raise GateError(
            f"the prompt ends with {ids[-len(tail) - 2 :]}, not with the generation prompt {tail}",
            hint="text and generation prompt merge into one token: this chat template is not supported",
        )
    stray = [token for token in profile.end_of_turn_ids if not 0 <= token < profile.vocab_size]
    if not profile.end_of_turn_ids or stray:
        raise GateError(f"end-of-turn ids {profile.end_of_turn_ids} are not tokens of the target")


def check_modes(tokenizer: Any, profile: TargetProfile) -> None:
    """With thinking on and off, prompts must end as the think format says, and open the thinking only where it says so.

    Raises:
        GateError: shows the end of the prompt and what was expected.
    """
    think = profile.think
    if think is None:
        return
    for kwargs in ({}, think.on_kwargs, think.off_kwargs or {}):
        question = [{"role": "user", "content": QUESTION}]
        text = render_text(tokenizer, question, generation_prompt=True, template_kwargs=kwargs)
        ids, tail = encode(tokenizer, text), prompt_tail(profile, kwargs)
        opens = text.rstrip().endswith(think.start)
        if ids[-len(tail) :] != tail or opens_thinking(think, ids) != opens:
            raise GateError(
                f"with chat_template_kwargs {kwargs} the prompt ends with {ids[-len(tail) - 2 :]}, "
                f"{'inside' if opens else 'outside'} thinking; think format {think.family} expects {tail}",
                where=str(tokenizer.name_or_path),
                hint="marker and generation prompt merge into one token, or the format is wrong: set `target.think_format`",
            )


@torch.inference_mode()
def check_head(model: Any, head: TargetHead, profile: TargetProfile, token_ids: Sequence[int]) -> None:
    """The head on captured states must give the model's own logits.

    Catches norms with another formula, logit scales and soft caps, and wrong head tensors.

    Raises:
        GateError: the largest difference exceeds the dtype's rounding.
    """
    ids = torch.tensor([list(token_ids)])  # [1, T]
    states = capture(model, ids, None, profile.aux_layer_ids)
    ours = head.logits(states.last[0]).float()  # [T, V]
    theirs = model(input_ids=ids, use_cache=False).logits[0].float()  # [T, V]
    difference = (ours - theirs).abs().max().item()
    tolerance = (1e-4 if head.lm_head.dtype == torch.float32 else 2e-2) * max(theirs.abs().max().item(), 1.0)
    if not difference <= tolerance:
        raise GateError(
            f"final norm and lm_head give logits that differ from the model's by up to {difference:.3g}",
            hint="the target's final norm is no plain RMSNorm, or its logits are scaled or capped: not supported",
        )


@torch.inference_mode()
def greedy_answer(
    model: Any, tokenizer: Any, profile: TargetProfile, prompt: Sequence[int], max_tokens: int = ANSWER_TOKENS
) -> Answer:
    """Generate greedily until an end-of-turn id or `max_tokens`."""
    ids = torch.tensor([list(prompt)])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=max_tokens,
        eos_token_id=profile.end_of_turn_ids,
        pad_token_id=profile.end_of_turn_ids[0],
    )
    generated = [int(token) for token in output[0, len(prompt) :]]
    ended = generated[-1] in profile.end_of_turn_ids
    return Answer(generated, str(tokenizer.decode(generated[: -1 if ended else None])), ended)


def check_answer(answer: Answer) -> None:
    """The answer must be text and not one phrase over and over.

    Raises:
        GateError: shows the answer.
    """
    distinct = len(set(answer.token_ids)) / max(len(answer.token_ids), 1)
    if (
        not answer.text.strip()
        or "\ufffd" in answer.text
        or (not answer.ended and distinct < MIN_DISTINCT_SHARE)
    ):
        raise GateError(
            f"the target's greedy answer to {QUESTION!r} makes no sense: {answer.text!r}",
            hint="weights, config or chat template do not belong together",
        )
