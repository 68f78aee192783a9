from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eyas.drafter.formats.reading import read_drafter
from eyas.drafter.formats.serving import Serving
from eyas.drafter.formats.writing import FORMATS, write_drafter
from eyas.errors import ArtifactError, ConfigError, EyasError
from eyas.export.check import Checkpoint, find_problems
from eyas.export.writing import Trained, check_drafter, export_drafter
from eyas.target.spec import TargetProfile

from .conftest import PROFILE, make_drafter, make_vocab, replaced

Tensors = dict[str, torch.Tensor]
Config = dict[str, Any]
Sabotage = Callable[[Config, Tensors], Any]
IDS = "eagle_aux_hidden_state_layer_ids"
SERVING = Serving(PROFILE, "float32", draft_tokens=3)


def trained(*, imported: bool = False, **flags: bool) -> Trained:
    return Trained(make_drafter(**flags), make_vocab(), imported)


def config_of(directory: Path) -> Config:
    values: Config = json.loads((directory / "config.json").read_text())
    return values


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_written_and_checked(tmp_path: Path, name: str, flags: dict[str, Any]) -> None:
    if name == "sglang" and flags.get("norm_before_residual"):
        with pytest.raises(ConfigError):
            export_drafter(tmp_path, name, trained(**flags), SERVING)
        return
    export_drafter(tmp_path, name, trained(**flags), SERVING)
    assert (tmp_path / "model.safetensors").stat().st_mode & 0o044 == 0o044, "a server may be another user"


def test_where_the_layer_ids_stand_and_how_they_count(tmp_path: Path) -> None:
    for name in FORMATS:
        (tmp_path / name).mkdir()
        export_drafter(tmp_path / name, name, trained(), SERVING)
    vllm, sglang, speculators = (config_of(tmp_path / name) for name in ("vllm", "sglang", "speculators"))
    assert (vllm[IDS], vllm["eagle_config"].get(IDS)) == ([2, 4, 5], None)
    assert (sglang[IDS], sglang["eagle_config"][IDS]) == ([2, 4, 5], [1, 3, 4])
    assert (speculators[IDS], IDS in speculators["transformer_layer_config"]) == ([2, 4, 5], False)
    assert speculators["transformer_layer_config"]["num_aux_hidden_states"] == 3


def test_a_speculators_folder_names_what_serves_it(tmp_path: Path) -> None:
    profile = replaced(PROFILE, source="hub:someone/Tiny-1B")
    export_drafter(tmp_path, "speculators", trained(), Serving(profile, "bfloat16", draft_tokens=5))
    config = config_of(tmp_path)
    proposal = config["speculators_config"]
    assert proposal["verifier"] == {"name_or_path": "someone/Tiny-1B", "architectures": ["LlamaForCausalLM"]}
    assert proposal["proposal_methods"][0]["speculative_tokens"] == 5
    assert (config["speculators_model_type"], config["architectures"]) == ("eagle3", ["Eagle3DraftModel"])
    assert "model_type" not in config  # vLLM would look no further
    assert config["norm_before_residual"] is False  # absent means true
    layer = config["transformer_layer_config"]
    assert (layer["vocab_size"], layer["rope_theta"], layer["max_position_embeddings"]) == (60, 5000.0, 512)
    names = load_file(tmp_path / "model.safetensors").keys()
    assert "layers.0.hidden_norm.weight" in names
    assert not any(name.startswith("midlayer") for name in names)


