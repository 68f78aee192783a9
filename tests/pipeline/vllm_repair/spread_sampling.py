"""Runs inside the server (`--worker-extension-cls`): vLLM 0.32's CPU builds leave the temperature, top_k and top_p of drafted
tokens unset (eyas.serving.drafted); with this they have those of their request, as on a GPU.
"""

import torch
from vllm.platforms import current_platform
from vllm.triton_utils import HAS_TRITON
from vllm.triton_utils.dispatcher import register_kernels


class Spread:
    """vLLM wants a class; importing it is what repairs."""


def spread(output, values, ends, replace_from, replace_to, MAX_NUM_TOKENS=None):
    """Each request's value for each of its drafted tokens; ends: [B], tokens of the requests up to and with each."""
    counts = torch.diff(ends, prepend=ends.new_zeros(1)).long()
    replaced = values.masked_fill(values == replace_from, replace_to)
    output.copy_(replaced.repeat_interleave(counts))


if current_platform.is_cpu() and not HAS_TRITON:
    register_kernels({"vllm.v1.sample.rejection_sampler.expand_kernel": spread})
