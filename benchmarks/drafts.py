"""How often drafts were accepted, step by step and epoch by epoch: `python benchmarks/drafts.py OUT.json RUN...`.

An epoch is as many steps as it takes to see every prompt once. `accept_len` is the number of accepted drafts of a
sequence in a step of the engine that carried some; the model's own token after them comes on top. `worst_fall` is the
largest fall of its mean over four steps against the four before, as a share: between one step and the next lie an
update of the weights and other prompts, and a drafter that never changes shows how much the prompts do.
"""

import json
import sys
from pathlib import Path
from statistics import mean

PROMPTS = 512  # of the quickstart
SMOOTH = 4  # steps
ENOUGH = 50  # proposals of a step, below which its mean says little


def drafts_of(folder: Path) -> dict:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    recipe = json.loads((folder / "events.jsonl").open().readline())["recipe"]
    epoch = PROMPTS // recipe["rollout"]["prompts"]
    names = sorted({name for row in rows for name in row["drafts"]})
    return {"run": folder.name, "drafters": {name: drafter(rows, name, epoch) for name in names}}


def drafter(rows: list[dict], name: str, epoch: int) -> dict:
    counts = [row["drafts"][name] for row in rows]
    lengths = [one["accepted"] / one["proposals"] if one["proposals"] >= ENOUGH else None for one in counts]
    known = [length for length in lengths if length is not None]
    epochs = [summed(counts[begin : begin + epoch]) for begin in range(0, len(counts), epoch)]
    means = [mean(known[begin : begin + SMOOTH]) for begin in range(len(known) - SMOOTH + 1)]
    falls = [1 - later / earlier for earlier, later in zip(means, means[SMOOTH:], strict=False) if earlier]
    return {"epochs": epochs, "accept_len": lengths, "worst_fall": max(falls, default=None)}


def summed(counts: list[dict]) -> dict:
    proposals, drafted, accepted = (sum(one[key] for one in counts) for key in ("proposals", "drafted", "accepted"))
    return {
        "steps": len(counts),
        "proposals": proposals,
        "acceptance": accepted / drafted if drafted else None,
        "accept_len": accepted / proposals if proposals else None,
    }


def main(out: Path, folders: list[Path]) -> None:
    runs = [drafts_of(folder) for folder in folders]
    out.write_text(json.dumps({"runs": runs}) + "\n")
    for run in runs:
        for name, figures in run["drafters"].items():
            print(run["run"], name, figures["epochs"], figures["worst_fall"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
