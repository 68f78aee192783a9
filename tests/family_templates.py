"""Chat templates with the behaviour of each family, written from its rules: what they keep, drop, add and open."""

from __future__ import annotations

KIMI_HISTORY = """
{%- macro calls(message) -%}
<|tool_calls_section_begin|>
{%- for call in message.tool_calls -%}
<|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>{{ call.function.arguments | tojson }}<|tool_call_end|>
{%- endfor -%}
<|tool_calls_section_end|>
{%- endmacro -%}
{%- set state = namespace(last_plain=-1) -%}
{%- for message in messages -%}
{%- if message.role == 'assistant' and not message.tool_calls -%}{%- set state.last_plain = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
<|im_assistant|>assistant<|im_middle|>
{%- if loop.index0 <= state.last_plain -%}
<think></think>
{%- else -%}
<think>{{ message.reasoning_content or '' }}</think>
{%- endif -%}
{{ message.content }}{% if message.tool_calls %}{{ calls(message) }}{% endif %}<|im_end|>
{%- elif message.role == 'tool' -%}
<|im_system|>{{ message.name or 'tool' }}<|im_middle|>## Return of {{ message.tool_call_id }}
{{ message.content }}<|im_end|>
{%- elif message.role == 'user' -%}
<|im_user|>user<|im_middle|>{{ message.content }}<|im_end|>
{%- else -%}
<|im_system|>system<|im_middle|>{{ message.content }}<|im_end|>
{%- endif -%}
{%- endfor -%}
"""
"""Turns up to the last one without tool calls lose their thinking; those of a running tool loop keep it."""

KIMI_K2_THINKING = (
    "{%- if messages[0].role != 'system' -%}<|im_system|>system<|im_middle|>"
    "You are Kimi, an AI assistant created by Moonshot AI.<|im_end|>{%- endif -%}"
    + KIMI_HISTORY
    + "{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>{%- endif -%}"
)
KIMI_K2_5 = (
    KIMI_HISTORY
    + "{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>"
    + "{%- if thinking is defined and not thinking -%}<think></think>{%- else -%}<think>{%- endif -%}{%- endif -%}"
)

QWEN_HISTORY = """
{%- set state = namespace(query=-1) -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{%- set state.query = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
{{ '<|im_start|>assistant\\n' }}
{%- if loop.index0 > state.query and (loop.last or message.reasoning_content) -%}
{{ '<think>\\n' + (message.reasoning_content or '').strip('\\n') + '\\n</think>\\n\\n' }}
{%- endif -%}
{{ message.content }}
{%- for call in message.tool_calls or [] -%}
{{ '\\n<tool_call>\\n' + ({'name': call.function.name, 'arguments': call.function.arguments} | tojson) + '\\n</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>\\n' }}
{%- elif message.role == 'tool' -%}
{{ '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- else -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking -%}{{ '<think>\\n\\n</think>\\n\\n' }}
"""
"""Turns before the last question lose their thinking; the last turn gets a block even if it had none."""

QWEN3 = QWEN_HISTORY + "{%- endif -%}{%- endif -%}"
QWEN3_5 = QWEN_HISTORY + "{%- else -%}{{ '<think>\\n' }}{%- endif -%}{%- endif -%}"

DEEPSEEK_HISTORY = """
{{- '<｜begin▁of▁sentence｜>' -}}
{%- for message in messages -%}
{%- if message.role == 'user' -%}
{{ '<｜User｜>' + message.content }}
{%- elif message.role == 'assistant' -%}
{{ '<｜Assistant｜>' + HISTORY_OPENING + message.content.split('</think>')[-1] }}
{%- if message.tool_calls -%}
{{ '<｜tool▁calls▁begin｜>' }}
{%- for call in message.tool_calls -%}
{{ '<｜tool▁call▁begin｜>' + call.function.name + '<｜tool▁sep｜>' + (call.function.arguments | tojson) + '<｜tool▁call▁end｜>' }}
{%- endfor -%}
{{ '<｜tool▁calls▁end｜>' }}
{%- endif -%}
{{ '<｜end▁of▁sentence｜>' }}
{%- elif message.role == 'tool' -%}
{{ '<｜tool▁output▁begin｜>' + message.content + '<｜tool▁output▁end｜>' }}
{%- else -%}
{{ message.content }}
{%- endif -%}
{%- endfor -%}
"""
"""No turn of the history keeps its thinking; behind tool results the turn goes on without a new header."""

