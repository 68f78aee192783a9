"""Whether our own vLLM can sample with a drafter.

Without Triton, vLLM's CPU builds replace kernels by C++ ones. In vLLM 0.32 the one that spreads a request's temperature,
top_k and top_p over its drafted tokens (`_expand_kernel_impl` in vllm/utils/cpu_triton_utils.py) fills a copy, so drafted
tokens are judged with what the memory happens to hold (vllm-project/vllm#55005). Nothing says so: acceptance and
answers are wrong, and with top_k the server ends with an index out of bounds. Greedy requests take another way.
"""

from __future__ import annotations

import json
import logging
import subprocess

from eyas.errors import ServerError
from eyas.serving.params import ServerParams
from eyas.serving.vllm import server_environment, server_python

logger = logging.getLogger(__name__)

_TIMEOUT_S = 300.0
PROBE = """
import json
import torch
from vllm.platforms import current_platform
from vllm.triton_utils import HAS_TRITON
expanded = [0.75, 0.75]
if current_platform.is_cpu() and not HAS_TRITON:
    from vllm.utils import cpu_triton_utils
    current_platform.import_kernels()
    spread, found = getattr(cpu_triton_utils, "_expand_kernel_impl", None), torch.zeros(2)
    if spread is not None:
        spread(found, torch.tensor([0.75]), torch.tensor([2], dtype=torch.int32), 0, 1)
        expanded = found.tolist()
print(json.dumps(expanded == [0.75, 0.75]))
"""
"""Run in the server's environment; its last line says whether sampling with a drafter works."""


def check_drafted_sampling(params: ServerParams) -> None:
    """Ask the server's environment to spread a temperature over two drafted tokens, before a server is started.

    Raises:
        ServerError: there is no such environment, or it can't.
    """
    python = server_python()
    try:
        done = subprocess.run(
            [python, "-I", "-c", PROBE], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True,
            env=server_environment(params),
        )  # fmt: skip
        works = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        logger.warning("whether vLLM can sample with a drafter is not known: %s", error)
        return
    if not works:
        raise ServerError(
            "this vLLM can't sample with a drafter: on a CPU it judges drafted tokens with a temperature, top_p and top_k "
            "that it never set (vllm-project/vllm#55005), so its answers and acceptance would be wrong, and top_k "
            "would end it",
            where=str(python),
            hint="measure on a GPU, or with generate.temperature 0; `dvc repro evaluate` simulates sampling without a server",
        )


def warn_of_drafted_sampling(params: ServerParams) -> None:
    """Say it when answers are sampled, long before there is a drafter: the engine stage would be the last to run."""
    try:
        check_drafted_sampling(params)
    except ServerError as error:
        logger.warning("the engine stage will not run here: %s. To do: %s", error.what, error.hint)
