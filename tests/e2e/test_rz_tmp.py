import shutil

import pytest

from tests.e2e.test_recipes import *

CASES = {
    "batch": ["--set=engine.max_batch_tokens=24"],
    "kv": ["--set=engine.kv_blocks=24"],
    "both": ["--set=engine.max_batch_tokens=24", "--set=engine.kv_blocks=20"],
}


@pytest.mark.parametrize("name", ["es-grpo", "untail", "ulorl"])
@pytest.mark.parametrize("case", list(CASES))
def test_x(case, name, tmp_path):
    folder = tmp_path / "w"
    busy = [b for b in BUSY if not (name == "ulorl" and "mechanisms" in b)]
    o = untail("train", name, *busy, *CASES[case], "--out", folder)
    assert o.code == 0, o.err
    again = tmp_path / "again"
    o = untail("train", name, *busy, *CASES[case], "--out", again)
    assert o.code == 0, o.err
    assert_same_run(again, folder)
    print("same run twice")
    for step in (1, 2, 3):
        c = tmp_path / f"c{step}"
        shutil.copytree(folder, c)
        for later in range(step + 1, 5):
            shutil.rmtree(c / "checkpoints" / f"step-{later:06}")
        r = untail("train", "--resume", "--out", c)
        assert r.code == 0, r.err
        a, b = [timeless(x) for x in rows(c)], [timeless(x) for x in rows(folder)]
        d = [(x["step"], k, x[k], y[k]) for x, y in zip(a, b) for k in x if x[k] != y[k]]
        ev = sum(x != y for x, y in zip(events(c), events(folder)))
        print(
            case,
            name,
            step,
            "pre",
            sum(x["preemptions"] for x in b),
            "DIFF" if d else "same",
            d[:6],
            ev,
            history(c) == history(folder),
        )
