"""How well the length predictor does on the quickstart's second epoch, against an oracle.

In every step of the second epoch the predictor says how long each response will be from what history holds by then; the
oracle knows the mean length of 32 fresh samples of the same prompt, drawn right after the step. Both are judged by how
well they tell the longest 10 % of the step's responses from the rest (AUC), pooled over the epoch.

    python benchmarks/predictor.py OUT.json [RECIPE]
"""

import asyncio
import json
import math
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from untail.config import load_recipe
from untail.engine.models.load import load_model
from untail.flow.roles import LocalRoles
from untail.history.quality import prediction_quality
from untail.observe.events import read_lines
from untail.run import Run
from untail.tasks.prepare import prepare
from untail.train import Training

SAMPLES = 32


async def main(out: Path, name: str) -> None:
    recipe = load_recipe(name, {"validation": {"prompts": 8}}, [])
    model = load_model(recipe.model, recipe.engine.device, recipe.engine.dtype)
    data = prepare(recipe, model.tokenizer, model.decoder.shape.context)
    epoch = math.ceil(len(data.prompts) / recipe.rollout.prompts)
    recipe = recipe.model_copy(update={"steps": 2 * epoch})
    roles = LocalRoles(recipe, model, data.rewards, data.prompts)
    known = {prompt.id: prompt for prompt in data.prompts}
    predicted, oracle = [], []
    with tempfile.TemporaryDirectory() as folder:
        run = Run.begin(Path(folder) / "run", recipe)
        training = Training(run, roles, data.held_out, lambda row: None, asyncio.Event())
        await training.begin()
        for step in range(1, 2 * epoch + 1):
            begin = run.events.size
            await training.one_step()
            if step > epoch:
                ends = ends_of(read_lines(run.events.path, begin))
                prompts = [known[prompt] for prompt in ends for _ in range(SAMPLES)]
                fresh = defaultdict(list)
                for trajectory in await roles.validate(1000 + step, prompts, recipe.rollout.temperature):
                    fresh[trajectory.prompt.id].append(len(trajectory.tokens))
                for prompt, pairs in ends.items():
                    predicted += pairs
                    oracle += [(fmean(fresh[prompt]), length) for _, length in pairs]
        await roles.close()
        run.close()
    result = {"recipe": name, "predictor": prediction_quality(predicted), "oracle": prediction_quality(oracle)}
    result["auc_ratio"] = result["predictor"]["auc_top10"] / result["oracle"]["auc_top10"]
    out.write_text(json.dumps(result) + "\n")
    print(json.dumps(result))


def ends_of(events: list[dict]) -> dict[str, list[tuple[float, int]]]:
    """By prompt: what was predicted and how long it became."""
    prompts = {event["group"]: event["prompt"] for event in events if event["e"] == "admit"}
    ends = defaultdict(list)
    for event in events:
        if event["e"] == "end" and event["predicted"] is not None and event["group"] in prompts:
            ends[prompts[event["group"]]].append((event["predicted"], event["tokens"]))
    return ends


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "grpo"))
