from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eyas.errors import ArtifactError, InputError
from eyas.target.model import TargetHead, capture, load_target
from tests.tiny_target import HIDDEN, profile_of

LENGTH = 21


def ids_of(seed: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, 300, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("layers", [[2, 4, 5], [1], [1, 2, 3, 4, 5, 6, 7]])
def test_capture_equals_hidden_states(folder: Path, layers: list[int]) -> None:
    model = load_target(folder, "float32")
    ids = ids_of(0, 3, LENGTH)
    states = capture(model, ids, None, layers)
    reference = model(input_ids=ids, output_hidden_states=True).hidden_states
    assert states.aux.shape == (3, LENGTH, len(layers), HIDDEN)
    for column, layer in enumerate(layers):
        torch.testing.assert_close(states.aux[:, :, column], reference[layer])
    torch.testing.assert_close(model.model.norm(states.last), reference[-1])
    assert not torch.allclose(states.last, reference[-1], atol=1e-2)  # before the final norm


def test_capture_runs_neither_final_norm_nor_head(llama: Path) -> None:
    model = load_target(llama, "float32")
    normed: list[int] = []
    model.model.norm.register_forward_hook(lambda module, args, output: normed.append(output.numel()))
    model.lm_head.register_forward_hook(lambda module, args, output: normed.append(-1))
    capture(model, ids_of(0, 2, 4), None, [2, 4])
    assert normed == [0]


def test_layers_may_work_in_place(llama: Path) -> None:
    """What a layer does to its input later does not reach what was kept of it."""
    model = load_target(llama, "float32")
    ids = ids_of(0, 2, 4)
    expected = capture(model, ids, None, [2, 4])

    def overwrite(module: torch.nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        args[0].zero_()

    for layer in model.model.layers:
        layer.register_forward_hook(overwrite)
    found = capture(model, ids, None, [2, 4])
    assert torch.equal(found.aux, expected.aux)
    assert torch.equal(found.last, expected.last)


def test_a_decoder_that_does_not_run_its_layers_is_refused(llama: Path) -> None:
    model = load_target(llama, "float32")
    model.model.forward = lambda **kwargs: None
    with pytest.raises(InputError, match="does not run its `layers`"):
        capture(model, ids_of(0, 1, 4), None, [2])


def test_capture_leaves_no_hooks(llama: Path) -> None:
    model = load_target(llama, "float32")
    capture(model, ids_of(0, 1, 4), None, [2, 4])
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("with_mask", [False, True])
def test_padding_on_the_right_changes_nothing(folder: Path, with_mask: bool) -> None:
    model = load_target(folder, "float32")
    lengths = [LENGTH, 3, 11]
    ids = ids_of(1, 3, LENGTH)
    mask = torch.tensor([[position < length for position in range(LENGTH)] for length in lengths]).long()
    states = capture(model, ids, mask if with_mask else None, [2, 4, 5])
    for row, length in enumerate(lengths):
        alone = capture(model, ids[row : row + 1, :length], None, [2, 4, 5])
        torch.testing.assert_close(states.aux[row, :length], alone.aux[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(states.last[row, :length], alone.last[0], rtol=1e-4, atol=1e-4)


def test_capture_refuses_other_layers(llama: Path) -> None:
    with pytest.raises(ValueError, match="8 is outside"):
        capture(load_target(llama, "float32"), ids_of(0, 1, 4), None, [2, 8])


def test_head_equals_the_model(folder: Path) -> None:
    """Tied and untied, one file and several."""
    model = load_target(folder, "float32")
    head = TargetHead.read(folder, profile_of(folder), "float32")
    ids = ids_of(2, 1, LENGTH)
    output = model(input_ids=ids, output_hidden_states=True)
    last = capture(model, ids, None, [2]).last[0]
    torch.testing.assert_close(head.normed(last), output.hidden_states[-1][0])
    torch.testing.assert_close(head.logits(last), output.logits[0])
    torch.testing.assert_close(head.embedding[ids[0]], output.hidden_states[0][0])


def test_tied_head_shares_memory(llama: Path) -> None:
    head = TargetHead.read(llama, profile_of(llama), torch.float32)
    assert head.lm_head.data_ptr() == head.embedding.data_ptr()
    moved = head.to(torch.device("cpu"))
    assert moved.lm_head.data_ptr() == moved.embedding.data_ptr()


def test_head_in_another_dtype(llama: Path) -> None:
    assert TargetHead.read(llama, profile_of(llama), "bfloat16").lm_head.dtype == torch.bfloat16


def test_the_several_files_case_is_tested(qwen3: Path) -> None:
    assert len(list(qwen3.glob("*.safetensors"))) > 1


def test_head_refuses_other_sizes(llama: Path) -> None:
    with pytest.raises(ArtifactError, match="not of the profile's sizes"):
        TargetHead.read(llama, replace(profile_of(llama), vocab_size=299), "float32")


def test_head_without_its_tensor(llama: Path) -> None:
    with pytest.raises(ArtifactError, match=r"0 tensors named lm_head\.weight"):
        TargetHead.read(llama, replace(profile_of(llama), tie_word_embeddings=False), "float32")


def test_missing_weights(tmp_path: Path, llama: Path) -> None:
    with pytest.raises(InputError, match="can't be loaded"):
        load_target(tmp_path, "float32")
    with pytest.raises(ArtifactError, match="has no weights"):
        TargetHead.read(tmp_path, profile_of(llama), "float32")
