"""The batched replay of all draft rounds against the same rounds one after another, as an engine takes them.

    PYTHONPATH=src python benchmarks/acceptance.py [sequences]

Reads data/hidden/eval, models/target, models/drafter and models/export of a finished run in the working directory; of the
sequences so many, spread over the store, or all.

The other side keeps keys and values, takes a round's new tokens in one pass and then drafts token by token, in torch too
and with the same weights, one answer after another, for one number of draft tokens after the other. Both sides must count the same.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl
import torch
from torch import Tensor
from torch.nn import functional

from eyas import paths
from eyas.acceptance import AcceptanceCounts
from eyas.drafter.checkpoint import load_drafter
from eyas.drafter.model import Drafter
from eyas.drafter.vocab import VocabMap
from eyas.evaluate.exported import load_exported_weights
from eyas.evaluate.replay import replay
from eyas.evaluate.tally import count
from eyas.shards import HiddenStore, SequenceStates
from eyas.target.model import TargetHead
from eyas.target.spec import TargetProfile

DRAFT_TOKENS = 3
MOST = 8


class Part:
    """Some sequences of a store, in memory, as `replay` reads one."""

    def __init__(self, store: HiddenStore, places: Sequence[int]) -> None:
        self.sequences = [store[place] for place in places]
        self.lengths = [len(states.token_ids) for states in self.sequences]
        self.label_counts = [len(states.label_positions) for states in self.sequences]

    def __getitem__(self, place: int) -> SequenceStates:
        return self.sequences[place]


@dataclass(frozen=True)
class Pass:
    """What one pass over new slots gives: their outputs [N, H], and keys and values of all slots [heads, slots, D]."""

    output: Tensor
    normed: Tensor
    keys: Tensor
    values: Tensor


@dataclass(frozen=True)
class Sequential:
    """A drafter that is run as in an engine, for one request."""

    drafter: Drafter
    vocab: VocabMap
    embedding: Tensor

    def walk(self, states: SequenceStates, draft_tokens: int) -> AcceptanceCounts:
        """The rounds of one answer."""
        tokens = states.token_ids.long()
        known = int(states.loss_mask.long().argmax()) + 1  # the first generated token is the target's own
        drafts, accepted_at = 0, [0] * draft_tokens
        cache: Pass | None = None
        while known < len(tokens):
            seen = cache.keys.shape[1] if cache else 0
            features = self.drafter.fuse(states.aux[seen : known - 1].flatten(1))
            cache = self._pass(tokens[seen + 1 : known], features, cache)
            proposals = self._draft(cache, draft_tokens)
            accepted = 0
            for proposal, token in zip(proposals, tokens[known:].tolist(), strict=False):
                if proposal != token:
                    break
                accepted_at[accepted] += 1
                accepted += 1
            drafts += 1
            known += accepted + 1
        return AcceptanceCounts(drafts, [*accepted_at])

    def _draft(self, cache: Pass, draft_tokens: int) -> list[int]:
        proposals: list[int] = []
        run = cache
        while True:
            logits = self.drafter.lm_head(run.normed[-1])
            proposals.append(int(self.vocab.to_target(logits.argmax())))
            if len(proposals) == draft_tokens:
                return proposals
            feature = run.normed[-1:] if self.drafter.config.norm_output else run.output[-1:]
            run = self._pass(torch.tensor(proposals[-1:]), feature, run)

    def _pass(self, tokens: Tensor, feature: Tensor, cache: Pass | None) -> Pass:
        """New slots behind those of the cache."""
        layer, size = self.drafter.midlayer, self.drafter.config.head_dim
        start = cache.keys.shape[1] if cache else 0
        normed = layer.hidden_norm(feature)
        embedded = layer.input_layernorm(functional.embedding(tokens, self.embedding))
        joint = torch.cat((embedded, normed), dim=-1)  # [N, 2H]
        attention = layer.self_attn
        queries, keys, values = (
            projection(joint).unflatten(-1, (-1, size))
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        rotation = self.drafter.rotation(torch.arange(start, start + len(tokens)))
        queries, keys, values = (
            each.transpose(0, 1) for each in (rotation(queries), rotation(keys), values)
        )  # [heads, N, D]
        if cache:
            keys, values = torch.cat((cache.keys, keys), dim=1), torch.cat((cache.values, values), dim=1)
        seen = torch.ones(len(tokens), keys.shape[1], dtype=torch.bool).tril(start)
        attended = functional.scaled_dot_product_attention(
            queries[None], keys[None], values[None], attn_mask=seen, enable_gqa=True
        )[0]
        output = layer.output(feature, normed, attended.transpose(0, 1).flatten(1))
        return Pass(output, self.drafter.norm(output), keys, values)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Core-seconds, which another program on the machine disturbs less than seconds, and the result."""
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def all_counts(sequential: Sequential, part: Part, draft_tokens: int) -> AcceptanceCounts:
    total = AcceptanceCounts(0, [0] * draft_tokens)
    for states in part.sequences:
        total = total + sequential.walk(states, draft_tokens)
    return total


@torch.no_grad()
def main() -> None:
    profile = TargetProfile.read(paths.TARGET_PROFILE)
    drafter, vocab = load_drafter(paths.DRAFTER)
    load_exported_weights(drafter, paths.export("vllm"))
    embedding = TargetHead.read(paths.TARGET, profile, "float32").embedding
    store = HiddenStore(paths.hidden("eval"))
    wanted = min(len(store), int(sys.argv[1])) if len(sys.argv) > 1 else len(store)
    part: Any = Part(store, [len(store) * place // wanted for place in range(wanted)])
    sequential = Sequential(drafter.eval(), vocab, embedding)

    def batched(draft_tokens: int) -> pl.DataFrame:
        return replay(drafter, vocab, part, embedding, draft_tokens).rounds

    batched(1)  # the first call allocates
    slow: list[float] = []
    expected: list[AcceptanceCounts] = []
    for draft_tokens in range(1, DRAFT_TOKENS + 1):
        seconds, counts = timed(partial(all_counts, sequential, part, draft_tokens))
        slow.append(seconds)
        expected.append(counts)
        print(f"sequential, {draft_tokens} draft tokens: {seconds:.2f} core-s, {counts.drafts} rounds")
    print(f"{wanted} sequences, {torch.get_num_threads()} threads")
    for most in (DRAFT_TOKENS, MOST):
        fast, rounds = min((timed(partial(batched, most)) for _ in range(3)), key=lambda pair: pair[0])
        same = all(_counted(rounds, each) for each in expected)
        print(
            f"batched, 1 to {most} draft tokens: {fast:.2f} core-s, {sum(slow) / fast:.0f} times as fast as 1 to "
            f"{DRAFT_TOKENS} one after another, {slow[-1] / fast:.0f} times as {DRAFT_TOKENS} alone, "
            f"{'the same counts' if same else f'OTHER COUNTS than {expected}'}"
        )


def _counted(rounds: pl.DataFrame, expected: AcceptanceCounts) -> bool:
    draft_tokens = len(expected.accepted_at)
    found = count(rounds.filter(pl.col("draft_tokens") == draft_tokens), draft_tokens)
    return (found.drafts, found.accepted_at) == (expected.drafts, expected.accepted_at)


if __name__ == "__main__":
    main()
