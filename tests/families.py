"""The golden families: FAMILIES, by the name of the think format that must fit each."""

from __future__ import annotations

from functools import partial

from tests import family_templates as templates
from tests.family_turns import (
    BOS,
    DEEPSEEK,
    EOS,
    KIMI,
    QWEN,
    deepseek_r1_turns,
    deepseek_v3_1_turns,
    kimi_turns,
    qwen_turns,
)
from tests.golden import (
    ANSWER,
    CALLED,
    CUT,
    CUT_SHORT,
    GREETED,
    GREETING,
    HISTORY,
    QUESTION,
    REPLY,
    THOUGHT,
    TOOL_LOOP,
    Family,
    GoldenTurn,
    golden,
)

GLM = {
    "[gMASK]": 680, "<sop>": 681, "<|system|>": 682, "<|user|>": 683, "<|assistant|>": 684, "<|observation|>": 685,
    "<|endoftext|>": 686, "<tool_call>": 687, "</tool_call>": 688, "<think>": 690, "</think>": 691,
}  # fmt: skip
HARMONY = {
    "<|return|>": 620, "<|constrain|>": 621, "<|channel|>": 622, "<|start|>": 623, "<|end|>": 624, "<|message|>": 625,
    "<|call|>": 626, "<|endoftext|>": 627,
}  # fmt: skip
CHATML = {
    "<|endoftext|>": 630,
    "<|im_start|>": 631,
    "<|im_end|>": 632,
    "<tool_call>": 633,
    "</tool_call>": 634,
}
LLAMA = {
    "<|begin_of_text|>": 600, "<|end_of_text|>": 601, "<|start_header_id|>": 606, "<|end_header_id|>": 607,
    "<|eom_id|>": 608, "<|eot_id|>": 609, "<|python_tag|>": 610,
}  # fmt: skip


def _glm() -> list[GoldenTurn]:
    turn = partial(golden, GLM)
    question = ["[gMASK]", "<sop>", "<|user|>", "\n", *QUESTION]
    greeted = ["<|user|>", "\n", *GREETING]
    thought = [("A", ["\n"]), ("M", ["<think>"]), ("R", THOUGHT), ("M", ["</think>"])]
    end = ("E", ["<|user|>"])
    section = ["<tool_call>", "add", "\n", "{", "}", "\n", "</tool_call>"]
    block = ["<|assistant|>", "\n", "<think>", "</think>"]
    return [
        turn("thinking", [*question, "<|assistant|>"], [*thought, ("A", ["\n", *ANSWER]), end]),
        turn("cut", [*question, "<|assistant|>"], [*thought[:2], ("R", CUT)], **CUT_SHORT),
        turn(
            "no_thinking", ["[gMASK]", "<sop>", *greeted, "/", "nothink", *block], [("A", ["\n", *REPLY]), end],
            kwargs={"enable_thinking": False}, **GREETED,
        ),
        turn(
            "tool_call", [*question, "<|assistant|>"],
            [*thought, ("A", ["\n"]), ("T", section), ("E", ["<|observation|>"])], **CALLED,
        ),
        turn(
            "history", [*question, *block, "\n", *ANSWER, *greeted, "<|assistant|>"],
            [*thought, ("A", ["\n", *REPLY]), end], messages=HISTORY, content="Hi!",
        ),
        turn(
            "tool_loop",
            [*question, *block[:-1], *THOUGHT, "</think>", "\n", *section, "<|observation|>", "\n", "4", "<|assistant|>"],
            [*thought, ("A", ["\n", *ANSWER]), end], messages=TOOL_LOOP,
        ),
    ]  # fmt: skip


def _harmony() -> list[GoldenTurn]:
    turn = partial(golden, HARMONY)
    header = ["<|start|>", "assistant"]
    question = ["<|start|>", "user", "<|message|>", *QUESTION, "<|end|>"]
    greeted = ["<|start|>", "user", "<|message|>", *GREETING, "<|end|>"]
    analysis = ["<|channel|>", "analysis", "<|message|>"]
    final = ["<|channel|>", "final", "<|message|>"]
    section = ["<|channel|>", "commentary", " to", "=", "functions", ".", "add", " ", "<|constrain|>", "json"]
    section += ["<|message|>", "{", "}"]
    preamble = ["<|end|>", *header, "<|channel|>", "commentary", "<|message|>", *REPLY]
    thought = [("M", analysis), ("R", THOUGHT)]
    answered = [*thought, ("M", ["<|end|>", *header, *final])]
    calling, end = ("T", ["<|end|>", *header, *section]), ("E", ["<|return|>"])
    running = [*header, *analysis, *THOUGHT, "<|end|>", *header, *section, "<|call|>"]
    result = [
        "<|start|>",
        "functions",
        " to",
        "=",
        "assistant",
        "<|channel|>",
        "commentary",
        "<|message|>",
        "4",
        "<|end|>",
    ]
    unthought = CALLED | {"reasoning": None}
    return [
        turn("thinking", [*question, *header], [*answered, ("A", ANSWER), end]),
        turn("cut", [*question, *header], [("M", analysis), ("R", CUT)], **CUT_SHORT),
        turn("no_thinking", [*greeted, *header], [("M", final), ("A", REPLY), end], **GREETED),
        turn("tool_call", [*question, *header], [*thought, calling, ("E", ["<|call|>"])], **CALLED),
        turn("tool_call_only", [*question, *header], [("T", section), ("E", ["<|call|>"])], **unthought),
        turn(
            "preamble", [*question, *header], [*thought, ("A", preamble), calling, ("E", ["<|call|>"])],
            **CALLED | {"content": "Hi!"},
        ),
        turn(
            "history", [*question, *header, *final, *ANSWER, "<|end|>", *greeted, *header], [*answered, ("A", REPLY), end],
            messages=HISTORY, content="Hi!",
        ),
        turn(
            "tool_loop", [*question, *running, *result, *header], [*answered, ("A", ANSWER), end], messages=TOOL_LOOP
        ),
    ]  # fmt: skip


