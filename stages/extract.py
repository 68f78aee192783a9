"""Run the target over all sequences and store the hidden states that training and evaluation need.

Several processes may do it together, each with this script: torchrun starts them, or `compute.devices`.
"""

from __future__ import annotations

from eyas.compute import ComputeParams
from eyas.config import load_keys, load_section
from eyas.extract.launch import start
from eyas.extract.params import ExtractParams
from eyas.extract.run import Extraction
from eyas.hashing import Guard
from eyas.process import run_stage
from eyas.sampling import Sampling
from eyas.serving.params import ServerParams

VLLM_SPREADS = "vLLM spreads over GPUs itself (server.extra_args: [--tensor-parallel-size, N])"


def main() -> None:
    params = load_section("extract", ExtractParams)
    compute = load_section("compute", ComputeParams)
    server = load_section("server", ServerParams)
    sampling = load_keys("generate", ("dialect", "temperature", "top_p", "top_k"), Sampling)
    guard = Guard.start(
        "extract", "generate.dialect", "generate.temperature", "generate.top_p", "generate.top_k"
    )
    with (
        start(compute, one_process=VLLM_SPREADS if params.backend == "vllm" else None) as ranks,
        Extraction.prepare(params, compute, server, sampling, ranks) as extraction,
    ):
        extraction.check_budget()
        extraction.check_states()
        extraction.compute()
        if ranks.rank == 0:
            extraction.publish(guard)


if __name__ == "__main__":
    run_stage(main)
