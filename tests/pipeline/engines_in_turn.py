"""Run by vLLM's own Python: real engines one after the other, each in a process forked after vLLM was imported.

Importing takes most of the start of an engine for a tiny model. Argument: a JSON file with a list of jobs, each with the
keys `model`, `speculative` (or null), `prompts` (token ids), `max_tokens`, `result` (where to write what came of it).
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams  # type: ignore[import-not-found,unused-ignore]


def work(job: dict[str, Any]) -> None:
    """One prompt at a time, so that drafts and acceptance are the same numbers in every run."""
    engine = LLM(
        model=job["model"],
        speculative_config=job["speculative"],
        dtype="float32",
        max_model_len=128,
        max_num_seqs=1,
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_log_stats=False,
        generation_config="vllm",
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=job["max_tokens"], ignore_eos=True)
    outputs = engine.generate(
        [{"prompt_token_ids": prompt} for prompt in job["prompts"]], sampling, use_tqdm=False
    )
    counters = {metric.name: metric for metric in engine.get_metrics()}
    result = {
        "answers": [list(output.outputs[0].token_ids) for output in outputs],
        "drafts": counters["vllm:spec_decode_num_drafts"].value,
        "accepted_at": list(counters["vllm:spec_decode_num_accepted_tokens_per_pos"].values),
    }
    Path(job["result"]).write_text(json.dumps(result))


def main() -> None:
    for job in json.loads(Path(sys.argv[1]).read_text()):
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            continue
        try:
            work(job)
        finally:
            if sys.exc_info()[0] is not None:
                traceback.print_exc()
            sys.stdout.flush()
            os._exit(0)  # an engine's own end takes seconds, and nothing is left to do


if __name__ == "__main__":
    main()