def _chatml() -> list[GoldenTurn]:
    turn = partial(golden, CHATML, reasoning=None)
    default = ["<|im_start|>", "system", "\n", "You", " are", " an", " assistant", "<|im_end|>", "\n"]
    header = ["<|im_start|>", "assistant", "\n"]
    question = [*default, "<|im_start|>", "user", "\n", *QUESTION, "<|im_end|>", "\n"]
    greeted = ["<|im_start|>", "user", "\n", *GREETING, "<|im_end|>", "\n", *header]
    end = ("E", ["<|im_end|>"])
    section = ["<tool_call>", "\n", "add", "\n", "</tool_call>"]
    return [
        turn("no_thinking", [*question, *header], [("A", ANSWER), end]),
        turn("cut", [*question, *header], [("A", ANSWER[:1])], content="Four", finish_reason="length"),
        turn("tool_call", [*question, *header], [("T", section), end], **CALLED),
        turn(
            "history", [*question, *header, *ANSWER, "<|im_end|>", "\n", *greeted], [("A", REPLY), end],
            messages=HISTORY, content="Hi!",
        ),
    ]  # fmt: skip


def _llama() -> list[GoldenTurn]:
    turn = partial(golden, LLAMA, reasoning=None)
    header = ["<|start_header_id|>", "assistant", "<|end_header_id|>", "\n\n"]
    asked = ["<|start_header_id|>", "user", "<|end_header_id|>", "\n\n"]
    question = ["<|begin_of_text|>", *asked, *QUESTION, "<|eot_id|>"]
    return [
        turn("no_thinking", [*question, *header], [("A", ANSWER), ("E", ["<|eot_id|>"])]),
        turn("cut", [*question, *header], [("A", ANSWER[:1])], content="Four", finish_reason="length"),
        turn("tool_call", [*question, *header], [("T", ["<|python_tag|>", "add"]), ("E", ["<|eom_id|>"])], **CALLED),
        turn(
            "history", [*question, *header, *ANSWER, "<|eot_id|>", *asked, *GREETING, "<|eot_id|>", *header],
            [("A", REPLY), ("E", ["<|eot_id|>"])], messages=HISTORY, content="Hi!",
        ),
    ]  # fmt: skip


KIMI_SPECIAL = [token for token in KIMI if "think" not in token]
QWEN_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("kimi-k2-thinking", KIMI, KIMI_SPECIAL, templates.KIMI_K2_THINKING, ["<|im_end|>"], kimi_turns(prefilled=False)),
        Family("kimi-k2.5", KIMI, KIMI_SPECIAL, templates.KIMI_K2_5, ["<|im_end|>"], kimi_turns(prefilled=True)),
        Family("qwen3", QWEN, QWEN_SPECIAL, templates.QWEN3, ["<|im_end|>", "<|endoftext|>"], qwen_turns(prefilled=False)),
        Family("qwen3.5", QWEN, QWEN_SPECIAL, templates.QWEN3_5, ["<|im_end|>", "<|endoftext|>"], qwen_turns(prefilled=True)),
        Family("deepseek-r1", DEEPSEEK, [BOS, EOS], templates.DEEPSEEK_R1, [EOS], deepseek_r1_turns(prefilled=True)),
        Family("deepseek-r1-0528", DEEPSEEK, [BOS, EOS], templates.DEEPSEEK_R1_0528, [EOS], deepseek_r1_turns(prefilled=False)),
        Family("deepseek-v3.1", DEEPSEEK, [BOS, EOS], templates.DEEPSEEK_V3_1, [EOS], deepseek_v3_1_turns()),
        Family("glm-4.5", GLM, list(GLM)[:7], templates.GLM_4_5, ["<|endoftext|>", "<|user|>", "<|observation|>"], _glm()),
        Family("gpt-oss", HARMONY, list(HARMONY), templates.GPT_OSS, ["<|return|>", "<|endoftext|>", "<|call|>"], _harmony()),
        Family("chatml", CHATML, list(CHATML)[:3], templates.CHATML, ["<|im_end|>"], _chatml()),
        Family("llama-3", LLAMA, list(LLAMA), templates.LLAMA_3, ["<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"], _llama()),
    )
}  # fmt: skip
