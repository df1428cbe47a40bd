"""Value bridging: what is trained when, by which bootstrap, each token once; and what is said about its error."""

import numpy as np
import pytest
import torch
from tests.helpers.models import random_decoder
from tests.unit.learn.helpers import (
    DenseAttention,
    assert_close,
    gradient_of_update,
    group,
    learn_config,
    plain_logprobs,
)

from untail.config import BridgeConfig, CriticConfig
from untail.learn.bridge import Bridge, estimate_of
from untail.learn.trainer import Trainer
from untail.types import Batch, Group, Segment, Trajectory

VOCAB = 199
GAMMA, LAM = 0.97, 0.9


def cut(trajectory: Trajectory, length: int, *ends: int) -> Trajectory:
    """As it was when it had `length` tokens and its segments had ended there: unfinished."""
    columns = ("tokens", "policy_logprob", "behaviour_logprob", "entropy", "p_eos", "version", "from_model")
    part = Trajectory(trajectory.id, trajectory.prompt, 0, *(getattr(trajectory, name)[:length] for name in columns))
    part.end, part.segments = "boundary", segments(*ends)
    return part


def segments(*ends: int) -> list[Segment]:
    return [Segment(begin, end, "cut") for begin, end in zip((0, *ends), ends, strict=False)]


def long_one(length: int = 60, reward: float = 1.0, **more) -> Trajectory:
    return group("g", [length], [reward], VOCAB, **more).trajectories[0]


def underway(*trajectories: Trajectory) -> Batch:
    return Batch(1, [], [Group("g", trajectories[0].prompt, list(trajectories))])


def finished(trajectory: Trajectory, *ends: int) -> Batch:
    trajectory.segments = segments(*ends, len(trajectory.tokens))
    return Batch(2, [Group("g", trajectory.prompt, [trajectory])])


def pieces(bridge: Bridge, batch: Batch) -> list[tuple[int, int, tuple[int, ...]]]:
    """What is trained of one trajectory, and the bridge told so."""
    _, stretches = bridge.stretches(batch)
    values = {name: np.zeros(len(stretch.trajectory.tokens) + 1) for name, stretch in stretches.items()}
    bridge.crossed(batch, stretches.values(), {n: estimate_of(s, values[n]) for n, s in stretches.items()}, 1.0)
    return [(stretch.begin, stretch.end, stretch.beyond) for stretch in stretches.values()]


def test_a_segment_waits_for_the_first_tokens_of_the_next():
    whole, bridge = long_one(60), Bridge(BridgeConfig())
    assert pieces(bridge, underway(cut(whole, 10, 10))) == []
    assert pieces(bridge, underway(cut(whole, 25, 10, 25))) == [], "15 are not 16"
    assert pieces(bridge, underway(cut(whole, 26, 10, 26))) == [(0, 10, tuple(range(10, 26)))]
    assert pieces(bridge, underway(cut(whole, 50, 10, 26, 30, 50))) == [(10, 30, tuple(range(30, 46)))]
    assert pieces(bridge, underway(cut(whole, 50, 10, 26, 30, 50))) == [], "nothing is trained twice"
    assert pieces(bridge, finished(whole, 10, 26, 30, 50)) == [(30, 60, ())]
    assert bridge.state() == {}


def test_every_token_is_trained_once_however_it_is_cut():
    random = np.random.default_rng(0)
    for tokens in (0, 3, 16):
        for _ in range(30):
            whole, bridge, seen, ends = long_one(60), Bridge(BridgeConfig(tokens=tokens)), [], []
            for length in sorted(random.choice(np.arange(1, 60), 5, replace=False).tolist()):
                ends.append(length)
                seen += pieces(bridge, underway(cut(whole, length, *ends)))
            seen += pieces(bridge, finished(whole, *ends))
            assert [t for begin, end, _ in seen for t in range(begin, end)] == list(range(60))


def test_a_trajectory_that_ends_first_is_trained_by_its_return():
    """Its last segment never gets its 16 tokens."""
    whole, bridge = long_one(30), Bridge(BridgeConfig())
    assert pieces(bridge, underway(cut(whole, 20, 20))) == []
    _, stretches = bridge.stretches(finished(whole, 20))
    estimate = estimate_of(stretches["g.0"], np.zeros(30))
    assert (estimate.begin, estimate.end, estimate.reward, estimate.bootstrap) == (0, 30, 1.0, 0.0)


def test_replies_do_not_count_as_tokens_of_the_next_segment():
    whole, bridge = long_one(60, reply_at=12), Bridge(BridgeConfig(tokens=4))
    assert pieces(bridge, underway(cut(whole, 16, 10, 16))) == []
    assert pieces(bridge, underway(cut(whole, 18, 10, 18))) == [(0, 10, (10, 11, 15, 16))]


def test_what_is_over_but_waits_for_its_group_is_not_trained_ahead():
    stopped, ended = (cut(long_one(60), 50, 10, 50) for _ in range(2))
    stopped.stopped, stopped.end, ended.end = "loop", None, "stop"
    assert pieces(Bridge(BridgeConfig()), underway(stopped)) == []
    assert pieces(Bridge(BridgeConfig()), underway(ended)) == []


def test_whoever_is_gone_is_forgotten_and_whoever_waits_is_not():
    whole, bridge = long_one(60), Bridge(BridgeConfig())
    pieces(bridge, underway(cut(whole, 40, 10, 40)))
    assert list(bridge.state()) == ["g.0"]
    again = Bridge(BridgeConfig())
    again.restore(bridge.state())
    assert again.state() == bridge.state()
    pieces(bridge, underway(group("other", [5], [0.0], VOCAB).trajectories[0]))
    assert bridge.state() == {}


