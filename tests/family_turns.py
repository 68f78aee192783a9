"""Marker tables and golden turns of the families whose templates have most behaviour: Kimi, Qwen, DeepSeek."""

from __future__ import annotations

from functools import partial

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
    GoldenTurn,
    golden,
)

KIMI = {
    "[BOS]": 600, "[EOS]": 601, "<|im_end|>": 602, "<|im_user|>": 603, "<|im_assistant|>": 604, "<|im_system|>": 605,
    "<|im_middle|>": 606, "<|tool_calls_section_begin|>": 611, "<|tool_calls_section_end|>": 612,
    "<|tool_call_begin|>": 613, "<|tool_call_argument_begin|>": 614, "<|tool_call_end|>": 615,
    "<think>": 620, "</think>": 621,
}  # fmt: skip
QWEN = {
    "<|endoftext|>": 640, "<|im_start|>": 641, "<|im_end|>": 642, "<tool_call>": 645, "</tool_call>": 646,
    "<tool_response>": 647, "</tool_response>": 648, "<think>": 650, "</think>": 651,
}  # fmt: skip
DEEPSEEK = {
    "<｜begin▁of▁sentence｜>": 660, "<｜end▁of▁sentence｜>": 661, "<｜User｜>": 662, "<｜Assistant｜>": 663,
    "<｜tool▁calls▁begin｜>": 664, "<｜tool▁calls▁end｜>": 665, "<｜tool▁call▁begin｜>": 666, "<｜tool▁call▁end｜>": 667,
    "<｜tool▁sep｜>": 668, "<｜tool▁output▁begin｜>": 669, "<｜tool▁output▁end｜>": 670, "<think>": 674, "</think>": 675,
}  # fmt: skip


KIMI_DEFAULT = [
    "<|im_system|>",
    "system",
    "<|im_middle|>",
    "You",
    " are",
    " Kimi",
    ",",
    " an",
    " AI",
    " assistant",
]
KIMI_DEFAULT += [" created", " by", " Moonshot", " AI", ".", "<|im_end|>"]
KIMI_SECTION = ["<|tool_calls_section_begin|>", "<|tool_call_begin|>", "functions", ".", "add", ":", "0"]
KIMI_SECTION += ["<|tool_call_argument_begin|>", "{", "}", "<|tool_call_end|>", "<|tool_calls_section_end|>"]
KIMI_RESULT = [
    "<|im_system|>",
    "tool",
    "<|im_middle|>",
    "#",
    "#",
    " Return",
    " of",
    " ",
    "functions",
    ".",
    "add",
    ":",
]
KIMI_RESULT += ["0", "\n", "4", "<|im_end|>"]


def kimi_turns(*, prefilled: bool) -> list[GoldenTurn]:
    turn = partial(golden, KIMI, opened=prefilled)
    asked = [*([] if prefilled else KIMI_DEFAULT), "<|im_user|>", "user", "<|im_middle|>"]
    header = ["<|im_assistant|>", "assistant", "<|im_middle|>"]
    question = [*asked, *QUESTION, "<|im_end|>"]
    start = [] if prefilled else [("M", ["<think>"])]
    thought = [*start, ("R", THOUGHT), ("M", ["</think>"])]
    end = ("E", ["<|im_end|>"])
    tail = [*header, *(["<think>"] if prefilled else [])]
    greeted = ["<|im_user|>", "user", "<|im_middle|>", *GREETING, "<|im_end|>"]
    earlier = [*header, "<think>", "</think>", *ANSWER, "<|im_end|>"]
    running = [*header, "<think>", *THOUGHT, "</think>", *KIMI_SECTION, "<|im_end|>"]
    unthinking = [*header, *(["<think>", "</think>"] if prefilled else [])]
    return [
        turn("thinking", [*question, *tail], [*thought, ("A", ANSWER), end]),
        turn("cut", [*question, *tail], [*start, ("R", CUT)], **CUT_SHORT),
        golden(
            KIMI, "no_thinking", [*asked, *GREETING, "<|im_end|>", *unthinking], [("A", REPLY), end],
            kwargs={"thinking": False} if prefilled else {}, **GREETED,
        ),
        turn("tool_call", [*question, *tail], [*thought, ("T", KIMI_SECTION), end], **CALLED),
        turn("tool_call_in_thinking", [*question, *tail], [*start, ("R", THOUGHT), ("T", KIMI_SECTION), end], **CALLED),
        turn(
            "history", [*question, *earlier, *greeted, *tail], [*thought, ("A", REPLY), end],
            messages=HISTORY, content="Hi!",
        ),
        turn(
            "tool_loop", [*question, *running, *KIMI_RESULT, *tail], [*thought, ("A", ANSWER), end], messages=TOOL_LOOP
        ),
    ]  # fmt: skip


QWEN_SECTION = ["<tool_call>", "\n", *'{"name": "', "add", *'", "arguments": {}}', "\n", "</tool_call>"]
QWEN_RESULT = [
    "<|im_start|>",
    "user",
    "\n",
    "<tool_response>",
    "\n",
    "4",
    "\n",
    "</tool_response>",
    "<|im_end|>",
    "\n",
]