DEEPSEEK_R1 = (
    DEEPSEEK_HISTORY.replace("HISTORY_OPENING", "''")
    + "{%- if add_generation_prompt and messages[-1].role != 'tool' -%}{{ '<｜Assistant｜><think>\\n' }}{%- endif -%}"
)
DEEPSEEK_R1_0528 = (
    DEEPSEEK_HISTORY.replace("HISTORY_OPENING", "''")
    + "{%- if add_generation_prompt and messages[-1].role != 'tool' -%}{{ '<｜Assistant｜>' }}{%- endif -%}"
)
DEEPSEEK_V3_1 = (
    DEEPSEEK_HISTORY.replace("HISTORY_OPENING", "'</think>'")
    + "{%- if add_generation_prompt and messages[-1].role != 'tool' -%}{{ '<｜Assistant｜>' + ('<think>' if thinking else '</think>') }}{%- endif -%}"
)

GLM_4_5 = """
{{- '[gMASK]<sop>' -}}
{%- set state = namespace(query=-1) -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{%- set state.query = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- set off = enable_thinking is defined and not enable_thinking -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}
{{ '<|user|>\\n' + message.content + ('/nothink' if off else '') }}
{%- elif message.role == 'assistant' -%}
{%- set thought = (message.reasoning_content or '') if loop.index0 > state.query else '' -%}
{{ '<|assistant|>\\n<think>' + thought.strip() + '</think>' }}
{%- if message.content.strip() -%}{{ '\\n' + message.content.strip() }}{%- endif -%}
{%- for call in message.tool_calls or [] -%}
{{ '\\n<tool_call>' + call.function.name + '\\n' + (call.function.arguments | tojson) + '\\n</tool_call>' }}
{%- endfor -%}
{%- elif message.role == 'tool' -%}
{{ '<|observation|>\\n' + message.content }}
{%- else -%}
{{ '<|system|>\\n' + message.content }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>' + ('\\n<think></think>' if off else '') }}{%- endif -%}
"""
"""No token ends a turn: the next role's marker does."""

GPT_OSS = """
{%- set state = namespace(query=-1) -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{%- set state.query = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
{%- if message.reasoning_content and message.tool_calls and loop.index0 > state.query -%}
{{ '<|start|>assistant<|channel|>analysis<|message|>' + message.reasoning_content + '<|end|>' }}
{%- endif -%}
{%- if message.tool_calls -%}
{%- set call = message.tool_calls[0].function -%}
{{ '<|start|>assistant<|channel|>commentary to=functions.' + call.name + ' <|constrain|>json<|message|>' }}
{{- (call.arguments | tojson) + '<|call|>' }}
{%- else -%}
{{ '<|start|>assistant<|channel|>final<|message|>' + message.content }}
{{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}
{%- endif -%}
{%- elif message.role == 'tool' -%}
{{ '<|start|>functions to=assistant<|channel|>commentary<|message|>' + message.content + '<|end|>' }}
{%- else -%}
{{ '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|start|>assistant' }}{%- endif -%}
"""
"""Thinking is a channel; a finished turn keeps only its final message."""

CHATML = """
{%- if messages[0].role != 'system' -%}{{ '<|im_start|>system\\nYou are an assistant<|im_end|>\\n' }}{%- endif -%}
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] -%}
{{ '<tool_call>\\n' + call.function.name + '\\n</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""
"""With a default system message."""

LLAMA_3 = """
{{- '<|begin_of_text|>' -}}
{%- for message in messages -%}
{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content.strip() + '<|eot_id|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif -%}
"""
