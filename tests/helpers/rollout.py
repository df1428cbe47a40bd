"""A rollout as a mechanism sees it, made by hand: for tests of one mechanism alone."""

import random
from dataclasses import dataclass, field
from itertools import cycle

import untail.rollout.mechanisms  # noqa: F401  a mechanism is found by its name
from untail.history.predictor import Prediction, Predictor
from untail.history.store import History
from untail.rollout.live import GroupPlan, LiveGroup, Member, State
from untail.types import Group, Prompt, Trajectory, prompt_id, stream_key

UNKNOWN = Prediction(0.0, 0.0, 0, "unknown")


def make_prompt(number: int = 0, length: int = 4) -> Prompt:
    tokens = (number, *range(1, length))
    return Prompt(prompt_id("test", tokens), "test", f"prompt {number}", tokens)


def make_plan(prompt: Prompt | None = None, size: int = 8, budget: int = 8192, **more) -> GroupPlan:
    plan = GroupPlan(prompt or make_prompt(), size, more.pop("keep", size), budget, more.pop("predicted", UNKNOWN))
    for name, value in more.items():
        setattr(plan, name, value)
    return plan


def make_group(plan: GroupPlan | None = None, step: int = 1, name: str = "g1") -> LiveGroup:
    plan = plan or make_plan()
    group = LiveGroup(name, plan, step)
    for number in range(plan.size):
        trajectory = Trajectory(f"{name}/{number}", plan.prompt, stream_key(0, name, number))
        group.members.append(Member(trajectory, group, number))
    return group


def write(member: Member, tokens: list[int], entropy: float = 0.5, logprob: float = -0.5, p_eos: float = 0.0) -> Member:
    """Let it have written these tokens."""
    n, trajectory = len(tokens), member.trajectory
    trajectory.tokens += tokens
    trajectory.policy_logprob += [logprob] * n
    trajectory.behaviour_logprob += [logprob] * n
    trajectory.entropy += [entropy] * n
    trajectory.p_eos += [p_eos] * n
    trajectory.version += [0] * n
    trajectory.mixed_kv += [False] * n
    trajectory.lossy += [False] * n
    trajectory.from_model += [True] * n
    return member


def finish(member: Member, tokens: int, reward: float = 0.0) -> Member:
    write(member, [1] * tokens)
    member.trajectory.end, member.trajectory.reward, member.state = "stop", reward, State.DONE
    return member


def whole(prompt: Prompt, rewards: list[float], length: int = 10, name: str = "g1") -> Group:
    """A finished group with these rewards."""
    group = make_group(make_plan(prompt, len(rewards)), name=name)
    for member, reward in zip(group.members, rewards, strict=True):
        finish(member, length, reward)
    return Group(name, prompt, [member.trajectory for member in group.members])


@dataclass
class FakeView:
    step: int = 1
    began: float = 0.0
    now: float = 0.0
    wanted: int = 4
    group: int = 8
    budget: int = 8192
    concurrency: int = 64
    engines: int = 1
    running: int = 0
    open: int = 0
    vocab: int = 100
    started: int = 0
    ended: int = 0
    prompts: list[Prompt] = field(default_factory=lambda: [make_prompt(n) for n in range(16)])
    groups: list[LiveGroup] = field(default_factory=list)
    ready: list[Group] = field(default_factory=list)
    dropped: list[Group] = field(default_factory=list)
    rounds: int = 1
    kv_used: float = 0.0
    trained: int = 0
    tau: float = 0.01
    tau_per_sequence: float = 0.0
    late: set[str] = field(default_factory=set)
    soon_late: set[str] = field(default_factory=set)
    history: History = field(default_factory=lambda: History.open(None, "test", "test"))

    @property
    def predictor(self) -> Predictor:
        return Predictor(self.history, self.budget)

    def overdue(self, after: int = 0) -> set[str]:
        return self.late | (self.soon_late if after else set())

    def trainable(self) -> int:
        return self.trained

    def next_in_order(self):
        return cycle(self.prompts)

    def step_seconds(self, batch: int) -> float:
        return self.tau + self.tau_per_sequence * batch

    def rng(self, *key) -> random.Random:
        return random.Random(stream_key(0, self.step, *key))
