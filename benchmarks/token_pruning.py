"""What gradient-guided token pruning (8.4) saves in an update of the tiny model, and what `detach` costs in direction.

One batch, sampled by the model itself: 32 prompts x 8, rewards dealt 0 and 1 in turn so that every group teaches. The
same update is timed without pruning, with `exact` and with `detach` at 40 % dropped, in turn. The cosines are of whole
gradients: of `exact` (the masked gradient) to the unpruned one, and of `detach` to `exact`.

Seconds are CPU seconds of this process as well as wall seconds: the first tell what was saved also on a machine that
others use. Either side of a ratio is its 10 % quantile, since what others do only adds; the median is given beside it.

    OMP_NUM_THREADS=1 nice -n 10 python benchmarks/token_pruning.py OUT.json [ROUNDS]
"""

import copy
import json
import sys
import time
from pathlib import Path
from statistics import median, quantiles

import torch

from untail.config import EngineConfig, LearnConfig, PruneConfig, load_recipe
from untail.engine.engine import Engine
from untail.engine.models.load import LoadedModel, load_model
from untail.learn.trainer import Trainer
from untail.tasks.prepare import prepare
from untail.types import Batch, Group, SamplingParams, SequenceSpec, Trajectory

PROMPTS, GROUP, SHARE = 32, 8, 0.4
ARMS = {
    "whole": None,
    "exact": PruneConfig(share=SHARE, how="exact"),
    "detach": PruneConfig(share=SHARE, how="detach", cosine_every=0),
}


def sample_batch(model: LoadedModel) -> Batch:
    recipe = load_recipe(None, {}, [])
    prompts = prepare(recipe, model.tokenizer, model.decoder.shape.context).prompts[:PROMPTS]
    engine, sampling = Engine(model.decoder, EngineConfig()), SamplingParams(stop_ids=model.tokenizer.eos_ids)
    trajectories = [Trajectory(str(row), prompts[row // GROUP], row) for row in range(PROMPTS * GROUP)]
    for row, trajectory in enumerate(trajectories):
        trajectory.reward = float(row % 2)
        engine.add(SequenceSpec(trajectory.id, trajectory.prompt.tokens, recipe.rollout.max_tokens, row, sampling))
    while engine.has_work:
        for name, chunk in engine.step():
            trajectories[int(name)].take(chunk)
    return Batch(1, [Group(str(n), p, trajectories[n * GROUP : (n + 1) * GROUP]) for n, p in enumerate(prompts)])


def gradient(model: LoadedModel, batch: Batch, arm: PruneConfig | None) -> torch.Tensor:
    """What an update hands to its optimizer, as one vector."""
    decoder = copy.deepcopy(model.decoder)
    trainer, seen = Trainer(decoder, LearnConfig(prune=arm)), []

    def record() -> tuple[torch.Tensor, bool]:
        seen.extend(parameter.grad.flatten() for parameter in decoder.parameters())
        return torch.zeros(()), True

    trainer._optimizer.step = record
    trainer.update(batch)
    return torch.cat(seen).double()


def speedups(seconds: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    fast = {arm: quantiles(times, n=10)[0] for arm, times in seconds.items()}
    pairs = {arm: zip(seconds["whole"], times, strict=True) for arm, times in seconds.items()}
    return {
        "seconds": fast,
        "speedup": {arm: fast["whole"] / fast[arm] for arm in ("exact", "detach")},
        "speedup_median": {arm: median(whole / own for whole, own in pairs[arm]) for arm in ("exact", "detach")},
    }


def main(out: Path, rounds: int) -> None:
    model = load_model("tiny", "cpu", "float32")
    batch = sample_batch(model)
    cpu, wall = ({arm: [] for arm in ARMS} for _ in range(2))
    for number in range(rounds + 1):
        for arm, config in ARMS.items():
            trainer, begin = Trainer(copy.deepcopy(model.decoder), LearnConfig(prune=config)), time.process_time()
            figures = trainer.update(batch)
            if number:  # the first round warms up
                cpu[arm].append(time.process_time() - begin)
                wall[arm].append(figures["update_s"])
    cosine = lambda a, b: float(torch.nn.functional.cosine_similarity(a, b, dim=0))
    whole, exact, detach = (gradient(model, batch, arm) for arm in ARMS.values())
    result = {
        "tokens": sum(len(trajectory.tokens) for trajectory in batch.trajectories),
        "share": SHARE,
        "rounds": rounds,
        "cpu": speedups(cpu),
        "wall": speedups(wall),
        "cosine_exact_to_whole": cosine(exact, whole),
        "cosine_detach_to_exact": cosine(detach, exact),
        "norm_detach_over_exact": float(detach.norm() / exact.norm()),
    }
    out.write_text(json.dumps(result) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    torch.manual_seed(0)
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 15)
