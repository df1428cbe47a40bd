"""What is not waited for is not like what is kept: the figures say how much, and they are right about it.

The truth is the law's: how long every response that was started would have become, and what it was worth.
"""

import json
from dataclasses import dataclass
from statistics import fmean, stdev

import pytest

from tests.helpers.steps import Steps, assert_close, simulate_steps, small_recipe, standard_error
from untail.backends.laws import ENTROPY, Draw, LogNormal, reward_of, sim_prompts
from untail.backends.sim import SimBackend, SimConfig
from untail.backends.virtual_loop import run_virtual
from untail.observe.figures import run_figures
from untail.rewards.scorer import Score
from untail.rollout.validate import validate
from untail.types import Prompt, SamplingParams, stream_key

POOL, LONGEST = 24, 128


@dataclass(frozen=True)
class LongIsRight(LogNormal):
    """The longer a response, the likelier its reward: who keeps the short ones keeps the wrong ones."""

    median: float = 24.0
    p99: float = 250.0
    prompt_share: float = 0.5

    def draw(self, prompt: Prompt, stream: int) -> Draw:
        length = self._length(prompt, stream)
        return Draw(length, float(self._uniform(prompt, "reward", stream) < length / 80), ENTROPY)


def run(name: str, seed: int, steps: int, audit: float = 0.3, **more) -> Steps:
    recipe = small_recipe(name, max_tokens=LONGEST, audit=audit)
    return simulate_steps(recipe, LongIsRight(seed), steps, pool=POOL, seed=seed, **more)


def truth_of(taken: Steps, seed: int) -> tuple[float, float]:
    """Mean length and reward of all that were started, had they run to their end."""
    law = LongIsRight(seed)
    prompts = {prompt.id: prompt for prompt in sim_prompts(POOL, law)}
    draws = [law.draw(prompts[event["prompt"]], stream_key(seed, event["id"])) for event in taken.all("start")]
    lengths = fmean(min(draw.length, LONGEST) for draw in draws)
    return lengths, fmean(draw.reward if draw.length <= LONGEST else 0.0 for draw in draws)


def figures_of(taken: Steps, path) -> dict[str, float | None]:
    """As a run reports them, from its events.jsonl alone."""
    events = [{"e": "run", "concurrency": 12, "engines": 2}, *(event for step in taken.events for event in step)]
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return run_figures(path)["kept_vs_all"]


def test_over_sampling_reports_its_bias(tmp_path):
    taken = run("oversample", seed=0, steps=40)
    figures = figures_of(taken, tmp_path / "events.jsonl")
    length, reward = truth_of(taken, seed=0)
    fates = taken.fates
    audited = list(fates.audited.values())
    not_waited_for = len(fates.started - fates.scored.keys()) / len(fates.started)
    for name, truth, values in (
        ("len", length, [outcome.tokens for outcome in audited]),
        ("reward", reward, [outcome.reward for outcome in audited]),
    ):
        error = not_waited_for * stdev(values) / len(values) ** 0.5
        assert figures[f"kept_{name}"] < truth - 3 * error, "the law must make a bias that can be seen"
        assert figures[f"kept_{name}"] < figures[f"all_{name}"]
        assert_close(figures[f"all_{name}"], truth, error)


@pytest.mark.parametrize("name", ["oversample", "rollpacker"])
def test_the_estimate_of_all_is_unbiased(name):
    """Also where answers are with their scorer when their group no longer needs them: those need no audit."""
    apart: list[tuple[float, float]] = []
    for seed in range(8):
        taken = run(name, seed, steps=15, score_s=0.1)
        figures, (length, reward) = taken.fates.kept_vs_all(), truth_of(taken, seed)
        apart.append((figures["all_len"] - length, figures["all_reward"] - reward))
    for errors in zip(*apart, strict=True):
        assert_close(fmean(errors), 0.0, standard_error(errors))


def test_slow_scores_do_not_let_the_rest_run_on():
    """The step closes when enough have finished; their rewards are waited for, and nothing else."""
    fast, slow = (run("oversample", 0, steps=1, score_s=seconds) for seconds in (0.0, 60.0))
    trained = lambda taken: {trajectory.id: trajectory.tokens for _, trajectory in taken.trained}
    assert trained(slow) == trained(fast)
    assert len(slow.all("cancel")) == len(fast.all("cancel")) > 0


def test_who_waits_for_all_has_no_bias(tmp_path):
    taken = run("grpo", seed=0, steps=5)
    figures = figures_of(taken, tmp_path / "events.jsonl")
    length, reward = truth_of(taken, seed=0)
    assert figures["kept_len"] == figures["all_len"] == pytest.approx(length)
    assert figures["kept_reward"] == figures["all_reward"] == pytest.approx(reward)


def test_without_an_audit_nothing_is_claimed(tmp_path):
    figures = figures_of(run("oversample", 0, steps=5, audit=0.0), tmp_path / "events.jsonl")
    assert (figures["all_len"], figures["all_reward"]) == (None, None)
    assert figures["kept_len"] is not None


@pytest.mark.parametrize("slots", [1, 8])
def test_validation_never_cancels(slots):
    """No mechanism has a say in it: it asks for nothing but a backend and prompts. See also tests/e2e."""

    async def judge():
        law = LongIsRight(0)
        backend = SimBackend(law, SimConfig(slots=slots))

        async def score(trajectory):
            return Score(reward_of(law, trajectory))

        prompts = sim_prompts(40, law)
        answers = await validate(backend, slots, prompts, score, SamplingParams(), LONGEST, "valid-1", seed=0)
        await backend.close()
        return law, prompts, answers

    law, prompts, answers = run_virtual(judge())
    assert [answer.prompt for answer in answers] == prompts
    for answer in answers:
        drawn = law.draw(answer.prompt, answer.stream)
        assert len(answer.tokens) == min(drawn.length, LONGEST)
        assert answer.end == ("stop" if drawn.length <= LONGEST else "length")
    assert {answer.end for answer in answers} == {"stop", "length"}
