"""Sequences that a tiny target answered by sampling, drawn with numpy token by token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from eyas.extract.table import Sequences
from eyas.sampling import Sampling
from eyas.target.model import load_target
from eyas.tokenkinds import ANSWER, PROMPT


def answered(rows: list[list[int]], prompts: list[int]) -> Sequences:
    """Sequences named a:0, b:1, a:2, ...; the letter is the dataset, `prompts` says how long each prompt is."""
    names = [f"{'ab'[number % 2]}:{number}" for number in range(len(rows))]
    kinds = [
        [PROMPT] * prompt + [ANSWER] * (len(row) - prompt) for prompt, row in zip(prompts, rows, strict=True)
    ]
    return Sequences.of(names, [name[0] for name in names], rows, kinds)


def sampling_probabilities(logits: npt.NDArray[np.float64], sampling: Sampling) -> npt.NDArray[np.float64]:
    """[V] -> [V] probabilities from which a token is drawn, worked out token by token."""
    p = np.exp((logits - logits.max()) / sampling.temperature)
    p /= p.sum()
    order = sorted(range(len(p)), key=lambda token: -p[token])
    left = order[: sampling.top_k] if sampling.top_k else order
    mass = 1.0 if sampling.dialect.startswith("sglang") else p[left].sum()
    kept, held = [], 0.0
    for token in left:
        if held >= sampling.top_p * mass and sampling.top_p < 1:
            break
        kept.append(token)
        held += p[token]
    cut: npt.NDArray[np.float64] = np.zeros_like(p)
    cut[kept] = p[kept] / p[kept].sum()
    return cut


@torch.inference_mode()
def sampled_sequences(
    folder: Path, sampling: Sampling, *, count: int, answer: int, seed: int = 0
) -> Sequences:
    """Answers of a tiny target drawn token by token, of different lengths, some of which end early."""
    model = load_target(folder, "float32")
    random = np.random.default_rng(seed)
    prompts = [random.integers(3, 290, 3 + number % 7).tolist() for number in range(count)]
    rows = [list(prompt) for prompt in prompts]
    going = list(range(count))
    while going:
        longest = max(len(rows[number]) for number in going)
        ids = torch.zeros(len(going), longest, dtype=torch.long)
        for at, number in enumerate(going):
            ids[at, : len(rows[number])] = torch.tensor(rows[number])
        logits = model(input_ids=ids).logits.double().numpy()
        for at, number in enumerate(going):
            p = sampling_probabilities(logits[at, len(rows[number]) - 1], sampling)
            rows[number].append(int(random.choice(len(p), p=p)))
        going = [
            number for number in going
            if len(rows[number]) - len(prompts[number]) < answer - number % 5 and rows[number][-1] != 2
        ]  # fmt: skip
    return answered(rows, [len(prompt) for prompt in prompts])
