"""Conversion of a GGUF file written here from a known model: the logits must come back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from eyas.errors import InputError
from eyas.target.convert import convert_gguf
from eyas.target.model import load_target
from eyas.target.template import encode, load_tokenizer
from tests.tiny_target import CHATML, HIDDEN, LAYERS, make_tokenizer, profile_of, write_target

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
NORMAL, CONTROL = 1, 3


def write_gguf(
    path: Path, folder: Path, *, pre: str = "smollm", arch: str = "llama", template: str | None = CHATML
) -> None:
    model = load_target(folder, "float32")
    config = model.config
    writer: Any = gguf.GGUFWriter(path, arch)
    writer.add_block_count(LAYERS)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer, pre, template, config.vocab_size)
    for name, tensor in model.named_parameters():
        writer.add_tensor(*_tensor(name, tensor.numpy(), config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensor(name: str, values: Any, config: Any) -> tuple[str, Any]:
    stem = name.removesuffix(".weight")
    if stem in TOP:
        return f"{TOP[stem]}.weight", values
    _, _, layer, part = stem.split(".", 3)
    heads = {"self_attn.q_proj": config.num_attention_heads, "self_attn.k_proj": config.num_key_value_heads}
    if part in heads:  # GGUF interleaves the two halves of each head's rotary dimensions
        halves = values.reshape(heads[part], 2, config.head_dim // 2, HIDDEN)
        values = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
    return f"blk.{layer}.{NAMES[part]}.weight", values


def _add_tokenizer(writer: Any, pre: str, template: str | None, vocab_size: int) -> None:
    backend = json.loads(make_tokenizer().backend_tokenizer.to_str())
    tokens = sorted(backend["model"]["vocab"], key=backend["model"]["vocab"].get)
    tokens += [f"<unused{number}>" for number in range(vocab_size - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([CONTROL] * 3 + [NORMAL] * (vocab_size - 3))
    writer.add_token_merges(
        [merge if isinstance(merge, str) else " ".join(merge) for merge in backend["model"]["merges"]]
    )
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    if template is not None:
        writer.add_chat_template(template)


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model folder, and what comes back through GGUF."""
    root = tmp_path_factory.mktemp("gguf")
    original = write_target(root / "original", tied=request.param, rms_norm_eps=1e-5)
    write_gguf(root / "tiny.Q4_1.gguf", original)
    converted = root / "converted"
    converted.mkdir()
    convert_gguf(root / "tiny.Q4_1.gguf", converted, "float32")
    return original, converted


def test_the_same_logits(pair: tuple[Path, Path]) -> None:
    ids = torch.tensor([[1, 30, 200, 31, 2, 99]])
    ours, theirs = (load_target(folder, "float32")(input_ids=ids).logits for folder in pair)
    torch.testing.assert_close(ours, theirs)


def test_config_is_that_of_a_plain_model(pair: tuple[Path, Path]) -> None:
    original, converted = (json.loads((folder / "config.json").read_text()) for folder in pair)
    assert "quantization_config" not in converted
    assert "_model_name_or_path" not in converted
    assert converted["rms_norm_eps"] == 1e-5
    assert converted["tie_word_embeddings"] == original["tie_word_embeddings"]
    assert json.loads((pair[1] / "generation_config.json").read_text())["eos_token_id"] == 2


def test_tokenizer_splits_digits(pair: tuple[Path, Path]) -> None:
    tokenizer = load_tokenizer(pair[1])
    splitter = tokenizer.backend_tokenizer.pre_tokenizer
    assert [piece for piece, _ in splitter.pre_tokenize_str("a 123 b4")] == [
        "a",
        "Ġ",
        "1",
        "2",
        "3",
        "Ġb",
        "4",
    ]
    assert tokenizer.decode(encode(tokenizer, " x\n12")) == " x\n12"
    assert encode(tokenizer, "<|im_end|>") == [2]
    assert tokenizer.chat_template == CHATML


def test_profile(pair: tuple[Path, Path]) -> None:
    profile = profile_of(pair[1])
    assert (profile.bos_token_id, profile.pad_token_id, profile.end_of_turn_ids) == (1, 2, [2])
    assert profile.special_ids == [0, 1, 2]


def test_converting_again_gives_the_same_bytes(pair: tuple[Path, Path], tmp_path: Path) -> None:
    convert_gguf(pair[0].parent / "tiny.Q4_1.gguf", tmp_path, "float32")
    assert profile_of(tmp_path).digest == profile_of(pair[1]).digest


def test_another_dtype(pair: tuple[Path, Path], tmp_path: Path) -> None:
    convert_gguf(pair[0].parent / "tiny.Q4_1.gguf", tmp_path, "bfloat16")
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"pre": "llama-bpe"}, "pre-tokenizer 'llama-bpe'", id="pre-tokenizer"),
        pytest.param({"arch": "gemma3"}, "architecture 'gemma3'", id="architecture"),
        pytest.param({"template": None}, "no chat template", id="template"),
    ],
)
def test_refused(change: dict[str, Any], message: str, llama: Path, tmp_path: Path) -> None:
    write_gguf(tmp_path / "x.gguf", llama, **change)
    with pytest.raises(InputError, match=message):
        convert_gguf(tmp_path / "x.gguf", tmp_path / "out", "float32")
