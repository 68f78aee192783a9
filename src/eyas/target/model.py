"""The target in torch: loading it, capturing its hidden states, and its head alone.

Letters in shape comments: B batch, T tokens, H hidden size, A aux layers, V target vocab, L labelled positions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from eyas.errors import ArtifactError, InputError
from eyas.gemm import linear
from eyas.target.layers import check_layers
from eyas.target.spec import TargetProfile


@dataclass(frozen=True)
class TargetStates:
    """Hidden states of a batch, in the target's dtype."""

    aux: Tensor
    """[B, T, A, H], the residual stream that enters each aux layer, in the order of the ids."""
    last: Tensor
    """[B, T, H], output of the last layer before the final norm."""


def load_target(
    directory: Path,
    dtype: str,
    *,
    trust_remote_code: bool = False,
    device_map: str | Mapping[str, Any] | None = None,
) -> Any:
    """The target as a transformers causal LM in evaluation mode, from local safetensors.

    Args:
        directory: a Hugging Face folder.
        dtype: name of a torch dtype.
        trust_remote_code: run Python code of the folder.
        device_map: how accelerate spreads the layers over devices; None: all in main memory.

    Raises:
        InputError: the folder can't be loaded.
    """
    import transformers

    transformers_logging: Any = transformers.utils.logging
    transformers_logging.disable_progress_bar()
    try:
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=getattr(torch, dtype),
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
            device_map=device_map,
        )
    except torch.OutOfMemoryError:
        raise
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise InputError(
            f"the target can't be loaded: {error}",
            where=str(directory),
            hint="a quantised target needs the package of its format here too (compressed-tensors, ...), and often a GPU",
        ) from error
    return model.eval().requires_grad_(False)


def decoder_of(model: Any) -> Any:
    """The stack of layers inside a causal LM, with `.layers` and the final `.norm`.

    Raises:
        InputError: the model is built otherwise.
    """
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    if not hasattr(decoder, "layers") or not hasattr(decoder, "norm"):
        raise InputError(
            f"{type(model).__name__} has no decoder with `layers` and `norm`",
            hint="targets of the Llama and Qwen kind are supported",
        )
    return decoder


@torch.inference_mode()
def capture(
    model: Any, input_ids: Tensor, attention_mask: Tensor | None, aux_layer_ids: Sequence[int], **kwargs: Any
) -> TargetStates:
    """Run the layers once and keep the states of the aux layers and the last one.

    Neither the head runs nor the final norm. Each state is copied as soon as it is there, so no more of them are
    alive than the layers themselves need, and layers that work in place change nothing.

    Args:
        model: a causal LM of load_target; its layers may lie on several devices, the states come to that of the last.
        input_ids: [B, T], padded on the right.
        attention_mask: [B, T], or None, which is as exact and faster: in a causal model padding on the right is never
            seen by the tokens before it.
        aux_layer_ids: hidden_states indices within 1..N-1.
        kwargs: more arguments of the model's decoder.
    """
    decoder = decoder_of(model)
    check_layers(aux_layer_ids, len(decoder.layers))
    recorder = _Recorder(len(aux_layer_ids), home_of(decoder))
    with ExitStack() as hooks:
        for column, layer in enumerate(aux_layer_ids):
            module = decoder.layers[layer]
            handle = module.register_forward_pre_hook(partial(recorder.keep_aux, column), with_kwargs=True)
            hooks.callback(handle.remove)
        hooks.callback(decoder.norm.register_forward_pre_hook(recorder.keep_last, with_kwargs=True).remove)
        decoder(input_ids=input_ids, attention_mask=attention_mask, use_cache=False, **kwargs)
    return recorder.states()


def home_of(decoder: Any) -> torch.device:
    """Where the last layers compute; main memory if their weights are brought in only while they do."""
    device: torch.device = decoder.norm.weight.device
    return torch.device("cpu") if device.type == "meta" else device


