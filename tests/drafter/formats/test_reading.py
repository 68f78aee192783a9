from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from eyas.drafter.checkpoint import save_drafter
from eyas.drafter.formats.reading import read_drafter
from eyas.drafter.formats.serving import Serving
from eyas.drafter.formats.writing import FORMATS, write_drafter
from eyas.errors import InputError
from tests.export.conftest import (
    ALLOWED_FLAGS,
    DRAFT_VOCAB,
    PROFILE,
    VOCAB,
    make_config,
    make_drafter,
    make_vocab,
    replaced,
)

from .example import (
    IDS,
    SERVING,
    Config,
    Tensors,
    eagle_head,
    make_head,
    modelopt_head,
    parts,
    rewrite,
    whole_vocab,
    written,
)

Change = Callable[[Config, Tensors], Any]


def changed(directory: Path, name: str, change: Change, **flags: bool) -> Path:
    config, tensors = parts(written(directory, name, SERVING, **flags))
    change(config, tensors)
    return rewrite(directory, config, tensors)


def same_weights(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype
        assert torch.equal(tensor, other[name]), name


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "values", ALLOWED_FLAGS, ids=lambda flags: "+".join(k for k, v in flags.items() if v)
)
def test_what_is_written_reads_back_and_nothing_is_assumed(
    tmp_path: Path, name: str, values: dict[str, Any]
) -> None:
    flags = {key: bool(value) for key, value in values.items()}
    drafter = make_drafter(**flags)
    read = read_drafter(written(tmp_path, name, SERVING, **flags), PROFILE)
    assert read.assumptions == []
    assert read.config == drafter.config
    assert read.format == name
    assert torch.equal(read.vocab.t2d, make_vocab().t2d)
    assert torch.equal(read.vocab.d2t, make_vocab().d2t)
    same_weights(read.state, dict(drafter.state_dict()))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_precision_is_kept(tmp_path: Path, name: str, dtype: str) -> None:
    read = read_drafter(written(tmp_path, name, Serving(PROFILE, dtype, 3)), PROFILE)
    assert read.dtypes == [dtype]
    expected = make_drafter().state_dict()["fc.weight"].to(getattr(torch, dtype))
    assert torch.equal(read.state["fc.weight"], expected)


@pytest.mark.parametrize("name", FORMATS)
def test_a_drafter_of_the_whole_vocabulary_has_no_maps(tmp_path: Path, name: str) -> None:
    """vLLM has no parameter for d2t then, and fails to load one."""
    config = dataclasses.replace(make_config(), draft_vocab_size=VOCAB)
    state = {**make_drafter().state_dict(), "lm_head.weight": torch.randn(VOCAB, 16)}
    write_drafter(tmp_path, name, config, state, whole_vocab(), Serving(PROFILE, "float32", 3))
    assert not {"d2t", "t2d"} & parts(tmp_path)[1].keys()
    read = read_drafter(tmp_path, PROFILE)
    assert read.assumptions == []
    assert read.vocab.draft_ids.tolist() == list(range(VOCAB))


def test_the_folder_of_training_is_read(tmp_path: Path) -> None:
    drafter = make_drafter(norm_output=True)
    save_drafter(tmp_path, drafter, make_vocab())
    read = read_drafter(tmp_path, PROFILE)
    assert (read.format, read.config, read.assumptions) == ("eyas", drafter.config, [])
    same_weights(read.state, dict(drafter.state_dict()))


def test_a_head_as_eagle_publishes_them(tmp_path: Path) -> None:
    profile = replaced(PROFILE, aux_layer_ids=[2, 4, 5])
    read = read_drafter(eagle_head(tmp_path), profile)
    assert read.format == "vllm"
    assert (read.config.rope_theta, read.config.aux_layer_ids) == (10000.0, [2, 4, 5])
    assert read.config.max_position_embeddings == PROFILE.max_position_embeddings
    assert not read.config.norm_before_residual
    assert read.dtypes == ["float16"]
    same_weights(read.state, {name: each.half() for name, each in make_drafter().state_dict().items()})
    said = "\n".join(read.assumptions)
    for expected in (
        "rope_theta is 10000",
        "the aux layers are [2, 4, 5], the engines' default",
        "`norm_output` is false",
        "`max_position_embeddings` is 512, the target's, in place of 64",
    ):
        assert expected in said


def test_a_head_as_modelopt_exports_them(tmp_path: Path) -> None:
    read = read_drafter(modelopt_head(tmp_path), PROFILE)
    assert read.format == "sglang"
    assert read.config == make_config()
    assert torch.equal(read.vocab.t2d, make_vocab().t2d)
    assert len(read.assumptions) == 2
    assert "counts outputs of layers, as SGLang does" in read.assumptions[0]
    assert read.assumptions[1] == "there is no `t2d`: it was computed from `d2t`"