def qwen_turns(*, prefilled: bool) -> list[GoldenTurn]:
    turn = partial(golden, QWEN, opened=prefilled)
    header = ["<|im_start|>", "assistant", "\n"]
    tail = [*header, *(["<think>", "\n"] if prefilled else [])]
    question = ["<|im_start|>", "user", "\n", *QUESTION, "<|im_end|>", "\n"]
    greeted = ["<|im_start|>", "user", "\n", *GREETING, "<|im_end|>", "\n"]
    start = [] if prefilled else [("M", ["<think>"]), ("R", ["\n"])]
    thought = [*start, ("R", [*THOUGHT, "\n"]), ("M", ["</think>"])]
    end = ("E", ["<|im_end|>"])
    running = [
        *header,
        "<think>",
        "\n",
        *THOUGHT,
        "\n",
        "</think>",
        "\n\n",
        "\n",
        *QWEN_SECTION,
        "<|im_end|>",
        "\n",
    ]
    return [
        turn("thinking", [*question, *tail], [*thought, ("A", ["\n\n", *ANSWER]), end]),
        turn("cut", [*question, *tail], [*start, ("R", CUT)], **CUT_SHORT),
        golden(
            QWEN, "no_thinking", [*greeted, *header, "<think>", "\n\n", "</think>", "\n\n"], [("A", REPLY), end],
            kwargs={"enable_thinking": False}, **GREETED,
        ),
        turn("tool_call", [*question, *tail], [*thought, ("A", ["\n\n"]), ("T", QWEN_SECTION), end], **CALLED),
        turn(
            "tool_call_in_thinking", [*question, *tail], [*start, ("R", [*THOUGHT, "\n"]), ("T", QWEN_SECTION), end], **CALLED
        ),
        turn(
            "history", [*question, *header, *ANSWER, "<|im_end|>", "\n", *greeted, *tail],
            [*thought, ("A", ["\n\n", *REPLY]), end], messages=HISTORY, content="Hi!",
        ),
        turn(
            "tool_loop", [*question, *running, *QWEN_RESULT, *tail], [*thought, ("A", ["\n\n", *ANSWER]), end],
            messages=TOOL_LOOP,
        ),
    ]  # fmt: skip


BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
DEEPSEEK_SECTION = ["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "add", "<｜tool▁sep｜>", "{", "}"]
DEEPSEEK_SECTION += ["<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"]


DEEPSEEK_RESULT = ["<｜tool▁output▁begin｜>", "4", "<｜tool▁output▁end｜>"]


def deepseek_r1_turns(*, prefilled: bool) -> list[GoldenTurn]:
    turn = partial(golden, DEEPSEEK, opened=prefilled)
    tail = ["<｜Assistant｜>", *(["<think>", "\n"] if prefilled else [])]
    question = [BOS, "<｜User｜>", *QUESTION]
    start = [] if prefilled else [("M", ["<think>"]), ("R", ["\n"])]
    thought = [*start, ("R", [*THOUGHT, "\n"]), ("M", ["</think>"])]
    empty = [*start, ("R", ["\n"]), ("M", ["</think>"]), ("A", ["\n\n", *REPLY]), ("E", [EOS])]
    plain = [("A", REPLY), ("E", [EOS])]
    earlier = ["<｜Assistant｜>", *ANSWER, EOS, "<｜User｜>", *GREETING]
    return [
        turn("thinking", [*question, *tail], [*thought, ("A", ["\n\n", *ANSWER]), ("E", [EOS])]),
        turn("cut", [*question, *tail], [*start, ("R", CUT)], **CUT_SHORT),
        turn("no_thinking", [BOS, "<｜User｜>", *GREETING, *tail], empty if prefilled else plain, **GREETED),
        turn(
            "tool_call", [*question, *tail], [*thought, ("A", ["\n\n"]), ("T", DEEPSEEK_SECTION), ("E", [EOS])], **CALLED
        ),
        turn(
            "history", [*question, *earlier, *tail], [*thought, ("A", ["\n\n", *REPLY]), ("E", [EOS])],
            messages=HISTORY, content="Hi!",
        ),
        golden(
            DEEPSEEK, "tool_loop", [*question, "<｜Assistant｜>", *DEEPSEEK_SECTION, EOS, *DEEPSEEK_RESULT],
            [("A", ANSWER), ("E", [EOS])], messages=TOOL_LOOP, reasoning=None,
        ),
    ]  # fmt: skip


def deepseek_v3_1_turns() -> list[GoldenTurn]:
    turn = partial(golden, DEEPSEEK, kwargs={"thinking": True}, opened=True)
    tail = ["<｜Assistant｜>", "<think>"]
    question = [BOS, "<｜User｜>", *QUESTION]
    unthinking = ["<｜Assistant｜>", "</think>"]
    thought = [("R", THOUGHT), ("M", ["</think>"])]
    earlier = [*unthinking, *ANSWER, EOS, "<｜User｜>", *GREETING]
    called = CALLED | {"reasoning": None}
    return [
        turn("thinking", [*question, *tail], [*thought, ("A", ANSWER), ("E", [EOS])]),
        turn("cut", [*question, *tail], [("R", CUT)], **CUT_SHORT),
        golden(
            DEEPSEEK, "no_thinking", [BOS, "<｜User｜>", *GREETING, *unthinking], [("A", REPLY), ("E", [EOS])], **GREETED
        ),
        golden(DEEPSEEK, "tool_call", [*question, *unthinking], [("T", DEEPSEEK_SECTION), ("E", [EOS])], **called),
        turn(
            "history", [*question, *earlier, *tail], [*thought, ("A", REPLY), ("E", [EOS])], messages=HISTORY, content="Hi!"
        ),
        golden(
            DEEPSEEK, "tool_loop", [*question, *unthinking, *DEEPSEEK_SECTION, EOS, *DEEPSEEK_RESULT],
            [("A", ANSWER), ("E", [EOS])], messages=TOOL_LOOP, reasoning=None, kwargs={"thinking": True},
        ),
    ]  # fmt: skip
