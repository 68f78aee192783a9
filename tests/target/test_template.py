from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from eyas.errors import InputError
from eyas.target.template import load_tokenizer, render_prompt
from tests.tiny_target import write_target

MESSAGES = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "three"},
]


def test_rendered_prompt(llama: Path) -> None:
    ids = render_prompt(llama, MESSAGES, {})
    text = load_tokenizer(llama).decode(ids)
    assert text == (
        "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\ntwo<|im_end|>\n"
        "<|im_start|>user\nthree<|im_end|>\n<|im_start|>assistant\n"
    )
    assert ids.count(1) == 4
    assert ids.count(2) == 3


def test_template_arguments_are_passed(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}{{ mood }}"
    folder = write_target(tmp_path / "t", template=template)
    assert load_tokenizer(folder).decode(render_prompt(folder, MESSAGES[:1], {"mood": "calm"})) == "onecalm"


def test_a_template_that_refuses(tmp_path: Path) -> None:
    folder = write_target(tmp_path / "t", template="{{ raise_exception('no system role') }}")
    with pytest.raises(InputError, match="no system role"):
        render_prompt(folder, MESSAGES)


def test_a_folder_without_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="tokenizer can't be loaded"):
        render_prompt(tmp_path, MESSAGES)


def test_rendering_needs_no_torch(llama: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from eyas.target.template import render_prompt;"
        "import eyas.target.spec, eyas.target.layers, eyas.target.think, eyas.target.params;"
        "assert render_prompt(Path(sys.argv[1]), [{'role': 'user', 'content': 'x'}]);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(llama)], check=False).returncode == 0
