"""Who is on which devices: the three modes as data.

collocated      every device has environments, policy and learner, in one process, and does all in turn.
disaggregated   environments have devices of their own; policy and learner take turns on the others. While the policy
                acts for one shard, another's environments step.
hybrid          environments and policy as in disaggregated; then the learner has all devices.

Invariant: every shard has one worker of each role. Environments that need no device (`on_host`) leave all of them to
the others, and then hybrid is disaggregated.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from untail.errors import UserError, nearest

Mode = Literal["collocated", "disaggregated", "hybrid"]
MODES: tuple[Mode, ...] = get_args(Mode)
Devices = list[list[int]]
"""One list for each worker."""


@dataclass(frozen=True, slots=True)
class Layout:
    mode: Mode
    shards: int
    env: Devices
    policy: Devices
    learn: Devices

    def policy_of(self, shard: int) -> int:
        """The rank of the policy that acts for it."""
        return shard % len(self.policy)

    def learner_of(self, shard: int) -> int:
        return shard % len(self.learn)

    def shards_of(self, workers: Devices, rank: int) -> list[int]:
        """The numbers of those that a role's worker has."""
        return list(range(rank, self.shards, len(workers))) if rank < len(workers) else []


def check_mode(mode: str) -> Mode:
    for known in MODES:
        if mode == known:
            return known
    raise UserError(f"--mode {mode!r} is unknown; {nearest(mode, [*MODES, 'auto'])}")


def lay_out(
    mode: Mode,
    devices: int,
    shards: int,
    on_host: bool = False,
    for_envs: int | None = None,
    learners: int | None = None,
) -> Layout:
    """`for_envs`: how many devices environments get for themselves; unset: half of them. `learners`: how many devices
    of those that the mode allows the learner has; unset: all of them."""
    every = [[device] for device in range(devices)]
    if mode == "collocated":
        own = every[:shards]
        return Layout(mode, shards, own, own, own[:learners])
    if devices < 2 and not on_host:
        raise UserError(
            f"--mode {mode} needs two devices or more (a device is a GPU, or a core where there is none), and there is "
            f"{devices}; take --mode collocated"
        )
    cut = 0 if on_host else for_envs or devices // 2
    env = [[] for _ in range(shards)] if on_host else every[:cut][:shards]
    policy = every[cut:][:shards]
    learn = policy if mode == "disaggregated" else every[:shards]
    return Layout(mode, shards, env, policy, learn[:learners])
