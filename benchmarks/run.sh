#!/usr/bin/env bash
# Every figure of benchmarks/README.md, written to benchmarks/data. Run it on a quiet machine: `make bench`.
set -euo pipefail
cd "$(dirname "$0")/.."
data=benchmarks/data
untail=.venv/bin/untail
mkdir -p runs

$untail bench engine --peer transformers --json | tail -1 > $data/engine.json
$untail bench train --peer trl --json | tail -1 > $data/train.json
for seed in 0 1 2; do
  run=runs/benchmark-seed$seed
  rm -rf "$run"
  $untail train --set seed=$seed --set validation.every=10 --out "$run" --json | tail -1 > $data/quickstart-seed$seed.json
  cp "$run/metrics.jsonl" $data/quickstart-seed$seed.metrics.jsonl
  grep '"e": "validation"' "$run/events.jsonl" > $data/quickstart-seed$seed.validation.jsonl
done

# Recipes side by side: the same start weights, prompts, slots and seeds, a step each in turn.
for seed in 0 1 2; do
  rm -rf runs/compare-seed$seed
  $untail compare grpo ulorl oversample april es-grpo untail --steps 30 --set seed=$seed --out runs/compare-seed$seed --json \
    | tail -1 > $data/compare-seed$seed.json
  rm -rf runs/grpo-untail-seed$seed
  $untail compare grpo untail --steps 30 --set seed=$seed --set validation.every=30 --out runs/grpo-untail-seed$seed --json \
    | tail -1 > $data/grpo-untail-seed$seed.json
done
rm -rf runs/easy
$untail compare grpo es-grpo --steps 16 --set task.mixture.1=1 --set task.mixture.2=1 --set validation.every=16 \
  --out runs/easy --json | tail -1 > $data/easy.json
benchmarks/turns.sh
rm -rf runs/ablate
$untail compare es-grpo --ablate out --steps 16 --out runs/ablate --json | tail -1 > $data/ablate-es-grpo.json
.venv/bin/python benchmarks/predictor.py $data/predictor.json

# Mastered tokens in the loss and out of it: what becomes of the policy's entropy, and of its score.
rm -rf runs/mastered
$untail compare ulorl --vary 'learn.masks.mastered=false,{}' --steps 40 --seeds 3 --out runs/mastered --json \
  | tail -1 > $data/mastered.json