def test_several_weight_files_and_wrappers_in_names(tmp_path: Path) -> None:
    tensors = parts(written(tmp_path, "vllm"))[1]
    (tmp_path / "model.safetensors").unlink()
    renamed = {name if name in ("d2t", "t2d") else f"model.{name}": each for name, each in tensors.items()}
    names = sorted(renamed)
    files = {"model-00001-of-00002.safetensors": names[:6], "model-00002-of-00002.safetensors": names[6:]}
    for file, own in files.items():
        save_file({name: renamed[name] for name in own}, tmp_path / file)
    index = {"weight_map": {name: file for file, own in files.items() for name in own}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    read = read_drafter(tmp_path, PROFILE)
    assert read.assumptions == []
    same_weights(read.state, dict(make_drafter().state_dict()))


def test_legacy_names_of_fc_norm(tmp_path: Path) -> None:
    def rename(config: Config, tensors: Tensors) -> None:
        config["use_aux_norm"] = config.pop("fc_norm")
        for place, word in enumerate(("low", "mid", "high")):
            tensors[f"aux_norm_{word}.weight"] = tensors.pop(f"fc_norm.{place}.weight")

    read = read_drafter(changed(tmp_path, "vllm", rename, fc_norm=True), PROFILE)
    assert read.config == make_config(fc_norm=True)
    same_weights(read.state, dict(make_drafter(fc_norm=True).state_dict()))


def test_an_absent_residual_flag_means_true_in_the_speculators_format_alone(tmp_path: Path) -> None:
    for name, expected in (("speculators", True), ("vllm", False)):
        folder = changed(tmp_path / name, name, lambda config, _: config.pop("norm_before_residual"))
        read = read_drafter(folder, PROFILE)
        assert read.config.norm_before_residual is expected
        assert (
            f"`norm_before_residual` is {str(expected).lower()}: the config does not say"
            in read.assumptions[0]
        )


def test_the_nested_flag_wins_in_a_plain_config(tmp_path: Path) -> None:
    def hide(config: Config, tensors: Tensors) -> None:
        config["norm_before_fc"] = False

    read = read_drafter(changed(tmp_path, "vllm", hide, norm_before_fc=True), PROFILE)
    assert read.config.norm_before_fc


def test_the_targets_embedding_is_dropped_and_another_refused(tmp_path: Path) -> None:
    head = make_head()

    def ship(embedding: torch.Tensor) -> Path:
        return changed(
            tmp_path, "vllm", lambda _, tensors: tensors.update({"embed_tokens.weight": embedding})
        )

    assert read_drafter(ship(head.embedding), PROFILE, head).assumptions == []
    rounded = read_drafter(ship(head.embedding.bfloat16()), PROFILE, head)
    assert "as by rounding: the target's is used" in rounded.assumptions[0]
    assert "which it was not compared with" in read_drafter(ship(head.embedding), PROFILE).assumptions[0]
    with pytest.raises(InputError, match="is not the target's embedding"):
        read_drafter(ship(torch.randn(VOCAB, 16)), PROFILE, head)
    with pytest.raises(InputError, match=r"has shape \[10, 16\], the target's \[60, 16\]"):
        read_drafter(ship(torch.randn(10, 16)), PROFILE, head)


def test_a_missing_head_over_the_whole_vocabulary_is_the_targets(tmp_path: Path) -> None:
    def drop(config: Config, tensors: Tensors) -> None:
        config["draft_vocab_size"] = None
        for name in ("lm_head.weight", "d2t", "t2d"):
            tensors.pop(name)

    folder = changed(tmp_path, "vllm", drop)
    head = make_head()
    read = read_drafter(folder, PROFILE, head)
    assert torch.equal(read.state["lm_head.weight"], head.lm_head)
    assert any("it is the target's" in sentence for sentence in read.assumptions)
    with pytest.raises(InputError, match=r"`lm_head.weight` is missing"):
        read_drafter(folder, PROFILE)


def test_a_list_that_was_meant_for_extraction_loses_its_last_layer(tmp_path: Path) -> None:
    def extend(config: Config, tensors: Tensors) -> None:
        config[IDS] = [*config[IDS], PROFILE.num_layers]
        config["transformer_layer_config"].pop("num_aux_hidden_states")

    read = read_drafter(changed(tmp_path, "speculators", extend), PROFILE)
    assert read.config.aux_layer_ids == PROFILE.aux_layer_ids
    assert "layer id 8 is left out" in read.assumptions[0]


def set_(key: str, value: Any) -> Change:
    return lambda config, tensors: config.update({key: value})


def put(name: str, shape: list[int] | None) -> Change:
    def change(config: Config, tensors: Tensors) -> None:
        if shape is None:
            tensors.pop(name)
        else:
            tensors[name] = torch.zeros(shape)

    return change


REFUSED: dict[str, tuple[Change, str]] = {
    "bias": (put("midlayer.self_attn.q_proj.bias", [24]), "`midlayer.self_attn.q_proj.bias` does not belong"),
    "second layer": (put("layers.1.mlp.up_proj.weight", [20, 16]), "one layer only"),
    "qwen norms": (put("midlayer.self_attn.q_norm.weight", [6]), "norms of queries and keys"),
    "parallel drafting": (put("mask_hidden", [1, 48]), "it drafts in parallel"),
    "norm without its flag": (put("input_norm.weight", [48]), "`norm_before_fc` is not set"),
    "no norm": (put("midlayer.hidden_norm.weight", None), "`midlayer.hidden_norm.weight` is missing"),
    "wrong shape": (
        put("midlayer.mlp.down_proj.weight", [16, 21]),
        "`midlayer.mlp.down_proj.weight` has shape [16, 21], the config calls for [16, 20]",
    ),
    "four layers fused": (put("fc.weight", [16, 64]), "`fc.weight` reads 64 numbers"),
    "no map": (
        lambda config, tensors: [tensors.pop(name) for name in ("d2t", "t2d")],
        "`d2t` is missing, and so is `t2d`",
    ),
    "map of another drafter": (
        lambda config, tensors: tensors.update(t2d=tensors["t2d"].flip(0)),
        "`d2t` makes draft id 0 token 2, by `t2d` it is token",
    ),
    "two names": (
        lambda config, tensors: tensors.update(
            {"layers.0.hidden_norm.weight": tensors["norm.weight"].clone()}
        ),
        "the same tensor under two names",
    ),
    "quantised": (
        lambda config, tensors: tensors.update({"fc.weight": tensors["fc.weight"].to(torch.int8)}),
        "`fc.weight` is torch.int8; quantised",
    ),
    "not finite": (
        lambda config, tensors: tensors["fc.weight"].fill_(torch.inf),
        "`fc.weight` holds NaN or infinity",
    ),
    "hidden size": (set_("hidden_size", 32), "`hidden_size` is 32, the target tiny calls for 16"),
    "vocabulary": (set_("vocab_size", 64), "`vocab_size` is 64, the target tiny calls for 60"),
    "layers": (set_("num_hidden_layers", 2), "`num_hidden_layers` is 2; only 1 can be computed"),
    "kind": (set_("model_type", "qwen3"), "`model_type` is 'qwen3'"),
    "activation": (set_("hidden_act", "gelu"), "`hidden_act` is 'gelu'"),
    "no feature": (
        set_("eagle_config", {"use_aux_hidden_state": False}),
        "`eagle_config.use_aux_hidden_state` is False",
    ),
    "heads": (
        set_("num_attention_heads", "4"),
        "`num_attention_heads` must be a positive whole number, is '4'",
    ),
    "flag": (set_("norm_output", "yes"), "`norm_output` must be true or false, is 'yes'"),
    "eps": (set_("rms_norm_eps", 0), "`rms_norm_eps` must be a small positive number"),
    "rope": (set_("rope_theta", 1.0), "rope_theta is 1.0 and 5000.0"),
    "layer ids": (set_(IDS, [5, 4, 2]), "is not ascending"),
    "both exclusive norms": (set_("fc_norm", True), "exclude each other"),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_can_not_be_right_is_refused_by_name(tmp_path: Path, change: Change, message: str) -> None:
    flags = {"norm_before_fc": True} if "exclude" in message else {}
    with pytest.raises(InputError) as caught:
        read_drafter(changed(tmp_path, "vllm", change, **flags), PROFILE)
    assert message in str(caught.value)
    assert caught.value.where == str(tmp_path)
    assert caught.value.hint


def test_all_problems_are_named_at_once(tmp_path: Path) -> None:
    def spoil(config: Config, tensors: Tensors) -> None:
        tensors.pop("norm.weight")
        tensors["extra"] = torch.zeros(1)

    with pytest.raises(InputError) as caught:
        read_drafter(changed(tmp_path, "vllm", spoil), PROFILE)
    assert "`norm.weight` is missing" in str(caught.value)
    assert "`extra` does not belong" in str(caught.value)


def test_another_algorithm_of_speculators_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'dflash'; only 'eagle3'"):
        read_drafter(changed(tmp_path, "speculators", set_("speculators_model_type", "dflash")), PROFILE)


def test_rope_of_an_imported_drafter_is_its_own(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"original_max_position_embeddings": 128}

    def older(config: Config, tensors: Tensors) -> None:
        del config["rope_parameters"]
        config |= {"rope_theta": 7000, "rope_scaling": {"type": scaling["rope_type"], **scaling}}
        config["rope_scaling"].pop("rope_type")

    read = read_drafter(changed(tmp_path, "vllm", older), PROFILE)
    assert (read.config.rope_theta, read.config.rope_scaling) == (7000.0, scaling)


def test_the_draft_vocabulary_is_the_heads_where_the_config_does_not_say(tmp_path: Path) -> None:
    read = read_drafter(changed(tmp_path, "vllm", lambda config, _: config.pop("draft_vocab_size")), PROFILE)
    assert read.config.draft_vocab_size == DRAFT_VOCAB
    assert "`draft_vocab_size` is 24, the rows of `lm_head`" in read.assumptions[0]
