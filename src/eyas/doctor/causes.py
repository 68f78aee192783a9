"""The causes that a diagnosis can name: what goes wrong, how it shows, where it was seen in public."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """One way to lose acceptance between training and engine."""

    title: str
    symptom: str
    """How the counts of accepted tokens look."""
    source: str
    """A public thread or paper."""


CAUSES = {
    "aux_layers_shifted": Cause(
        "the aux hidden states come from the layers next to those it was trained on",
        "every position a little to much lower; ids of outputs and of inputs of layers are one apart",
        "vllm-project/vllm#43671, sgl-project/sglang#25454, #32334",
    ),
    "aux_layers_default": Cause(
        "the aux hidden states come from the engine's default layers",
        "every position lower, often near zero",
        "vllm-project/vllm#50170",
    ),
    "aux_layers_other": Cause(
        "the aux hidden states come from other layers than those it was trained on",
        "every position lower, often near zero",
        "vllm-project/vllm#50170, vllm-project/speculators#1065",
    ),
    "aux_order": Cause(
        "the aux hidden states reach fc in another order than in training",
        "every position far lower",
        "vLLM sorts layer ids (model_executor/models/interfaces.py)",
    ),
    "d2t_ignored": Cause(
        "the map from draft ids to target ids is missing or not used",
        "acceptance near zero, unless frequent ids come first in both vocabularies",
        "NVIDIA-NeMo/Automodel#2447, SafeAILab/EAGLE#222",
    ),
    "d2t_absolute": Cause(
        "d2t holds target ids where engines expect offsets, or the other way round",
        "acceptance near zero; a crash where ids exceed the vocabulary",
        "verl-SpeCo#67",
    ),
    "d2t_other": Cause(
        "d2t is the map of another draft vocabulary",
        "acceptance collapses while training looks fine",
        "sgl-project/SpecForge#534, vllm-project/speculators#1081",
    ),
    "norm_before_residual": Cause(
        "norm_before_residual is not what it was trained with",
        "first position lower, later ones by more or less",
        "vLLM's defaults differ: false in a plain config, true in the speculators format; SGLang 0.5 has no such flag",
    ),
    "norm_output": Cause(
        "norm_output is not what it was trained with",
        "first position as in training, later ones lower",
        "sgl-project/SpecForge#879, vllm-project/vllm#46488",
    ),
    "norm_before_fc": Cause(
        "the norm before fc is left out, or applied where it was not trained",
        "every position lower",
        "sgl-project/sglang#32334; vLLM drops input_norm without the flag",
    ),
    "fc_norm": Cause(
        "the norms of the aux hidden states are left out, or applied where they were not trained",
        "every position lower",
        "vllm-project/vllm#43482",
    ),
    "final_norm": Cause(
        "the final norm is missing or not applied",
        "every position lower, most with a norm far from ones",
        "vllm-project/speculators#313; vLLM reports no missing tensor",
    ),
    "tensor_missing": Cause(
        "a tensor is missing, and the engine goes on with what its memory holds",
        "a norm: a little lower; a projection: nothing is accepted",
        "vLLM reports no missing tensor (model_executor/models/llama_eagle3.py)",
    ),
    "embedding": Cause(
        "the embedding is not the target's",
        "bad in vLLM, fine in SGLang, which takes the target's always",
        "TorchSpec#38, vllm-project/vllm#28549",
    ),
    "head_of_target": Cause(
        "the head is the target's, not the trained one",
        "every position lower",
        "vllm-project/vllm#28549, #50158",
    ),
    "head_missing": Cause(
        "there is no head",
        "acceptance near zero: vLLM takes the target's first rows, SGLang what memory holds",
        "sgl-project/sglang#27908",
    ),
    "rope_theta": Cause(
        "rope has another theta than in training",
        "lower, and lower still with longer contexts",
        "sfllm#32; a config without rope_theta means 10000",
    ),
    "rope_scaling": Cause(
        "rope is scaled otherwise than in training",
        "lower, also in short contexts where frequencies change",
        "vllm-project/speculators#574",
    ),
    "positions": Cause(
        "draft steps do not advance their positions",
        "first position as in training, later ones lower",
        "sgl-project/SpecForge, test_eagle3_position_ids.py",
    ),
    "first_step_only": Cause(
        "only the first draft step was trained",
        "first position fine, the second far lower, the third nothing",
        "training-time test of EAGLE-3, arXiv:2503.01840; jessiewei7/BaldEagle#17",
    ),
    "other_target": Cause(
        "the served target is not the one that the hidden states came from: another revision or quantisation",
        "every position lower; the target's answers differ too",
        "vllm-project/vllm-ascend#5974",
    ),
}


def title(cause: str) -> str:
    """What a cause says, for people."""
    return CAUSES[cause].title