def test_without_a_config_nothing_is_trained_ahead():
    whole, bridge = long_one(60), Bridge(None)
    assert pieces(bridge, underway(cut(whole, 40, 10, 40))) == []
    assert pieces(bridge, finished(whole, 10, 40)) == [(0, 60, ())]


def test_errors_against_the_final_return():
    """It rested at 10, 40 and 47; after the last it ended too soon. What it passed at 30 and 44 is nobody's concern."""
    whole, bridge, random = long_one(50, reward=2.0), Bridge(BridgeConfig(tokens=4)), np.random.default_rng(1)
    first, second, third = random.normal(size=40), random.normal(size=47), random.normal(size=50)

    def judged(batch, value_N):
        _, stretches = bridge.stretches(batch)
        estimates = {name: estimate_of(stretch, value_N) for name, stretch in stretches.items()}
        return bridge.crossed(batch, stretches.values(), estimates, GAMMA).figures()

    nothing = {"bridge_ends": 0, "bridge_ends_read": 0}
    assert judged(underway(cut(whole, 10, 10)), None) == nothing
    assert judged(underway(cut(whole, 40, 10, 30, 40)), first) == nothing
    assert judged(underway(cut(whole, 47, 10, 30, 40, 44, 47)), second) == nothing
    figures = judged(finished(whole, 10, 30, 40, 44, 47), third)
    at = lambda position: 2.0 * GAMMA ** (49 - position)
    bridged = [first[10:14].mean() - at(10), second[40:44].mean() - at(40)]
    last = [first[10] - at(10), second[40] - at(40), third[47] - at(47)]
    expected = {
        "bridge_ends": 3,
        "bridge_ends_read": 2,
        "bridge_error": sum(e * e for e in bridged) / 3,
        "bridge_error_last": sum(e * e for e in last) / 3,
        "bridge_error_read": sum(e * e for e in bridged) / 2,
        "bridge_error_last_read": sum(e * e for e in last[:2]) / 2,
    }
    assert figures == pytest.approx(expected, abs=1e-12)


# ---- in an update ----------------------------------------------------------------------------------------------


def make_trainer(tokens: int = 16) -> Trainer:
    config = learn_config(
        advantage={"name": "ppo", "gamma": GAMMA, "lam": LAM, "whiten": False},
        critic=CriticConfig(),
        bridge=BridgeConfig(tokens=tokens),
        micro_batch_tokens=60,
    )
    trainer = Trainer(random_decoder("llama", dtype=torch.float64), config)
    with torch.no_grad():
        trainer.values.critic.head.outer.normal_(generator=torch.Generator().manual_seed(1))
    return trainer


def plain_values(trainer: Trainer, trajectory: Trajectory) -> list[float]:
    prompt = list(trajectory.prompt.tokens)
    ids = torch.tensor(prompt + trajectory.tokens)
    hidden = trainer.policy.decoder(ids, torch.arange(len(ids)), DenseAttention())[len(prompt) - 1 :]
    return trainer.values.critic.head(hidden).tolist()


@pytest.mark.parametrize("tokens", [16, 3, 0])
def test_the_gradient_of_a_bridged_segment_against_a_plain_loop(tokens, monkeypatch):
    """One trajectory is trained ahead up to its second segment's end, another of the batch to its own."""
    trainer, ended = make_trainer(tokens), group("h", [8], [1.0], VOCAB).trajectories[0]
    length = 30 + tokens
    open_one = cut(long_one(60), length, 12, 30, *([length] if tokens else []))
    batch = underway(open_one)
    batch.groups = [Group("h", ended.prompt, [ended])]
    parts = {open_one.id: (open_one, 30), ended.id: (ended, 8)}
    total = torch.zeros((), dtype=torch.float64)
    for trajectory, end in parts.values():
        values, logprobs = plain_values(trainer, trajectory), plain_logprobs(trainer.policy.decoder, trajectory, 1.0)
        ahead = ended.reward if trajectory is ended else GAMMA * np.mean(values[30 : 30 + max(tokens, 1)])
        later = 0.0
        for t in range(end - 1, -1, -1):
            later = ahead - values[t] + GAMMA * LAM * later
            ahead = GAMMA * values[t]
            total = total - (logprobs[t] - logprobs[t].detach()).exp() * later / (30 + 8)
    total.backward()
    theirs = {name: p.grad.clone() for name, p in trainer.policy.decoder.named_parameters()}
    trainer.policy.decoder.zero_grad()
    assert_close(gradient_of_update(trainer, batch, monkeypatch), theirs, 1e-8)


def test_an_update_reports_what_it_trained_ahead_and_a_resumed_one_goes_on():
    whole = long_one(60)
    first = make_trainer()
    figures = first.update(underway(cut(whole, 40, 10, 40)))
    assert figures["bridged_tokens"] == figures["loss_tokens"] == 10
    assert figures["bridge_ends"] == 0
    tensors, numbers = first.state_dict()
    second = make_trainer()
    second.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()}, numbers)
    timeless = lambda figures: {name: value for name, value in figures.items() if not name.endswith("_s")}
    ours, theirs = (timeless(trainer.update(finished(whole, 10, 40))) for trainer in (first, second))
    assert ours == theirs
    assert ours["loss_tokens"] == 50
    assert ours["bridged_tokens"] == 0
    assert (ours["bridge_ends"], ours["bridge_ends_read"]) == (1, 1)