class _Recorder:
    """Copies hidden states into one tensor, from inside the forward pass."""

    def __init__(self, layers: int, device: torch.device) -> None:
        self._layers = layers
        self._device = device
        self._aux: Tensor | None = None  # [B, T, A, H]
        self._last: Tensor | None = None  # [B, T, H]

    def keep_aux(self, column: int, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A pre-hook of a layer."""
        hidden = _hidden(args, kwargs)
        if self._aux is None:
            *batch, size = hidden.shape
            self._aux = hidden.new_empty((*batch, self._layers, size), device=self._device)
        self._aux[..., column, :].copy_(hidden)

    def keep_last(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A pre-hook of the final norm, which gets no tokens instead."""
        hidden = _hidden(args, kwargs)
        self._last = hidden.to(self._device)
        if args:
            return (hidden[:, :0], *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": hidden[:, :0]}

    def states(self) -> TargetStates:
        """What was kept."""
        if self._aux is None or self._last is None:
            raise InputError(
                "the target's decoder does not run its `layers` and its `norm`",
                hint="targets of the Llama and Qwen kind are supported",
            )
        return TargetStates(aux=self._aux, last=self._last)


def _hidden(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """[B, T, H]: the hidden states that a module receives."""
    hidden: Tensor = args[0] if args else kwargs["hidden_states"]
    return hidden


@dataclass(frozen=True)
class TargetHead:
    """Embedding, final RMSNorm and lm_head, read straight from the target's safetensors.

    The norm is the plain one (scale times normalised input). Targets whose norm or logits differ from that are
    refused when the target is brought in, by comparing with the full model.
    """

    embedding: Tensor
    """[V, H]"""
    norm_weight: Tensor
    """[H]"""
    lm_head: Tensor
    """[V, H]; the embedding itself where the target ties them."""
    eps: float

    @classmethod
    def read(cls, directory: Path, profile: TargetProfile, dtype: torch.dtype | str) -> TargetHead:
        """Read the three tensors in `dtype`.

        Raises:
            ArtifactError: a tensor is missing or has an unexpected shape.
        """
        torch_dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
        files = tensor_files(directory)
        embedding_name = _find(files, "embed_tokens.weight", directory)
        embedding = _load(directory, files, embedding_name, torch_dtype)
        norm_name = embedding_name.removesuffix("embed_tokens.weight") + "norm.weight"
        norm = _load(directory, files, norm_name, torch_dtype)
        lm_head = embedding
        if not profile.tie_word_embeddings:
            lm_head = _load(directory, files, _find(files, "lm_head.weight", directory), torch_dtype)
        wanted = (profile.vocab_size, profile.hidden_size)
        if embedding.shape != wanted or lm_head.shape != wanted or norm.shape != wanted[1:]:
            raise ArtifactError(
                f"embedding {list(embedding.shape)}, lm_head {list(lm_head.shape)} or norm {list(norm.shape)} "
                f"is not of the profile's sizes {list(wanted)}",
                where=str(directory),
                hint="dvc repro target",
            )
        return cls(embedding=embedding, norm_weight=norm, lm_head=lm_head, eps=profile.rms_norm_eps)

    def to(self, device: torch.device) -> TargetHead:
        """The same head on another device."""
        embedding = self.embedding.to(device)
        tied = self.lm_head is self.embedding
        return TargetHead(
            embedding=embedding,
            norm_weight=self.norm_weight.to(device),
            lm_head=embedding if tied else self.lm_head.to(device),
            eps=self.eps,
        )

    def normed(self, last: Tensor) -> Tensor:
        """The final norm of last hidden states before it: [..., H] -> [..., H]. Statistics in float32."""
        wide = last.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.norm_weight * wide.to(self.norm_weight.dtype)

    def logits(self, last: Tensor) -> Tensor:
        """Logits of last hidden states before the final norm: [L, H] -> [L, V]."""
        return linear(self.normed(last), self.lm_head)


def tensor_files(directory: Path) -> dict[str, str]:
    """Tensor name -> file name, of a folder with one safetensors file or an index of several.

    Raises:
        ArtifactError: there are no weights.
    """
    index = directory / "model.safetensors.index.json"
    if index.exists():
        weight_map = json.loads(index.read_bytes())["weight_map"]
        return {str(name): str(file) for name, file in weight_map.items()}
    single = directory / "model.safetensors"
    if not single.exists():
        raise ArtifactError("the target has no weights", where=str(single), hint="dvc repro target")
    with safe_open(single, framework="pt") as file:
        return dict.fromkeys(file.keys(), single.name)


def _find(files: dict[str, str], suffix: str, directory: Path) -> str:
    names = [name for name in files if name == suffix or name.endswith(f".{suffix}")]
    if len(names) != 1:
        raise ArtifactError(
            f"the target has {len(names)} tensors named {suffix}, not one",
            where=str(directory),
            hint="targets of the Llama and Qwen kind are supported",
        )
    return names[0]


def _load(directory: Path, files: dict[str, str], name: str, dtype: torch.dtype) -> Tensor:
    if name not in files:
        raise ArtifactError(f"the target has no tensor {name}", where=str(directory))
    with safe_open(directory / files[name], framework="pt") as file:
        tensor: Tensor = file.get_tensor(name)
    return tensor.to(dtype)
