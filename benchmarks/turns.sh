#!/usr/bin/env bash
# Over-sampling and deferral where a tool's latency makes the tail: the try-again task, and a reply that takes 0.3 s in
# the median and 10 s in one case of a hundred. More arguments go to `untail compare`, e.g. --steps 2.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-benchmarks/data/turns.json}

rm -rf runs/turns
.venv/bin/untail compare grpo oversample april --steps 8 --out runs/turns --json --set rollout.max_tokens=128 \
  --set environment.name=try_again --set environment.turns=3 --set environment.time_limit_s=20 \
  --set environment.latency_s=0.3 --set environment.latency_sigma=1.5 "$@" | tail -1 > "$out"
