"""The numbers of reports/vocab.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from eyas.vocab.draft_vocab import DraftVocab, total_counts


def vocab_report(vocab: DraftVocab, counts: Mapping[str, pl.DataFrame]) -> dict[str, Any]:
    """Sizes, and the share of supervised tokens inside the draft vocabulary by split and dataset.

    `counts`: supervised_counts of each split. The coverage of `eval` bounds greedy acceptance from above.
    """
    trained_on = set(counts["train"]["token"].to_list())
    kept = set(vocab.draft_ids.tolist())
    return {
        "size": len(vocab.draft_ids),
        "target_vocab_size": vocab.target_vocab_size,
        "distinct_train_tokens": len(trained_on),
        "kept_but_not_in_train": len(kept - trained_on),
        "coverage": {split: vocab.coverage(total_counts(table)) for split, table in counts.items()},
        "coverage_by_dataset": {
            split: {
                str(name[0]): vocab.coverage(table)
                for name, table in sorted(by_dataset.partition_by("dataset", as_dict=True).items())
            }
            for split, by_dataset in counts.items()
        },
    }