def test_sglang_is_refused_where_it_computes_something_else(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`norm_before_residual` is not supported there") as caught:
        export_drafter(tmp_path, "sglang", trained(norm_before_residual=True), SERVING)
    assert "remove sglang from export.formats" in str(caught.value.hint)
    assert not list(tmp_path.iterdir())


def test_sglang_counts_some_targets_by_the_first_id(tmp_path: Path) -> None:
    deepseek = replaced(PROFILE, architecture="DeepseekV3ForCausalLM")
    export_drafter(tmp_path, "sglang", trained(), Serving(deepseek, "float32", 3))  # [1, 3, 4]
    other = replaced(deepseek, aux_layer_ids=[3, 4, 5])
    drafter = make_drafter()
    object.__setattr__(drafter.config, "aux_layer_ids", [3, 4, 5])
    with pytest.raises(ConfigError, match=r"only if the first is 1, and here they are \[2, 3, 4\]"):
        export_drafter(
            tmp_path, "sglang", Trained(drafter, make_vocab(), False), Serving(other, "float32", 3)
        )


def set_(key: str, value: Any) -> Sabotage:
    return lambda config, tensors: config.update({key: value})


def nest(section: str, key: str, value: Any) -> Sabotage:
    return lambda config, tensors: config[section].update({key: value})


def rename(old: str, new: str) -> Sabotage:
    return lambda config, tensors: tensors.update({new: tensors.pop(old)})


LAYER = "transformer_layer_config"
CASES: dict[str, tuple[str, Sabotage, str]] = {
    "sglang: ids of vLLM": ("sglang", nest("eagle_config", IDS, [2, 4, 5]), "must be [1, 3, 4], the layers that were captured"),
    "sglang: ids at the top alone": (
        "sglang",
        lambda config, _: config["eagle_config"].pop(IDS),
        f"`eagle_config.{IDS}` must be [1, 3, 4], the layers that were captured, counted as outputs of layers; is None",
    ),
    "sglang: the top says other layers": ("sglang", set_(IDS, [1, 3, 4]), "are different layers"),
    "sglang: residual": ("sglang", set_("norm_before_residual", True), "SGLang does not compute"),
    "sglang: numbered layer": (
        "sglang",
        rename("midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight"),
        "`layers.0.hidden_norm.weight` must be named `midlayer.hidden_norm.weight`",
    ),
    "speculators: midlayer": (
        "speculators",
        rename("layers.0.hidden_norm.weight", "midlayer.hidden_norm.weight"),
        "`midlayer.hidden_norm.weight` must be named `layers.0.hidden_norm.weight`",
    ),
    "speculators: flag absent": (
        "speculators",
        lambda config, _: config.pop("norm_before_residual"),
        "`norm_before_residual` must be true or false, is None",
    ),
    "speculators: flag in the wrong place": (
        "speculators",
        lambda config, _: config[LAYER].update(norm_output=config.pop("norm_output")),
        "`norm_output` must be true or false, is None",
    ),
    "speculators: extraction list": ("speculators", set_(IDS, [2, 4, 5, 8]), "must be [2, 4, 5]"),
    "speculators: ids counted as outputs": ("speculators", set_(IDS, [1, 3, 4]), "must be [2, 4, 5]"),
    "speculators: rope outside": (
        "speculators",
        lambda config, _: config.update(rope_theta=config[LAYER].pop("rope_theta")),
        "`rope_theta` is None, but the target calls for 5000.0",
    ),
    "speculators: draft vocab as vocab": ("speculators", nest(LAYER, "vocab_size", 24), "`vocab_size` is 24"),
    "speculators: another algorithm": ("speculators", set_("speculators_model_type", "peagle"), "must be 'eagle3'"),
    "speculators: no target": (
        "speculators",
        lambda config, _: config["speculators_config"].pop("verifier"),
        "names no draft tokens or no target",
    ),
    "speculators: no draft tokens": (
        "speculators",
        lambda config, _: config["speculators_config"]["proposal_methods"].clear(),
        "names no draft tokens or no target",
    ),
    "speculators: flat": ("speculators", lambda config, _: config.update(config.pop(LAYER)), f"`{LAYER}`"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "sabotage", "message"), CASES.values(), ids=CASES.keys())
def test_every_sabotage_is_named(tmp_path: Path, name: str, sabotage: Sabotage, message: str) -> None:
    made = trained()
    write_drafter(tmp_path, name, made.config, made.drafter.state_dict(), made.vocab, SERVING)
    config, tensors = config_of(tmp_path), load_file(tmp_path / "model.safetensors")
    sabotage(config, tensors)
    problems = find_problems(Checkpoint(config, tensors), name, PROFILE)
    if name == "speculators" and message == f"`{LAYER}`":  # nothing else can be judged then
        assert any("must be a positive number" in problem for problem in problems)
        return
    assert any(message in problem for problem in problems), problems


def test_a_map_of_the_whole_vocabulary_is_one_too_many(tmp_path: Path) -> None:
    made = trained()
    write_drafter(tmp_path, "vllm", made.config, made.drafter.state_dict(), made.vocab, SERVING)
    config, tensors = config_of(tmp_path), load_file(tmp_path / "model.safetensors")
    config["draft_vocab_size"] = 60
    tensors["lm_head.weight"] = torch.zeros(60, 16)
    problems = find_problems(Checkpoint(config, tensors), "vllm", PROFILE)
    assert sum("drafter of the whole vocabulary" in problem for problem in problems) == 2


def test_an_imported_drafter_keeps_its_rope_and_vocabulary(tmp_path: Path) -> None:
    profile = replaced(PROFILE, rope_theta=1e6, end_of_turn_ids=[2, missing()])
    export_drafter(tmp_path, "vllm", trained(imported=True), Serving(profile, "float32", 3))
    assert config_of(tmp_path)["rope_theta"] == 5000.0
    with pytest.raises(ArtifactError) as caught:
        export_drafter(tmp_path, "vllm", trained(), Serving(profile, "float32", 3))
    assert "the target calls for 1000000.0" in str(caught.value)
    assert f"lacks token {missing()}" in str(caught.value)


def missing() -> int:
    return int((~make_vocab().t2d).nonzero()[5])


def test_numbers_that_changed_on_the_way_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: TargetProfile
) -> None:
    def swapped(tensors: Tensors, path: Path, metadata: dict[str, str]) -> None:
        tensors["norm.weight"] = tensors["norm.weight"].flip(0).contiguous()
        save_file(tensors, path, metadata)

    monkeypatch.setattr("eyas.drafter.formats.writing.save_file", swapped)
    with pytest.raises(ArtifactError, match=r"`norm.weight` reads back with other numbers"):
        export_drafter(tmp_path, "vllm", trained(), Serving(profile, "float32", 3))


