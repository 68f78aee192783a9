"""Packed states against the model's own hidden_states, one sequence at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import accelerate  # type: ignore[import-untyped]
import pytest
import torch
import transformers

from eyas import gemm
from eyas.errors import InputError
from eyas.extract import backend as backend_module
from eyas.extract import packing as packing_module
from eyas.extract.backend import TransformersBackend
from eyas.extract.batches import plan_batches
from eyas.extract.prefixes import Packing, Piece
from eyas.target.model import TargetStates, decoder_of, load_target
from tests.tiny_target import HIDDEN, write_target

LAYERS = [2, 4, 5]
TOLERANCE = 1e-5
"""Largest difference of float32 states between any two batches, relative to the length of each vector."""
OWN_TOLERANCE = 2e-5
"""The same from the model's own states, whose products are summed in another order."""


LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "factor": 16.0,
    "original_max_position_embeddings": 32,
    "short_factor": [1.0, 1.0, 1.0, 1.0],
    "long_factor": [1.0, 2.0, 4.0, 8.0],
}
"""Sequences of more than 32 tokens are rotated otherwise than shorter ones."""


def drawn(seed: int, *lengths: int) -> list[list[int]]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 290, (length,), generator=random).tolist() for length in lengths]


def conversation(seed: int = 7, turns: int = 3) -> list[list[int]]:
    """Each turn's prompt holds the one before it without its last tokens, as if thinking were taken out."""
    rows: list[list[int]] = []
    history: list[int] = drawn(seed, 20)[0]
    for turn in range(turns):
        question, answer, thought = drawn(seed + turn + 1, 9, 14, 6)
        rows.append([*history, *question, *thought, *answer])
        history = [*history, *question, *answer]
    return rows


SEQUENCES = [*drawn(3, 1, 30, 7, 61, 30, 2), *conversation()]


def backend_of(folder: Path, dtype: str = "float32") -> TransformersBackend:
    return TransformersBackend(load_target(folder, dtype), LAYERS)


def small(config: str, **options: Any) -> Any:
    """A random model of a transformers configuration class."""
    sizes = {
        "hidden_size": HIDDEN,
        "intermediate_size": 64,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": 300,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": 0,
    }
    torch.manual_seed(0)
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_config(getattr(transformers, config)(**{**sizes, **options}))
    return model.eval().requires_grad_(False)


