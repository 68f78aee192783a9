"""The first answers: what passes, what stops the run, and what the error says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eyas.answers import DUPLICATED_THINKING, MISFILED_REASONING
from eyas.errors import GateError, InputError
from eyas.generate.chance import beyond_chance
from eyas.generate.dialects.choice import dialect
from eyas.generate.failure import RowFailure, content, permanent, transient
from eyas.generate.gate import Gate, Outcome
from eyas.generate.promptcheck import first_difference
from eyas.generate.record import Answer
from eyas.generate.rendering import Rendering
from eyas.generate.request import ChatRequest, build
from eyas.target.spec import TargetProfile, ThinkFormat
from tests.generate import replies
from tests.generate.example import generate_params, profile
from tests.generate.replies import (
    CUT_THINKING,
    END_OF_TURN,
    OPENED_PROMPT,
    PLAIN,
    PROMPT,
    THINKING,
    Turn,
    unparsed,
)
from tests.tiny_target import make_tokenizer

TAIL = PROMPT[-3:]
QWEN = ThinkFormat(
    family="qwen3",
    start="<think>",
    end="</think>",
    start_ids=[replies.START],
    end_ids=[replies.END],
    prefilled=False,
    on_kwargs={"enable_thinking": True},
    off_kwargs={"enable_thinking": False},
    on_tail_ids=TAIL,
    off_tail_ids=[*TAIL, replies.START, replies.END],
    parsers={"vllm": "qwen3", "sglang": "qwen3"},
)
KIMI = replace(
    QWEN,
    family="kimi-k2.5",
    prefilled=True,
    on_kwargs={"thinking": True},
    off_kwargs={"thinking": False},
    on_tail_ids=[*TAIL, replies.START],
    parsers={"vllm": "kimi_k2", "sglang": "kimi_k2"},
)
MODES = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def request(number: int = 1, messages: Sequence[Mapping[str, Any]] = (), turn: int = 0) -> ChatRequest:
    messages = messages or [{"role": "user", "content": "x" * number}]
    return build(f"a:{number:04}", messages, generate_params(), "f", turn=turn)


def thinking_profile(think: ThinkFormat | None = QWEN, **changes: Any) -> TargetProfile:
    return profile(think=think, generation_prompt_ids=think.on_tail_ids if think else TAIL, **changes)


def read(turn: Turn, target: TargetProfile, *, stream: bool = False, **params: Any) -> Answer:
    """The turn as vLLM sends it, read by the dialect of the run."""
    spoken = dialect(generate_params(stream=stream, max_tokens=3, **params), target, Path("no-tokenizer"))
    if not stream:
        return spoken.read(replies.vllm(turn), request())
    collector = spoken.collector(request())
    for event in replies.vllm_events(turn):
        collector.feed(event)
    return collector.answer(done=True)


def landed(answer: Answer, number: int = 1) -> Outcome:
    return Outcome(request(number), answer, None)


def batch(*turns: Turn, target: TargetProfile, stream: bool = False, **params: Any) -> list[Outcome]:
    return [
        landed(read(turn, target, stream=stream, **params), number) for number, turn in enumerate(turns, 1)
    ]


def failed(failure: RowFailure) -> Outcome:
    return Outcome(request(), None, failure)


def gate(target: TargetProfile, render: Any = None, text: Any = None, **params: Any) -> Gate:
    return Gate(generate_params(max_tokens=3, **params), target, render, text)


def stopped(judge: Any, *arguments: Any, **named: Any) -> GateError:
    with pytest.raises(GateError) as caught:
        judge(*arguments, **named)
    return caught.value


# --- failures and forms ----------------------------------------------------------------------------------------------


def test_a_right_batch_passes_and_so_does_a_single_bad_row() -> None:
    outcomes = [*batch(*[PLAIN] * 7, target=profile()), failed(permanent("context_length", "too long"))]
    gate(profile()).first(outcomes)
    gate(profile()).early(outcomes)


@pytest.mark.parametrize(
    ("name", "says"),
    [("vllm", "0.10.2"), ("sglang", "sglang-generate"), ("sglang-generate", "generate.dialect")],
)
@pytest.mark.parametrize("answered_before", [False, True])
def test_missing_token_ids_stop_at_the_first_row(name: str, says: str, answered_before: bool) -> None:
    outcomes = [*batch(*[PLAIN] * 7, target=profile()), failed(content("no_token_ids", "no `token_ids`"))]
    error = stopped(gate(profile(), dialect=name).first, outcomes, answered_before)
    assert "no token ids" in error.what
    assert error.hint is not None
    assert says in error.hint
    assert error.where == "a:0001"


def test_a_batch_without_any_answer_names_the_reason_and_what_to_do() -> None:
    refused = failed(permanent("http_422", "unknown key return_token_ids"))
    error = stopped(gate(profile()).first, [failed(transient("reset", "closed")), refused, refused])
    assert error.what == (
        "none of the first 3 prompts was answered; 2 times http_422: unknown key return_token_ids"
    )
    assert "generate.dialect" in str(error.hint)


def test_many_unusable_answers_stop_a_new_run_few_do_not() -> None:
    bad = failed(content("token_count", "3 token ids, but usage says 4"))
    good = batch(*[PLAIN] * 8, target=profile())
    gate(profile()).first([*good[:5], *[bad] * 3])
    error = stopped(gate(profile()).first, [*good[:4], *[bad] * 4])
    assert "4 of the first 8" in error.what
    assert "token_count: 3 token ids, but usage says 4" in error.what
    gate(profile(), max_failed_share=0.5).first([*good[:4], *[bad] * 4])


def test_endings_of_conversations_and_passing_faults_are_no_fault_of_the_server() -> None:
    ended = [failed(content("tool_calls_differ", "2 calls, 1 result"))] * 6
    gate(profile()).first([*batch(PLAIN, PLAIN, target=profile()), *ended])
    gate(profile()).first([*batch(PLAIN, PLAIN, target=profile()), *[failed(transient("reset", ""))] * 6])


def test_what_always_fails_does_not_stop_a_resumed_run_for_ever() -> None:
    always = [failed(permanent("context_length", "too long"))] * 8
    gate(profile(), expect_reasoning=True).first(always, answered_before=True)
    stopped(gate(profile()).first, always)


def test_another_model_stops() -> None:
    good = batch(PLAIN, target=profile())
    other = replace(read(PLAIN, profile()), model="other")
    error = stopped(gate(profile()).first, [*good, landed(other, 2)], answered_before=True)
    assert error.what == "asked tiny, but other answered"
    assert error.where == "a:0002"
    assert "--served-model-name" in str(error.hint)
    gate(profile()).first([landed(replace(other, model=None))])


@pytest.mark.parametrize(
    ("name", "model", "passes"),
    [
        ("openai", "tiny@main", True),
        ("openai", "tiny-2026-08-06", True),
        ("openai", "tinyer", False),
        ("vllm", "tiny@main", False),
    ],
)
def test_only_foreign_servers_may_put_a_revision_behind_the_name(name: str, model: str, passes: bool) -> None:
    answer = replace(read(PLAIN, profile()), model=model)
    if passes:
        gate(profile(), dialect=name).first([landed(answer)])
    else:
        stopped(gate(profile(), dialect=name).first, [landed(answer)])


def test_null_usage_is_no_fault() -> None:
    reply = replies.vllm(PLAIN, usage=None)
    answer = dialect(generate_params(), profile(), Path("no-tokenizer")).read(reply, request())
    gate(profile()).first([landed(answer)])


def test_a_finished_answer_ends_with_an_end_of_turn_id() -> None:
    endless = replace(PLAIN, ids=[80, 81, 82])
    error = stopped(gate(profile()).first, batch(*[endless] * 8, target=profile()))
    assert "8 of 8 finished answers do not end with an end-of-turn id" in error.what
    assert "expected: one of [2]" in error.what
    assert "came: ... [80, 81, 82]" in error.what
    unknown_end = [landed(replace(read(PLAIN, profile()), token_ids=[80, 9], stop_reason=9))] * 8
    assert "last id" in stopped(gate(profile()).first, unknown_end).what
    by_text = [landed(replace(read(PLAIN, profile()), token_ids=[80, 9], stop_reason="\n\n"))] * 8
    gate(profile()).first(by_text)
    gate(profile()).first(batch(*[PLAIN] * 7, endless, target=profile()))


def test_truncation_beyond_the_allowed_share_names_max_tokens() -> None:
    cut = replace(PLAIN, ids=[80, 81, 82], finish_reason="length")
    all_cut = batch(*[cut] * 8, target=profile())
    gate(profile()).first(all_cut)  # gate_max_truncated_share 1.0
    error = stopped(gate(profile(), gate_max_truncated_share=0.5).first, all_cut)
    assert "8 of 8 answers were cut by generate.max_tokens 3" in error.what
    assert "finish_reason length" in error.what
    assert "max_tokens" in str(error.hint)
    six = batch(*[cut] * 6, PLAIN, PLAIN, target=profile())
    gate(profile(), gate_max_truncated_share=0.5).first(six)  # 6 of 8 is no proof that it is more than half
    stopped(gate(profile(), gate_max_truncated_share=0.5).early, six * 12)
    gate(profile(), gate_max_truncated_share=0.5).first(all_cut, answered_before=True)


# --- thinking --------------------------------------------------------------------------------------------------------


@MODES
def test_case_A01_thinking_under_either_name_passes_and_none_of_8_stops(stream: bool) -> None:
    target = thinking_profile()
    judge = gate(target, expect_reasoning=True)
    judge.first(batch(*[THINKING] * 8, target=target, stream=stream))
    error = stopped(judge.first, batch(*[PLAIN] * 8, target=target, stream=stream))
    assert "0 of 8 answers carry reasoning, but generate.expect_reasoning is true" in error.what
    assert "`reasoning` null" in error.what
    assert "`content` 'Answer.'" in error.what
    assert error.where == "a:0001"
    assert "`--reasoning-parser qwen3`" in str(error.hint)
    stopped(judge.early, batch(*[PLAIN] * 8, target=target, stream=stream))


def test_case_A01_an_empty_reasoning_is_none() -> None:
    empty = replace(PLAIN, reasoning="")
    stopped(gate(profile(), expect_reasoning=True).first, batch(*[empty] * 8, target=profile()))


def test_the_share_with_reasoning_must_be_reached_but_for_chance() -> None:
    target = thinking_profile()
    judge = gate(target, expect_reasoning=True)
    judge.first(batch(THINKING, *[PLAIN] * 7, target=target))
    one_in_8 = batch(*[THINKING] * 12, *[PLAIN] * 88, target=target)
    error = stopped(judge.early, one_in_8)
    assert "12 of 100 answers carry reasoning" in error.what
    assert "at least 0.5 must" in error.what
    assert error.where == "a:0013"
    gate(target, expect_reasoning=True, gate_min_reasoning_share=0.1).early(one_in_8)


def test_thinking_that_is_not_asked_for_is_named_as_the_cause() -> None:
    target = thinking_profile(replace(QWEN, default_on=False))
    target = replace(
        target, generation_prompt_ids=PROMPT[-3:], think=replace(target.think or QWEN, off_tail_ids=TAIL)
    )
    error = stopped(gate(target, expect_reasoning=True).first, batch(*[PLAIN] * 8, target=target))
    assert "generate.chat_template_kwargs does not ask for thinking" in str(error.hint)
    assert "{'enable_thinking': True}" in str(error.hint)


def test_unexpected_thinking_is_said_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    target = thinking_profile()
    gate(target).first(batch(THINKING, PLAIN, target=target))
    assert (
        "1 of the first 2 answers carry thinking although generate.expect_reasoning is false" in caplog.text
    )


@MODES
@pytest.mark.parametrize("expect", [False, True])
def test_case_A04_a_missing_parser_stops_and_names_the_flag(stream: bool, expect: bool) -> None:
    """The opening marker is in the prompt, so only the closing one is in the content (vllm-project/vllm#36207)."""
    target = thinking_profile(KIMI)
    kimi = Turn(
        None, " The user said hi. </think> Hello!", None, prompt_ids=OPENED_PROMPT, ids=[70, 71, 4, 80, 2]
    )
    outcomes = batch(*[kimi] * 8, target=target, stream=stream)
    assert all(outcome.answer and outcome.answer.reasoning == " The user said hi. " for outcome in outcomes)
    error = stopped(gate(target, expect_reasoning=expect).first, outcomes)
    assert error.what.startswith("the server has no reasoning parser: 8 of 8 answers")
    assert "expected: thinking in `reasoning` or `reasoning_content`" in error.what
    assert "thinking ' The user said hi. ', divided off `content`" in error.what
    assert "`content` ' Hello!'" in error.what
    assert error.where == "a:0001"
    assert "`--reasoning-parser kimi_k2`" in str(error.hint)
    assert "generate.accept_unparsed_reasoning" in str(error.hint)


@MODES
def test_case_A04_an_accepted_missing_parser_is_said(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    target = thinking_profile()
    judge = gate(target, expect_reasoning=True, accept_unparsed_reasoning=True)
    judge.first(batch(*[unparsed(THINKING)] * 8, target=target, stream=stream))
    assert "8 of 8 answers hold their thinking in `content`" in caplog.text


def test_case_A04_one_server_of_several_without_parser_stops_too_even_later() -> None:
    target = thinking_profile()
    outcomes = batch(*[THINKING] * 99, unparsed(THINKING), target=target)
    assert "1 of 100" in stopped(gate(target).early, outcomes).what
    assert "1 of 100" in stopped(gate(target).first, outcomes, answered_before=True).what


def test_an_unknown_family_gets_examples_of_parsers() -> None:
    target = thinking_profile(replace(QWEN, parsers={}))
    error = stopped(gate(target).first, batch(unparsed(THINKING), target=target))
    assert "--reasoning-parser NAME (qwen3, kimi_k2" in str(error.hint)


@MODES
def test_misfiled_answers_stop_if_they_are_many(stream: bool) -> None:
    target = thinking_profile()
    misfiled = replace(PLAIN, reasoning="Answer.", content=None)
    outcomes = batch(*[misfiled] * 4, *[THINKING] * 4, target=target, stream=stream)
    assert [MISFILED_REASONING in outcome.answer.flags for outcome in outcomes if outcome.answer] == [
        *[True] * 4,
        *[False] * 4,
    ]
    error = stopped(gate(target, expect_reasoning=True).first, outcomes)
    assert "4 of 8 answers stand in the reasoning field (misfiled_reasoning)" in error.what
    assert "`reasoning` 'Answer.'" in error.what
    assert "without --reasoning-parser, or with the parser of this target: qwen3" in str(error.hint)
    gate(target, expect_reasoning=True).first(outcomes[1:])


def test_misfiled_answers_are_no_reasoning() -> None:
    target = thinking_profile()
    misfiled = batch(replace(PLAIN, reasoning="Answer.", content=None), PLAIN, PLAIN, target=target)
    assert "0 of 3" in stopped(gate(target, expect_reasoning=True).first, misfiled).what


def test_doubled_thinking_stops_if_it_is_frequent() -> None:
    target = thinking_profile()
    doubled = replace(CUT_THINKING, content=CUT_THINKING.reasoning)
    outcomes = batch(*[doubled] * 8, target=target)
    assert all(outcome.answer and DUPLICATED_THINKING in outcome.answer.flags for outcome in outcomes)
    error = stopped(gate(target, expect_reasoning=True).first, outcomes)
    assert "in 8 of 8 answers `content` repeats the reasoning" in error.what
    gate(target, expect_reasoning=True).first([*batch(*[THINKING] * 7, target=target), outcomes[0]])


def test_prompts_without_thinking_do_not_stop_a_resumed_run_for_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The ids prove that the target did not think: it is the prompts, for in an earlier run others had thinking."""
    target = thinking_profile()
    judge = gate(target, expect_reasoning=True)
    judge.first(batch(*[PLAIN] * 8, target=target), answered_before=True)
    assert "8 of the first 8 answers carry no thinking" in caplog.text


def test_thinking_that_the_server_loses_stops_a_resumed_run() -> None:
    target = thinking_profile()
    lost = replace(THINKING, reasoning=None)
    outcomes = batch(*[PLAIN] * 7, lost, target=target)
    error = stopped(gate(target, expect_reasoning=True).first, outcomes, answered_before=True)
    assert "the target did think, its token ids show it" in str(error.hint)
    assert error.where == "a:0008"
    blank = replace(
        PLAIN, ids=[replies.START, 9, replies.END, 80, END_OF_TURN]
    )  # an empty block is no thinking
    gate(target, expect_reasoning=True).first(batch(*[blank] * 8, target=target), answered_before=True)


@pytest.mark.parametrize("expect", [False, True])
def test_thinking_that_never_ended_does_not_stop_a_resumed_run_for_ever(expect: bool) -> None:
    target = thinking_profile()
    endless = Turn("I think.", None, ids=[replies.START, 70, END_OF_TURN])
    outcomes = batch(*[endless] * 8, target=target)
    assert all(outcome.answer and MISFILED_REASONING in outcome.answer.flags for outcome in outcomes)
    gate(target, expect_reasoning=expect).first(outcomes, answered_before=True)
    stopped(gate(target, expect_reasoning=expect).first, outcomes)


def test_without_ids_only_a_full_batch_stops_a_resumed_run() -> None:
    target = thinking_profile()
    texts = [
        landed(replace(read(PLAIN, target), prompt_token_ids=None, token_ids=None), number)
        for number in range(8)
    ]
    judge = gate(target, expect_reasoning=True, dialect="openai")
    judge.first(texts[:7], answered_before=True)
    error = stopped(judge.first, texts, answered_before=True)
    assert "set generate.expect_reasoning: false: nothing that was answered is asked again" in str(error.hint)


# --- prompts ---------------------------------------------------------------------------------------------------------

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% if message['reasoning_content'] %}<think>"
    "{{ message['reasoning_content'] }}</think>{% endif %}{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if tools %}{{ tools }}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking == false %}<think></think>{% endif %}"
    "{% endif %}"
)
SYSTEM = "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}"
HISTORY = [
    {"role": "user", "content": "the user asks"},
    {"role": "assistant", "content": "the answer", "reasoning": "why?"},
    {"role": "user", "content": "and again"},
]


def target_folder(path: Path, template: str = CHATML) -> Rendering:
    make_tokenizer(think=True, template=template).save_pretrained(path)
    return Rendering(path, {})


def asked(ids: list[int] | None, messages: Sequence[Mapping[str, Any]] = HISTORY, turn: int = 1) -> Outcome:
    answer = replace(read(PLAIN, profile()), prompt_token_ids=ids)
    return Outcome(request(7, messages, turn), answer, None)


def prompt_gate(rendering: Rendering, **params: Any) -> Gate:
    kwargs = params.get("chat_template_kwargs", {})
    tail = rendering([{"role": "user", "content": "x"}], None)[-3:]
    target = profile(generation_prompt_ids=tail if not kwargs else [])
    return gate(target, rendering, rendering.text, **params)


def test_equal_prompts_pass(tmp_path: Path) -> None:
    ours = target_folder(tmp_path)
    prompt_gate(ours).first([asked(ours(HISTORY, None))])
    prompt_gate(ours).early([asked(ours(HISTORY, None))])


@pytest.mark.parametrize("messages", [
    HISTORY,
    [HISTORY[0], {"role": "assistant", "content": "", "reasoning": "R", "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
     {"role": "tool", "content": "3", "tool_call_id": "1"}],
])  # fmt: skip
def test_case_A10_a_history_without_its_reasoning_stops(
    tmp_path: Path, messages: list[dict[str, Any]]
) -> None:
    """The template never saw the reasoning that was sent back (vllm-project/vllm#33616)."""
    ours = target_folder(tmp_path)
    ignored = [{key: value for key, value in message.items() if key != "reasoning"} for message in messages]
    theirs = ours(ignored, None)
    assert theirs != ours(messages, None)
    error = stopped(prompt_gate(ours).first, [asked(theirs, messages)], answered_before=True)
    position = first_difference(ours(messages, None), theirs)
    assert f"from token {position} on" in error.what
    assert "expected: 3 '<think>' of" in error.what
    assert (
        f"came:     {theirs[position]} {ours.text([theirs[position]])!r} of {len(theirs)} tokens"
        in error.what
    )
    assert error.where == "a:0007 (turn 1)"
    assert "ignores the reasoning of earlier turns (vllm-project/vllm#33616" in str(error.hint)
    assert "a:0007" in str(stopped(prompt_gate(ours).early, [asked(theirs, messages)]).where)


def test_case_A10_a_server_without_ids_may_count(tmp_path: Path) -> None:
    ours = target_folder(tmp_path)
    expected = len(ours(HISTORY, None))
    for counted, passes in ((expected, True), (None, True), (expected - 4, False)):
        outcome = asked(None)
        assert outcome.answer is not None
        usage = replace(outcome.answer.usage, prompt_tokens=counted)
        outcome = replace(outcome, answer=replace(outcome.answer, usage=usage))
        if passes:
            prompt_gate(ours).first([outcome])
        else:
            error = stopped(prompt_gate(ours).first, [outcome])
            assert error.what == (
                f"the server's prompt has {expected - 4} tokens, the target's chat template makes {expected} of it"
            )


@pytest.mark.parametrize("ours_adds", [False, True])
def test_a_default_system_message_on_one_side_is_named(tmp_path: Path, ours_adds: bool) -> None:
    plain = target_folder(tmp_path / "plain")
    system = target_folder(tmp_path / "system", SYSTEM + CHATML)
    ours, theirs = (system, plain) if ours_adds else (plain, system)
    error = stopped(prompt_gate(ours).first, [asked(theirs(HISTORY, None))])
    who = "the target's template" if ours_adds else "the server's template"
    assert str(error.hint).startswith(f"{who} adds a default system message")


def test_another_template_a_second_bos_and_a_cut_prompt_are_told_apart(tmp_path: Path) -> None:
    ours = target_folder(tmp_path / "ours")
    other = target_folder(tmp_path / "other", CHATML.replace("<|im_end|>\n", "<|im_end|>"))
    error = stopped(prompt_gate(ours).first, [asked(other(HISTORY, None))])
    assert "its chat template or tokenizer is another" in str(error.hint)
    twice = stopped(prompt_gate(ours).first, [asked([1, *ours(HISTORY, None)])])
    assert "second beginning-of-text token 1" in str(twice.hint)
    cut = stopped(prompt_gate(ours).first, [asked(ours(HISTORY, None)[:-1])])
    assert "came:     the end, after" in cut.what
    assert "how they ask for an answer" in str(cut.hint)


def test_ignored_template_arguments_are_named(tmp_path: Path) -> None:
    folder = target_folder(tmp_path)
    ours = Rendering(folder.tokenizer_dir, {"enable_thinking": False})
    judge = prompt_gate(ours, chat_template_kwargs={"enable_thinking": False})
    error = stopped(judge.first, [asked(folder(HISTORY, None))])
    assert "'<think>'" in error.what
    assert "ignores generate.chat_template_kwargs {'enable_thinking': False}" in str(error.hint)


def test_ignored_tools_are_named(tmp_path: Path) -> None:
    ours = target_folder(tmp_path)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    outcome = asked(ours(HISTORY, None))
    outcome = replace(outcome, request=replace(outcome.request, tools=tools))
    assert "the server ignores `tools`" in str(stopped(prompt_gate(ours).first, [outcome]).hint)


def test_a_prompt_that_our_template_refuses_stops() -> None:
    def refuse(messages: Any, tools: Any) -> list[int]:
        raise InputError("the chat template refuses the messages: no system role")

    error = stopped(gate(profile(), refuse).first, [asked(PROMPT)])
    assert "the target's own chat template refuses" in error.what
    assert "no system role" in error.what


def test_without_a_rendering_the_end_of_the_prompt_is_that_of_the_profile() -> None:
    wrong = asked([5, 6, 1, 520, 9])
    error = stopped(gate(profile()).first, [wrong])
    assert "ends with [1, 520, 9] , by the target's profile it ends with [1, 520, 198]" in error.what
    gate(profile(), chat_template_kwargs={"anything": 1}).first([wrong])  # may change the end in any way


@pytest.mark.parametrize(
    ("kwargs", "ids", "mode"),
    [({}, OPENED_PROMPT, "on"), ({"thinking": True}, OPENED_PROMPT, "on"), ({"thinking": False}, [*OPENED_PROMPT, 4], "off")],
)  # fmt: skip
def test_the_end_of_the_prompt_follows_the_switch_of_thinking(
    kwargs: dict[str, Any], ids: list[int], mode: str
) -> None:
    judge = gate(thinking_profile(KIMI), chat_template_kwargs=kwargs)
    judge.first([asked(ids)])
    assert (
        f"profile with thinking {mode} it ends with {ids[2:]}" in stopped(judge.first, [asked(PROMPT)]).what
    )


# --- chance ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "total", "share", "beyond"),
    [
        (0, 8, 0.0, False),
        (1, 8, 0.0, True),
        (8, 8, 1.0, False),
        (7, 8, 0.5, False),  # 9 / 256
        (8, 8, 0.5, True),  # 1 / 256
        (3, 8, 0.1, False),  # 0.038
        (4, 8, 0.1, True),  # 0.0050
        (62, 100, 0.5, False),  # 0.0105
        (63, 100, 0.5, True),  # 0.0060
    ],
)
def test_chance_is_the_upper_tail_of_the_binomial_distribution(
    count: int, total: int, share: float, beyond: bool
) -> None:
    assert beyond_chance(count, total, share) is beyond
