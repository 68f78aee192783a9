#!/usr/bin/env bash
# Queue the ablation of docs/training.md as DVC experiments: the default run with one pass over the data, and one change
# to it each. What precedes training is taken over as it is, but for the draft vocabularies. Run it in the project's root
# after a `dvc repro`, then:
#   dvc queue start           one after the other; -j 2: two at a time, best with compute.threads: 1
#   dvc exp show --only-changed
#   dvc exp remove -A         before the same names are queued again
set -euo pipefail

queue() {
    local name=$1
    shift
    local changes=(-S train.epochs=1)
    local change
    for change in "$@"; do
        changes+=(-S "$change")
    done
    dvc exp run --queue --name "ablation-$name" "${changes[@]}" evaluate
}

queue baseline
queue seed-1 train.seed=1
queue seed-2 train.seed=2

queue adamw train.optimizer=adamw
queue lr-half train.lr=1.5e-3
queue lr-double train.lr=6.0e-3
queue cosine train.schedule=cosine
queue wsd train.schedule=wsd
queue ema train.ema=0.99
queue batch-512 train.batch_tokens=512
queue batch-2048 train.batch_tokens=2048
queue mixed-lengths train.bucket_steps=1
queue bf16 train.precision=bf16-mixed
queue betas 'train.betas=[0.9,0.95]'
queue weight-decay train.weight_decay=0.1

queue plain-flags train.drafter.norm_before_fc=false train.drafter.norm_before_residual=false train.drafter.norm_output=false
queue residual-unnormed train.drafter.norm_before_residual=false
queue fc-norm train.drafter.norm_before_fc=false train.drafter.fc_norm=true
queue frozen-head train.freeze_lm_head=true
queue vocab-2048 vocab.draft_vocab_size=2048
queue vocab-8192 vocab.draft_vocab_size=8192

queue kl train.objective.loss=kl
queue lk train.objective.loss=lk
queue lk-hybrid train.objective.loss=lk_hybrid
queue tv train.objective.loss=tv
queue mask-out-of-vocab train.objective.mask_out_of_vocab=true
queue step-decay train.objective.step_decay=0.8
queue per-sequence train.objective.normaliser=sequence
queue ttt-5 train.ttt_steps=5