def far(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference of a vector relative to its length."""
    found, expected = found.float(), expected.float()
    return float(((found - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-6)).max())


def check(
    backend: TransformersBackend, sequences: Sequence[Sequence[int]], tolerance: float = OWN_TOLERANCE
) -> None:
    """Against output_hidden_states; the last one through the model's final norm."""
    norm = decoder_of(backend.model).norm
    for tokens, states in zip(sequences, backend.states(sequences), strict=True):
        reference = backend.reference(tokens)
        assert states.aux.shape == (len(tokens), len(LAYERS), HIDDEN)
        for column, layer in enumerate(LAYERS):
            assert far(states.aux[:, column], reference[layer]) < tolerance
        assert far(norm(states.last), reference[-1]) < tolerance


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_packed_states_are_the_models_own(kind: str, tmp_path: Path) -> None:
    backend = backend_of(write_target(tmp_path / "target", kind))
    assert backend.unpackable is None
    check(backend, SEQUENCES)


@pytest.mark.parametrize(
    ("config", "options"),
    [
        pytest.param("MistralConfig", {"sliding_window": 8}, id="sliding window"),
        pytest.param("MixtralConfig", {"num_local_experts": 4}, id="experts"),
        pytest.param("Olmo2Config", {}, id="norms behind the layers"),
        pytest.param("GraniteConfig", {"attention_multiplier": 0.5}, id="own scaling"),
        pytest.param("LlamaConfig", {"num_key_value_heads": 4}, id="as many key heads"),
    ],
)
def test_other_architectures_are_packed(config: str, options: dict[str, Any]) -> None:
    backend = TransformersBackend(small(config, **options), LAYERS)
    assert backend.unpackable is None
    check(backend, SEQUENCES)


@pytest.mark.parametrize(
    ("config", "options", "reason"),
    [
        pytest.param("Gemma2Config", {}, "softcap", id="soft caps"),
        pytest.param("GptOssConfig", {"num_local_experts": 4}, "s_aux", id="sinks"),
        pytest.param(
            "Qwen2MoeConfig",
            {
                "num_experts": 4,
                "moe_intermediate_size": 16,
                "shared_expert_intermediate_size": 16,
                "use_sliding_window": True,
                "sliding_window": 40,
                "max_window_layers": 2,
            },
            "a window that it keeps in its mask",
            id="a window longer than the probe, in the mask alone",
        ),
        pytest.param(
            "Qwen3NextConfig",
            {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
            "let its attention be replaced",
            id="recurrent layers",
        ),
        pytest.param(
            "LlamaConfig",
            {"rope_parameters": LONG_ROPE},
            "rotary embedding",
            id="rotation by length",
        ),
    ],
)
def test_what_cannot_be_packed_is_padded(config: str, options: dict[str, Any], reason: str) -> None:
    backend = TransformersBackend(small(config, **options), LAYERS)
    assert reason in (backend.unpackable or "")
    check(backend, [*SEQUENCES, *drawn(3, 90, 60)])


def test_attention_that_differs_on_the_probe_is_not_used(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that ignores `packing` in a way that no configuration tells."""
    own = packing_module.attend

    def without_boundaries(module: Any, *tensors: Any, packing: Any, **kwargs: Any) -> Any:
        whole = Piece(range(len(packing.token_ids)), ())
        return own(module, *tensors, packing=Packing([], [], [whole], []), **kwargs)

    monkeypatch.setattr(packing_module, "attend", without_boundaries)
    backend = backend_of(llama)
    assert "differ from separate ones" in (backend.unpackable or "")
    check(backend, SEQUENCES)


def test_no_batch_changes_a_sequence(folder: Path) -> None:
    """Each sequence alone, all together, in planned batches, and beside others."""
    backend = backend_of(folder)
    alone = [backend.states([tokens])[0] for tokens in SEQUENCES]
    together = backend.states(SEQUENCES)
    backwards = backend.states([*SEQUENCES[::-1], *drawn(9, 40, 3)])[: len(SEQUENCES)][::-1]
    for batch in plan_batches(SEQUENCES, 100):
        for index, states in zip(batch, backend.states([SEQUENCES[index] for index in batch]), strict=True):
            for other in (alone[index], together[index], backwards[index]):
                assert far(states.aux, other.aux) < TOLERANCE
                assert far(states.last, other.last) < TOLERANCE


def test_the_same_batch_gives_the_same_bits(folder: Path) -> None:
    backend = backend_of(folder)
    for first, second in zip(backend.states(SEQUENCES), backend.states(SEQUENCES), strict=True):
        assert torch.equal(first.aux, second.aux)
        assert torch.equal(first.last, second.last)


def computed_tokens(backend: TransformersBackend, sequences: Sequence[Sequence[int]]) -> list[int]:
    """Tokens of each forward pass."""
    counts: list[int] = []
    embedding = backend.model.get_input_embeddings()
    handle = embedding.register_forward_hook(lambda module, args, output: counts.append(args[0].numel()))
    backend.states(sequences)
    handle.remove()
    return counts


def test_shared_tokens_are_computed_once(llama: Path) -> None:
    """The turns share 20 + 9 tokens, then 20 + 9 + 14 + 9: the rest of each is its own."""
    backend = backend_of(llama)
    assert backend.unpackable is None
    turns = conversation()
    assert [len(tokens) for tokens in turns] == [49, 72, 95]
    assert computed_tokens(backend, turns) == [49 + (72 - 29) + (95 - 52)]
    assert computed_tokens(backend, [turns[0], turns[0]]) == [49]


def test_padded_batches_have_little_padding(llama: Path) -> None:
    backend = backend_of(llama)
    vars(backend)["unpackable"] = "for the test"
    assert computed_tokens(backend, drawn(1, 100, 95, 91, 80, 79, 20)) == [300, 160, 20]
    assert computed_tokens(backend, drawn(1, 5)) == [5]


def test_padded_batches_are_no_larger_than_packed_ones(llama: Path) -> None:
    """A batch planned for 40 + 5 * 2 tokens."""
    backend = backend_of(llama)
    vars(backend)["unpackable"] = "for the test"
    shared = drawn(1, 38)[0]
    sequences = [[*shared, number, number] for number in range(6)]
    assert computed_tokens(backend, sequences) == [40] * 6


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_targets(folder: Path, dtype: str) -> None:
    backend = backend_of(folder, dtype)
    assert backend.unpackable is None
    states = backend.states(SEQUENCES)
    assert states[0].aux.dtype == states[0].last.dtype == getattr(torch, dtype)
    check(backend, SEQUENCES, tolerance=5e-2)


def test_long_pieces_are_cut_into_blocks(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing_module, "QUERY_BLOCK", 8)
    check(backend_of(llama), SEQUENCES)


@pytest.mark.parametrize("window", [None, 8])
def test_sequences_too_long_for_the_kept_mask(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing_module, "KEPT_SIZE", 64)  # the longest has 95
    model = small("MistralConfig", sliding_window=window)
    check(TransformersBackend(model, LAYERS), SEQUENCES)


def test_the_products_of_the_layers_are_ours_and_those_of_the_reference_are_not(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fixture compares with what another library computes."""
    product, widths = gemm._product, []

    def watched(values: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        widths.append(len(weight))
        return product(values, weight, bias)

    monkeypatch.setattr(gemm, "_product", watched)
    backend = backend_of(llama)
    backend.reference(SEQUENCES[1])
    assert not widths
    vars(backend)["unpackable"] = None
    backend.states(SEQUENCES)
    layers = decoder_of(backend.model).layers
    assert len(widths) == 7 * len(layers), "q, k, v, o, gate, up, down of each"


def test_the_models_own_attention_is_put_back(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = backend_of(llama)
    backend.states(SEQUENCES[:2])
    assert backend.model.config._attn_implementation == "sdpa"

    def fails(*args: Any, **kwargs: Any) -> TargetStates:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(backend_module, "capture", fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        backend.states(SEQUENCES[:2])
    assert backend.model.config._attn_implementation == "sdpa"


def test_a_device_map_changes_nothing(llama: Path) -> None:
    mapped = TransformersBackend(load_target(llama, "float32", device_map={"": "cpu"}), LAYERS)
    for ours, theirs in zip(mapped.states(SEQUENCES), backend_of(llama).states(SEQUENCES), strict=True):
        assert torch.equal(ours.aux, theirs.aux)
        assert torch.equal(ours.last, theirs.last)


def test_weights_outside_memory(llama: Path, tmp_path: Path) -> None:
    """As a device map does with what fits on no device: weights come in layer by layer."""
    plain = backend_of(llama).states(SEQUENCES)
    model = load_target(llama, "float32")
    accelerate.disk_offload(model, str(tmp_path), execution_device=torch.device("cpu"))
    backend = TransformersBackend(model, LAYERS)
    assert model.model.norm.weight.device.type == "meta"
    for ours, theirs in zip(backend.states(SEQUENCES), plain, strict=True):
        assert torch.equal(ours.aux, theirs.aux)
        assert torch.equal(ours.last, theirs.last)
    check(backend, SEQUENCES[:2])


def test_other_architectures_are_refused() -> None:
    auto: Any = transformers.AutoModelForCausalLM
    sizes = transformers.GPT2Config(n_embd=HIDDEN, n_layer=2, n_head=2, vocab_size=300, n_positions=64)
    with pytest.raises(InputError, match="GPT2LMHeadModel has no decoder with `layers` and `norm`"):
        TransformersBackend(auto.from_config(sizes), [1])


def test_a_rotation_that_remembers_is_refused() -> None:
    model = small("LlamaConfig", rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4})
    with pytest.raises(InputError, match="rotary embedding is of type dynamic") as caught:
        TransformersBackend(model, LAYERS)
    assert "extract.backend" in (caught.value.hint or "")


def test_name_and_versions(llama: Path) -> None:
    backend = backend_of(llama)
    assert backend.name == "transformers"
    assert backend.versions == {"torch": torch.__version__, "transformers": transformers.__version__}
    assert list(backend.aux_layer_ids) == LAYERS
    backend.close()