.venv/bin/python benchmarks/curves.py $data/mastered.curves.json runs/mastered/*/

# The critic's error at segment ends with value bridging and without; what pruned tokens save in an update.
.venv/bin/python benchmarks/bridging.py $data/bridging.json 24 0,1
OMP_NUM_THREADS=1 .venv/bin/python benchmarks/token_pruning.py $data/token_pruning.json

# In virtual time: 8 engines, 64 x 8 trajectories a step.
for law in lognormal stress short; do
  $untail simulate --law $law --recipes grpo,ulorl,rollpacker,april,es-grpo,untail --json | tail -1 > $data/sim-$law.json
done
.venv/bin/python benchmarks/sim/first_segment.py runs/first-segment.jsonl
$untail simulate --trace runs/first-segment.jsonl --recipes ulorl,es-grpo --set rollout.max_tokens=8192 --warmup 9 --json \
  | tail -1 > $data/sim-first-segment.json
$untail simulate --recipes benchmarks/sim/no-repack.toml,benchmarks/sim/laminar.toml --json | tail -1 > $data/sim-laminar.json
$untail simulate --devices 1024 --recipes grpo,es-grpo,untail --steps 1 --warmup 0 --json | tail -1 > $data/sim-scale.json
OMP_NUM_THREADS=1 .venv/bin/python benchmarks/sim_vs_native.py | tail -1 > $data/sim-vs-native.json

# Between segments: what pruning and forking do to groups without variance, and to the score at equal tokens. Responses
# of the tiny model are short, so segments are, too. No rule is switched off by its audit, or there would be nothing to see.
OMP_NUM_THREADS=1 .venv/bin/python benchmarks/fork.py $data/fork.json
short="--set mechanisms.fixed.segments=32 --set rollout.patience=segment --set validation.every=4 --set rollout.max_false_kills=1.0"
rm -rf runs/vary-dygs runs/vary-adaseg runs/prune-fork
$untail compare dygs --vary mechanisms.outliers.probability=0.3,0.5,0.7 --steps 24 $short \
  --set mechanisms.outliers.combine=any --out runs/vary-dygs --json | tail -1 > $data/vary-dygs.json
$untail compare adaseg --vary mechanisms.tournament.share=0.3,0.5,0.7 --steps 24 --set mechanisms.tournament.floor=0.25 \
  --set mechanisms.entropy.min_stride=128 --set mechanisms.entropy.max_stride=512 --set rollout.watch_every=8 \
  --set validation.every=4 --set rollout.max_false_kills=1.0 --out runs/vary-adaseg --json | tail -1 > $data/vary-adaseg.json
$untail compare grpo dygs adaseg --steps 24 --set validation.every=4 --out runs/prune-fork --json \
  | tail -1 > $data/prune-fork.json
rm -rf runs/fork-or-not
$untail compare dygs --ablate out --steps 24 $short --set mechanisms.outliers.combine=any --out runs/fork-or-not --json \
  | tail -1 > $data/fork-or-not.json
for recipe in dygs dyg-seg; do  # everybody who is pruned runs on: would it have been rewarded?
  rm -rf runs/pruned-$recipe
  $untail train $recipe --steps 24 $short --set rollout.audit=1.0 \
    --out runs/pruned-$recipe
done
.venv/bin/python benchmarks/pruning.py $data/pruning.json runs/pruned-*

# Drafting: strategies by batch size, where SmolLM2 is as sure as a policy in RL and where it is not at all; what the
# history gives in the second epoch and siblings in the first; a drafter that goes on learning and one that does not.
machine=$([ "$(uname -m)" = aarch64 ] && echo -neoverse || true)
$untail bench draft --batch 1 --runs 8 --json | tail -1 > $data/draft$machine.json
$untail bench draft --batch 4 --runs 6 --json | tail -1 > $data/draft$machine-4.json
$untail bench draft --batch 16 --strategies "history 2,history 8,ngram 2,adaptive 2,bandit" --json | tail -1 > $data/draft$machine-16.json
[ -z "$machine" ] || OMP_NUM_THREADS=1 .venv/bin/python benchmarks/rows.py $data/rows-neoverse.json
.venv/bin/python benchmarks/suffix.py $data/suffix.json
.venv/bin/python benchmarks/spot.py $data/spot.json
rm -rf runs/draft-epochs runs/draft-warm runs/draft-frozen
$untail compare rhymerl benchmarks/draft/ngram.toml --steps 32 --out runs/draft-epochs --json | tail -1 > $data/draft-epochs.json
.venv/bin/python benchmarks/drafts.py $data/draft-epochs.curves.json runs/draft-epochs/*/
$untail train benchmarks/draft/warm.toml --steps 4 --out runs/draft-warm
$untail compare benchmarks/draft/frozen.toml benchmarks/draft/adaptive.toml --steps 32 --out runs/draft-frozen --json \
  | tail -1 > $data/draft-frozen.json
.venv/bin/python benchmarks/drafts.py $data/draft-frozen.curves.json runs/draft-frozen/*/

# What a sprint for the last third is worth, on other seeds; then the tail with everything: three seeds, each in one comparison.
rm -rf runs/sprint
$untail compare untail --vary mechanisms.sprint.missing=0.1,0.3 --steps 30 --set seed=3 --seeds 2 --out runs/sprint --json \
  | tail -1 > $data/sprint.json
for seed in 0 1 2; do
  rm -rf runs/tail-seed$seed
  $untail compare grpo es-grpo untail --steps 30 --set seed=$seed --out runs/tail-seed$seed --json \
    | tail -1 > $data/tail-seed$seed.json
done

# A policy against simulators, in the three modes and as planned.
OMP_NUM_THREADS=1 .venv/bin/python benchmarks/embodied.py $data/embodied.json 14

# What the host can deal with beside a device that takes no time; which roundings make engine and learner differ.
.venv/bin/python benchmarks/host.py $data/host.json
.venv/bin/python benchmarks/rounding.py $data/rounding.json

# The quickstart in three modes, one of them in portions too, against what is predicted; the file names the machine.
OMP_NUM_THREADS=1 .venv/bin/python benchmarks/modes.py $data/modes-neoverse.json 8
