from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

PROFILE = {
    "name": "Tiny <b>",
    "source": "folder:tiny",
    "revision": None,
    "dtype": "float32",
    "num_layers": 4,
    "hidden_size": 8,
    "vocab_size": 1234,
    "aux_layer_ids": [1, 2, 3],
}


def acceptance(length: float | None, *rates: float | None) -> dict[str, float | None]:
    return {"length": length, **{f"at_{place}": rate for place, rate in enumerate(rates, start=1)}}


def level(without: float, with_drafter: float) -> dict[str, Any]:
    sides = {
        name: {"requests": 4, "tokens": 100, "seconds": 100 / rate, "tokens_per_s": rate}
        for name, rate in (("without_drafter", without), ("with_drafter", with_drafter))
    }
    return {**sides, "speedup": with_drafter / without}


FILES: dict[str, Any] = {
    "models/profile.json": PROFILE,
    "reports/reassembly.json": {"rows": 1500, "exact_share": 0.5},
    "reports/vocab.json": {},
    "reports/extraction.json": {
        "train": {"datasets": {"chat": {"generated_tokens": 300, "agreement": 1.0}}},
        "val": {"datasets": {"chat": {"generated_tokens": 100, "agreement": 0.5}}},
        "fixture": {},
    },
    "reports/train/summary.json": {},
    "reports/train/speed.json": {},
    "reports/acceptance.json": {
        "datasets": {
            "chat": {"drafts": 900, "acceptance": acceptance(1.75, 0.5, 0.25)},
            "code": {"drafts": 0, "acceptance": acceptance(None, None, None)},
        }
    },
    "reports/engine.json": {
        "answers": {"with_drafter_as_without": {"answers": 9, "identical": 8}},
        "datasets": {
            "chat": {
                "drafts": 800,
                "acceptance": acceptance(1.8, 0.45, 0.35),
                "in_answers": {"acceptance": acceptance(1.7, 0.45, 0.25)},
                "difference": {"length": -0.0286, "at_1": -0.1, "at_2": None},
            }
        },
    },
    "reports/speed.json": {
        "by_concurrency": {
            "16": {**level(200.0, 100.0), "datasets": {"chat": level(200.0, 100.0)}},
            "2": {**level(50.0, 100.0), "datasets": {"chat": level(50.0, 100.0)}},
        },
        "by_draft_tokens": {
            "1": {"acceptance_length": 1.5, "by_concurrency": {"2": {"tokens_per_s": 80.0, "speedup": 1.6}}},
            "10": {"acceptance_length": 1.8, "by_concurrency": {"2": {"tokens_per_s": 90.0, "speedup": 1.8}}},
        },
        "best_draft_tokens": {"2": 10},
    },
}
TEXTS = {
    "reports/reassembly/rows.tsv": "dataset\toutcome\trows\nchat\texact_by_ids\t1000\nchat\trefused\t500\n",
    "reports/reassembly/kinds.tsv": "dataset\tkind\ttokens\tshare\nchat\tprompt\t10\t0.25\nchat\tanswer\t30\t0.75\n",
    "reports/reassembly/lengths.tsv": "dataset\tlength\trows\nchat\t1\t700\nchat\t65\t800\n",
    "reports/train/validations.tsv": "epoch\tstep\tacceptance_length\n0\t0\t1.0\n1\t50\t1.625\n",
    "reports/train/plots/loss_step_1.tsv": "step\tloss_step_1\n1\t9.5\n2\t3.25\n",
    "reports/acceptance/by_position.csv": "dataset,position,acceptance_length,drafts\nchat,0,1.5,80\nchat,8,,0\n",
    "reports/acceptance/by_kind.csv": "dataset,kind,acceptance_length,drafts\nchat,answer,1.5,80\ncode,reasoning,2.5,9\n",
    "reports/acceptance/by_draft_tokens.csv": (
        "dataset,draft_tokens,acceptance_length,low,high\nchat,1,1.5,1.4,1.6\nchat,2,1.75,1.6,1.9\n"
    ),
}


def write_reports(root: Path) -> Path:
    """A repository after its last stage, without reports/acceptance/by_context.csv."""
    for name, values in FILES.items():
        _write(root / name, json.dumps(values))
    for name, text in TEXTS.items():
        _write(root / name, text)
    return root


@pytest.fixture
def reported(tmp_path: Path) -> Path:
    return write_reports(tmp_path)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
