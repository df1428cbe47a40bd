#!/bin/sh
# SmolLM2-135M-Instruct on reasoning-gym tasks: `sh benchmarks/h200/train.sh ROWS.jsonl OUT [RECIPE ...]` (ROWS from
# tasks.py; `grpo untail` if none is named). A short run comes first: what is compiled is kept on disk, and is then no
# recipe's time.
set -e
rows=$1 out=$2
shift 2
settings="--model smollm2 --task $rows --set rollout.prompts=64 --set rollout.group=8 --set rollout.max_tokens=2048
  --set engine.max_seqs=512 --set engine.kv_gib=24 --set engine.max_batch_tokens=16384 --set engine.context=8192
  --set learn.lr=3e-5 --set validation.prompts=256"
python -m untail.cli.main train untail $settings --steps 6 --out "$out/warm"
python -m untail.cli.main compare ${*:-grpo untail} $settings --steps 26 --set validation.every=3 --out "$out/compare" --json \
  > "$out/train.json"
