#!/usr/bin/env bash
# Every figure of benchmarks/README.md, written to benchmarks/data. Run it on a quiet machine: `make bench`.
set -euo pipefail
cd "$(dirname "$0")/.."
data=benchmarks/data
untail=.venv/bin/untail

$untail bench engine --peer transformers --json | tail -1 > $data/engine.json
$untail bench train --peer trl --json | tail -1 > $data/train.json
for seed in 0 1 2; do
  run=runs/benchmark-seed$seed
  rm -rf "$run"
  $untail train --set seed=$seed --set validation.every=10 --out "$run" --json | tail -1 > $data/quickstart-seed$seed.json
  cp "$run/metrics.jsonl" $data/quickstart-seed$seed.metrics.jsonl
  grep '"e": "validation"' "$run/events.jsonl" > $data/quickstart-seed$seed.validation.jsonl
done
