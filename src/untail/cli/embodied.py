"""`untail embodied`: simulators against a policy that learns, in the same runtime."""

import importlib.util
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from untail.cli.output import print_json
from untail.errors import UserError, nearest
from untail.notice import say

if TYPE_CHECKING:
    from untail.embodied.loop import Row
    from untail.flow.cluster import Kind
    from untail.flow.plan import Plan


def embodied(
    env: Annotated[
        str, typer.Option(help="halfcheetah (MuJoCo, on CPU cores) or cartpole (a tensor program).")
    ] = "cartpole",
    algo: Annotated[str, typer.Option(help="ppo or grpo.")] = "ppo",
    mode: Annotated[str, typer.Option(help="collocated, disaggregated, hybrid, or auto: as planned.")] = "auto",
    iterations: Annotated[int, typer.Option(min=1, help="Rollouts, each with an update.")] = 30,
    devices: Annotated[int | None, typer.Option(min=1, help="GPUs to use, or else cores; all of them.")] = None,
    backend: Annotated[str, typer.Option(help="local: processes on this machine; or ray.")] = "local",
    address: Annotated[str | None, typer.Option(help="Ray's: host:port, or auto; unset: a cluster of its own.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Change one field; repeatable.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Learn to run with a cheetah or to swing up a pole, and say how many steps a second that is."""
    from untail.config import override
    from untail.embodied.config import preset
    from untail.embodied.run import choose, summary, train
    from untail.flow.cluster import connect

    open_cluster = partial(connect, _known(backend), address, devices)
    config = preset(env, algo, override({}, set_ or []))
    if mode == "auto":
        say("measuring this machine: some iterations on one device and on all")
    layout, plan = choose(config, mode, open_cluster)
    if plan is not None:
        _explain(plan, layout.mode)
    rows = train(config, layout, iterations, open_cluster, _tell)
    result = summary(config, layout, rows)
    say(
        f"{config.env}, {config.algo}, {layout.mode}: {result['steps_s']:.0f} environment steps and "
        f"{result['batches_s']:.0f} batches a second; reward a step {rows[0].reward:.3f} at first, "
        f"{rows[-1].reward:.3f} in the end"
    )
    if json:
        print_json({**result, "plan": None if plan is None else plan.as_json()})


def _known(backend: str) -> "Kind":
    if backend == "local":
        return "local"
    if backend != "ray":
        raise UserError(f"--backend {backend!r} is unknown; {nearest(backend, ['local', 'ray'])}")
    if importlib.util.find_spec("ray") is None:
        raise UserError("--backend ray needs Ray; install it with: pip install 'untail[ray]', or take --backend local")
    return "ray"


def _explain(plan: "Plan", mode: str) -> None:
    say(f"{mode}: {plan.predicted_step_s:.3g} s an iteration")
    for line in plan.root.lines("  "):
        say(line)
    for other in plan.alternatives:
        say(f"rejected: {other.what}: {other.why}")


def _tell(row: "Row") -> None:
    ended = "" if row.mean_return is None else f"   return {row.mean_return:9.2f}"
    spent = f"{row.seconds:6.2f} s (rollout {row.rollout_s:.2f}, update {row.learn_s:.2f})"
    say(f"iteration {row.iteration:4}   {spent}   reward a step {row.reward:8.4f}{ended}")
