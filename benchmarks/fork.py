"""What a copy of a running sequence costs: a fork against a fresh prefill of the same length.

A sequence rests at a boundary with so many tokens. `fork_s` is the fork alone; `first_token_s` the time from it to the
copy's first token; `prefill_s` the time from adding a new sequence with the same tokens to its first token, without a
prefix cache. `blocks` is how many blocks of the KV pool each side takes by then. The 10 % quantile of each is given:
what others do on the machine only adds.

    OMP_NUM_THREADS=1 python benchmarks/fork.py OUT.json [MODEL] [ROUNDS]
"""

import json
import sys
import time
from pathlib import Path
from statistics import quantiles

from untail.config import EngineConfig
from untail.engine.engine import Engine
from untail.engine.models.load import load_model
from untail.types import SequenceSpec

LENGTHS = (64, 128, 256, 512, 960)


def main(out: Path, model: str, rounds: int) -> None:
    decoder = load_model(model, "auto", "auto").decoder
    engine = Engine(decoder, EngineConfig(kv_gib=0.5, prefix_cache=False))
    rows = [measure(engine, length, rounds) for length in LENGTHS]
    out.write_text(json.dumps({"model": model, "rounds": rounds, "rows": rows}) + "\n")


def measure(engine: Engine, length: int, rounds: int) -> dict[str, float]:
    tokens = tuple(2 + place % 250 for place in range(length))
    engine.add(SequenceSpec("parent", tokens, 1, 1))
    run_until_first_token(engine)
    forks, firsts, prefills, blocks = [], [], [], (0, 0)
    for number in range(rounds):
        free = engine.pool.free
        began = time.perf_counter()
        child = engine.fork("parent", [number])[0].children[0]
        forks.append(time.perf_counter() - began)
        engine.extend(child, 1)
        run_until_first_token(engine)
        firsts.append(time.perf_counter() - began)
        by_fork = free - engine.pool.free
        engine.release(child)
        began = time.perf_counter()
        engine.add(SequenceSpec("fresh", (*tokens, 1), 1, number))
        run_until_first_token(engine)
        prefills.append(time.perf_counter() - began)
        blocks = (by_fork, free - engine.pool.free)
        engine.release("fresh")
    engine.release("parent")
    fork_s, first_token_s, prefill_s = (quantiles(side, n=10)[0] for side in (forks, firsts, prefills))
    return {
        "tokens": length,
        "fork_s": fork_s,
        "first_token_s": first_token_s,
        "prefill_s": prefill_s,
        "ratio": prefill_s / first_token_s,
        "fork_blocks": blocks[0],
        "prefill_blocks": blocks[1],
    }


def run_until_first_token(engine: Engine) -> None:
    """The one that runs comes to its boundary with it."""
    while engine.has_work:
        engine.step()


if __name__ == "__main__":
    _, path, *rest = sys.argv
    main(Path(path), rest[0] if rest else "tiny", int(rest[1]) if len(rest) > 1 else 200)
