from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from eyas.errors import ArtifactError, ConfigError, InputError
from eyas.target.spec import TargetProfile
from tests.tiny_target import CHATML, HIDDEN, LAYERS, profile_of, write_target


def test_llama(llama: Path) -> None:
    profile = profile_of(llama)
    assert (profile.architecture, profile.model_type) == ("LlamaForCausalLM", "llama")
    assert (profile.num_layers, profile.hidden_size, profile.head_dim) == (LAYERS, HIDDEN, 8)
    assert profile.aux_layer_ids == [2, 4, 5]
    assert profile.tie_word_embeddings
    assert profile.rope_scaling is None
    assert profile.special_ids == [0, 1, 2]
    assert profile.end_of_turn_ids == [0, 2]  # eos of the generation config, <|im_end|> of the template
    assert profile.think is None


def test_qwen3_with_think_markers(qwen3: Path) -> None:
    profile = profile_of(qwen3)
    assert profile.architecture == "Qwen3ForCausalLM"
    assert not profile.tie_word_embeddings
    assert profile.think is not None
    assert (profile.think.start_ids, profile.think.end_ids) == ([3], [4])
    assert profile.special_ids == [0, 1, 2, 3, 4]


def test_several_eos_ids_of_the_generation_config(llama: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(llama, tmp_path / "copy")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 0]}))
    assert profile_of(folder).end_of_turn_ids == [0, 2, 7]


def test_scaled_rope_is_kept_apart_from_theta(tmp_path: Path) -> None:
    rope = {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}
    profile = profile_of(write_target(tmp_path / "t", rope_parameters=rope))
    assert profile.rope_theta == 500.0
    assert profile.rope_scaling == {"rope_type": "linear", "factor": 4.0}


def test_generation_prompt(llama: Path) -> None:
    from eyas.target.template import encode, load_tokenizer

    ids = profile_of(llama).generation_prompt_ids
    assert ids[0] == 1
    assert ids == encode(load_tokenizer(llama), "<|im_start|>assistant\n")


def test_a_template_that_opens_the_thinking(tmp_path: Path) -> None:
    template = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    profile = profile_of(write_target(tmp_path / "t", think=True, template=template))
    assert profile.think is not None
    assert profile.think.start_ids[0] in profile.generation_prompt_ids


def test_a_template_without_end_of_turn(tmp_path: Path) -> None:
    template = CHATML.replace("<|im_end|>", "")
    assert profile_of(write_target(tmp_path / "t", template=template)).end_of_turn_ids == [0]


def test_a_template_that_drops_answers_is_refused(tmp_path: Path) -> None:
    template = "{% for message in messages %}{{ message['role'] }}{% endfor %}{% if add_generation_prompt %}!{% endif %}"
    with pytest.raises(InputError, match="drops or changes the assistant's answer"):
        profile_of(write_target(tmp_path / "t", template=template))


def test_digest_follows_the_files_and_not_the_place(llama: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(llama, tmp_path / "elsewhere" / llama.name)
    assert profile_of(folder) == profile_of(llama)
    (folder / "chat_template.jinja").write_text(CHATML + " ")
    changed = profile_of(folder)
    assert changed.digest != profile_of(llama).digest


def test_layers_that_do_not_fit(llama: Path) -> None:
    assert profile_of(llama, aux_layer_ids=[1, 7]).aux_layer_ids == [1, 7]
    with pytest.raises(ConfigError, match=r"8 is outside 1\.\.7"):
        profile_of(llama, aux_layer_ids=[2, 8])


def test_round_trip(llama: Path, tmp_path: Path) -> None:
    profile = profile_of(llama)
    profile.write(tmp_path / "profile.json")
    assert TargetProfile.read(tmp_path / "profile.json") == profile


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, "there is no target profile", id="missing"),
        pytest.param("{", "not JSON", id="torn"),
        pytest.param("[]", "other fields", id="list"),
        pytest.param('{"name": "x"}', "other fields", id="old version"),
    ],
)
def test_refused(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ArtifactError, match=message):
        TargetProfile.read(path)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        pytest.param({"start_id"}, r"think \['start_id'\]", id="unknown key"),
        pytest.param({"family"}, r"think \['family'\]", id="missing key"),
    ],
)
def test_nested_fields_are_checked_too(keys: set[str], message: str, qwen3: Path, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    profile_of(qwen3).write(path)
    values = json.loads(path.read_text())
    values["think"] = {key: values["think"].get(key) for key in set(values["think"]) ^ keys}
    path.write_text(json.dumps(values))
    with pytest.raises(ArtifactError, match=message):
        TargetProfile.read(path)