INERT = (
    "bos_token_id", "eos_token_id", "pad_token_id", "mlp_bias",  # an absent mlp_bias is false
    "speculators_version", "embed_requires_grad", "algorithm", "default_proposal_method", "proposal_methods",
    "verifier.architectures", "verifier.name_or_path", "eagle_config.use_aux_hidden_state", "eagle_config.norm_before_fc",
)  # fmt: skip
"""Keys whose loss changes nothing that an engine computes, or that have a test of their own."""
UNREAD: dict[str, list[tuple[str, Any]]] = {
    "vllm": [("rope_scaling", None), ("eagle_config", None)],  # null; and the top level says the same
    "sglang": [("rope_scaling", None)],
    "speculators": [  # vLLM reads these of transformer_layer_config alone
        *((key, None) for key in ("tie_word_embeddings", "torch_dtype", "dtype")),
        ("transformer_layer_config.rope_scaling", None),
    ],
}


def key_paths(values: Config, within: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for key, value in values.items():
        found.append((*within, key))
        if isinstance(value, dict) and key not in ("rope_scaling", "rope_parameters"):
            found += key_paths(value, (*within, key))
    return found


@pytest.mark.parametrize("name", FORMATS)
def test_no_key_can_get_lost_or_change_unseen(tmp_path: Path, name: str) -> None:
    made = trained(norm_before_fc=True)
    export_drafter(tmp_path, name, made, SERVING)
    sound = (tmp_path / "config.json").read_text()
    unseen = []
    for path in key_paths(json.loads(sound)):
        for change in (None, *other_values(path[-1])):
            config = json.loads(sound)
            section = config
            for key in path[:-1]:
                section = section[key]
            if change is None:
                del section[path[-1]]
            else:
                section[path[-1]] = change
            (tmp_path / "config.json").write_text(json.dumps(config))
            try:
                check_drafter(tmp_path, name, made, SERVING)
            except EyasError:
                continue
            unseen.append((".".join(path), change))
    assert [each for each in unseen if not each[0].endswith(INERT)] == UNREAD[name]
    (tmp_path / "config.json").write_text(sound)
    check_drafter(tmp_path, name, made, SERVING)


def other_values(key: str) -> list[Any]:
    """A value that a careless edit might leave there."""
    if key.startswith(("norm_", "fc_norm")) or key.endswith("_bias"):
        return [True] if key != "norm_before_fc" else [False]
    if key == IDS:
        return [[1, 2, 3]]
    return (
        [7]
        if key.endswith(
            ("_size", "_heads", "_dim", "_layers", "_states", "_eps", "position_embeddings", "_theta")
        )
        else []
    )


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("source", FORMATS)
def test_any_format_becomes_any_other(tmp_path: Path, source: str, name: str) -> None:
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
    export_drafter(tmp_path / "first", source, trained(), SERVING)
    read = read_drafter(tmp_path / "first", PROFILE)
    write_drafter(tmp_path / "second", name, read.config, read.state, read.vocab, SERVING)
    again = read_drafter(tmp_path / "second", PROFILE)
    assert (again.config, again.format, again.assumptions) == (read.config, name, [])
    assert all(torch.equal(again.state[key], tensor) for key, tensor in read.state.items())
