"""One training program, run in this process, in turn in workers, and side by side: the same losses. Then with engines
and learners killed in the middle: it goes on, and nothing that was finished is lost or trained twice."""

import asyncio
import os

import pytest
import torch

from tests.e2e.conftest import SMALL, untail
from tests.e2e.test_train import timeless
from tests.helpers.flowing import SMALL as FLOWING
from tests.helpers.flowing import Outcome, check_books, engine_is_there, small, someone_runs, train
from untail.engine.models.load import load_model
from untail.flow.profile import Measured, Profile, RoleProfile, RolloutProfile
from untail.learn.checkpoint import Checkpoint, is_sharded, load

TWO_CORES = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores: a device each")


@pytest.fixture(scope="module")
def in_one_process(tmp_path_factory):
    return train(small(deterministic=True), tmp_path_factory.mktemp("flow") / "local")


@pytest.mark.parametrize(
    "flow",
    [
        {"flow__mode": "collocated", "flow__devices": 1},
        pytest.param({"flow__mode": "disaggregated", "flow__devices": 2}, marks=TWO_CORES),
    ],
    ids=["in turn", "side by side"],
)
def test_the_same_losses_wherever_the_roles_are(in_one_process, flow, tmp_path):
    outcome = train(small(deterministic=True, **flow), tmp_path / "run")
    assert outcome.losses == in_one_process.losses
    own = lambda row: {key: value for key, value in timeless(row).items() if key != "peak_mem"}
    assert [own(row) for row in outcome.metrics] == [own(row) for row in in_one_process.metrics]
    check_books(outcome)


@pytest.mark.parametrize(("recipe", "tokens"), [pytest.param("grpo", 0, marks=pytest.mark.slow), ("es-grpo", 8)])
@TWO_CORES
def test_an_engine_killed_in_mid_group_costs_nothing_that_was_told(recipe, tokens, tmp_path):
    """Two engines; one is killed while it has members, in two steps; another takes its place. Without a watcher nobody
    has told a token by then: they begin again."""
    killed = []

    async def interfere(roles, step):
        async def kill():
            await someone_runs(roles, 0, tokens)
            killed.append(step)
            await asyncio.to_thread(roles.workers[0].kill)

        if step in (1, 3):
            await engine_is_there(roles, 0)
            interfere.task = asyncio.create_task(kill())  # kept, or it would be gone

    flow = {"flow__mode": "collocated", "flow__devices": 2, "engine__max_seqs": 4}
    outcome = train(small(recipe, steps=4, **flow), tmp_path / "run", interfere)
    check_books(outcome)
    assert killed == [1, 3]
    assert [event["engine"] for event in outcome.all("lost")] == [0, 0]
    hit = {event["id"] for event in outcome.all("segment") if event["why"] == "lost"}
    resumed = {event["id"] for event in outcome.all("resume")}
    assert hit, "nobody was hit"
    assert hit <= resumed, "somebody who lost its engine did not go on"


def kill_learners(rank: int):
    """Rank 0 between two steps, and this one in the middle of an update."""

    async def interfere(roles, step):
        if step == 2:
            await asyncio.to_thread(roles.learner.first.kill)
        if step == 3:
            update = roles.learner.update

            async def update_and_die(batch):
                work = asyncio.ensure_future(update(batch))
                await asyncio.sleep(0.01)
                await asyncio.to_thread(roles.learner.ranks[rank].kill)
                return await work

            roles.learner.update = update_and_die

    return interfere


@TWO_CORES
def test_a_learner_killed_between_steps_and_in_one_is_replaced_and_the_losses_are_the_same(in_one_process, tmp_path):
    flow = {"flow__mode": "disaggregated", "flow__devices": 2}
    outcome = train(small(deterministic=True, **flow), tmp_path / "run", kill_learners(0))
    assert outcome.losses == in_one_process.losses
    assert [row["learn"].get("learners_lost", 0) for row in outcome.metrics] == [0, 1, 1]
    check_books(outcome)


@pytest.mark.slow
@TWO_CORES
def test_a_batch_in_portions_comes_to_the_same_also_where_the_learner_dies_with_some(in_one_process, tmp_path):
    async def interfere(roles, step):
        hand_on = roles.hand_on

        def hand_on_and_kill(step, group):
            hand_on(step, group)
            asyncio.get_running_loop().run_in_executor(None, roles.learner.first.kill)
            roles.hand_on = hand_on

        if step == 2:
            roles.hand_on = hand_on_and_kill

    flow = {"flow__mode": "disaggregated", "flow__devices": 2, "flow__portion": 1}
    outcome = train(small(deterministic=True, **flow), tmp_path / "run", interfere)
    assert [row["learn"].get("learners_lost", 0) for row in outcome.metrics] == [0, 1, 0]
    assert [row["learn"].get("portions", 0) for row in outcome.metrics] == [4, 0, 4]
    assert outcome.losses[:2] == in_one_process.losses[:2], "the first teaches nothing, the second is made from all"
    assert outcome.losses[2] == pytest.approx(in_one_process.losses[2], rel=1e-4)
    check_books(outcome)


@pytest.mark.slow
@TWO_CORES
def test_a_learner_of_two_ranks_survives_the_loss_of_either(tmp_path):
    flow = {"flow__mode": "collocated", "flow__devices": 2, "flow__learner_devices": 2}
    outcome = train(small(**flow), tmp_path / "run", kill_learners(1))
    assert [row["learn"].get("learners_lost", 0) for row in outcome.metrics] == [0, 1, 1]
    check_books(outcome)
    load_model(str(tmp_path / "run" / "model"), "cpu")


@TWO_CORES
@pytest.mark.parametrize(
    ("schedule", "mode"),
    [
        pytest.param("one-off", "disaggregated", marks=pytest.mark.slow),
        pytest.param("one-off", "hybrid", marks=pytest.mark.slow),
        pytest.param("async", "disaggregated", marks=pytest.mark.slow),
        ("async", "hybrid"),
    ],
)
def test_rollouts_run_ahead_within_the_bound(mode, schedule, tmp_path):
    recipe = small("es-grpo", steps=5, flow__mode=mode, flow__devices=2, flow__schedule=schedule)
    outcome = train(recipe, tmp_path / "run")
    check_books(outcome)
    stalest = [row["staleness"]["max"] for row in outcome.metrics]
    assert max(stalest) <= recipe.rollout.max_staleness
    assert max(stalest) >= 1, "nothing ran ahead"


@pytest.mark.slow
@TWO_CORES
def test_members_move_between_engines_in_different_processes(tmp_path):
    changes = {"mechanisms__repack__every": 0.01, "mechanisms__repack__min_gain": 0, "mechanisms__defer": {}}
    flow = {"flow__mode": "collocated", "flow__devices": 2}
    longer = {"steps": 5, "rollout__max_tokens": 160}  # a tail that a busy machine sees, too
    outcome = train(small("grpo", **changes, **longer, **flow), tmp_path / "run")
    check_books(outcome)
    moves = outcome.all("move")
    assert moves, "nobody moved"
    assert all({move["source"], move["engine"]} == {0, 1} for move in moves)


@TWO_CORES
def test_a_plan_places_the_roles_and_another_one_moves_them(tmp_path):
    """The profile says that an update takes as long as a rollout. Side by side it would hide behind it; it takes next
    to nothing instead, and after three steps that is known. To lend a device takes too long."""
    rollout = RolloutProfile(tau=[(1, 1.0), (8, 1.0)], lengths=[48], swap_s=10.0)
    roles = {"update": RoleProfile(points=[Measured(devices=1, responses=16, seconds=90.0)])}
    Profile(made_on="nowhere", model="tiny", rollout=rollout, roles=roles).save(tmp_path / "profile.json")
    settings = {**FLOWING, "flow.mode": "auto", "flow.schedule": "async", "flow.profile": tmp_path / "profile.json"}
    folder = tmp_path / "run"
    outcome = untail("train", "--steps=8", *(f"--set={k}={v}" for k, v in settings.items()), "--out", folder, "--json")
    assert outcome.code == 0, outcome.err
    assert "they move" in outcome.err
    told = Outcome(folder, 2)
    assert [run["plan"]["mode"] for run in told.all("run")] == ["disaggregated", "collocated"]
    assert [run["engines"] for run in told.all("run")] == [1, 2]
    assert [row["step"] for row in told.metrics] == list(range(1, 9))
    check_books(told)


@pytest.mark.slow
@TWO_CORES
def test_a_plan_lends_the_learners_device(tmp_path):
    """Few slots, so that responses wait for them: the learner's device comes late, and takes some."""
    rollout = RolloutProfile(tau=[(1, 1.0), (8, 1.0)], lengths=[48])
    roles = {"update": RoleProfile(points=[Measured(devices=1, responses=16, seconds=90.0)])}
    Profile(made_on="nowhere", model="tiny", rollout=rollout, roles=roles).save(tmp_path / "profile.json")
    auto = {"flow__mode": "auto", "flow__schedule": "one-off", "flow__profile": str(tmp_path / "profile.json")}
    changes = {"flow__devices": 2, "engine__max_seqs": 2, "rollout__max_staleness": 2}
    outcome = train(small("grpo", **changes, **auto), tmp_path / "run")
    (run,) = outcome.all("run")
    assert run["plan"]["mode"] == "hybrid"
    assert (run["engines"], run["devices"]) == (2, 2)
    check_books(outcome)


@TWO_CORES
@pytest.mark.slow
def test_without_a_profile_a_device_is_measured(tmp_path):
    outcome = train(small(flow__mode="auto", flow__devices=2, steps=2), tmp_path / "run")
    (run,) = outcome.all("run")
    assert run["plan"]["predicted_step_s"] > 0
    assert run["engines"] == run["plan"]["placement"]["rollout"]["count"]
    check_books(outcome)


@TWO_CORES
@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "mode"),
    [("untail", "disaggregated"), ("untail", "collocated"), ("untail", "hybrid"), ("tlt", "disaggregated")],
)
def test_drafters_that_learn_run_in_every_mode(recipe, mode, tmp_path):
    """In processes of their own; tests/unit/flow/test_far_drafters.py says what they learn and who gets it."""
    changes = {"draft__drafters__adaptive__slices": 2, "flow__mode": mode, "flow__devices": 2}
    outcome = train(small(recipe, steps=4, **changes), tmp_path / "run")
    check_books(outcome)
    assert outcome.metrics[-1]["learn"]["adaptive_slices"] > 0
    assert outcome.metrics[-1]["learn"]["adaptive_failed_slices"] == 0
    assert outcome.metrics[-1]["drafts"]["adaptive"]["failures"] == 0
    assert (tmp_path / "run" / "drafter" / "config.json").exists()


@pytest.mark.slow
def test_a_run_goes_on_in_another_mode(tmp_path):
    folder = tmp_path / "run"
    first = untail("train", "--steps=2", *SMALL, "--set=deterministic=true", "--out", folder, "--json")
    assert first.code == 0, first.err
    changed = ("--set=flow.mode=collocated", "--set=flow.devices=1")
    resumed = untail("train", "--resume", "--steps=4", *changed, "--out", folder, "--json")
    assert resumed.code == 0, resumed.err
    whole = untail("train", "--steps=4", *SMALL, "--set=deterministic=true", "--out", tmp_path / "whole", "--json")
    assert whole.code == 0, whole.err
    assert resumed.json["score_after"] == whole.json["score_after"]


@pytest.mark.slow
@TWO_CORES
def test_a_run_goes_on_with_another_number_of_learners(tmp_path):
    """Several write their shards, one alone whole tensors; whoever comes next reads what is there."""
    folder, steps = tmp_path / "run", 0
    mode = {1: "collocated", 2: "collocated", 0: "local"}

    def go_on(learners: int) -> Checkpoint:
        nonlocal steps
        steps += 1
        flow = (f"--set=flow.mode={mode[learners]}", f"--set=flow.learner_devices={max(1, learners)}")
        start = [*SMALL, "--set=keep_checkpoints=2"] if steps == 1 else ["--resume"]
        outcome = untail("train", *start, f"--steps={steps}", *flow, "--set=flow.devices=2", "--out", folder, "--json")
        assert outcome.code == 0, outcome.err
        kept = sorted(path.name for path in (folder / "checkpoints").iterdir())
        assert kept == [f"step-{step:06d}" for step in range(max(1, steps - 1), steps + 1)]
        saved = folder / "checkpoints" / f"step-{steps:06d}"
        assert is_sharded(saved) == (learners > 1)
        return load(saved)

    counts = [go_on(learners).state["trainer"]["optimizer_steps"] for learners in (2, 2, 0, 2, 1)]
    assert counts == sorted(counts)
    assert counts[-1] > counts[0], "nothing was learned"
    newest = go_on(2)
    model = load_model(str(folder / "model"), "cpu").decoder
    weights = {f"weight.{name}": parameter for name, parameter in model.named_parameters()}
    assert all(torch.equal(newest.tensors[name], weight) for name, weight in weights.items())
    next((folder / "checkpoints" / f"step-{steps:06d}" / "shards").glob("*.distcp")).write_bytes(b"")
    for flow in ("flow.mode=local", "flow.mode=collocated"):
        refused = untail("train", "--resume", f"--steps={steps + 1}", f"--set={flow}", "--out", folder)
        assert refused.code == 2
        assert f"step-{steps:06d} cannot be read" in refused.err
        assert len(refused.err.strip().splitlines()) == 1


REFUSED = {
    "more devices than there are": (["flow.mode=disaggregated", "flow.devices=999"], "flow.devices = 999, but this"),
    "no device for an engine": (["flow.mode=disaggregated", "flow.devices=1"], "leaves no device of 1 for an engine"),
    "nccl between CPUs": (["flow.mode=disaggregated", "flow.weights=nccl"], 'learner are on CPUs; take "gloo"'),
    "async in one process": (["flow.schedule=async"], 'flow.mode = "local" has one device set for both'),
    "portions in turn": (
        ["flow.mode=collocated", "flow.devices=1", "flow.portion=1"],
        'with flow.mode = "collocated" it has no device of its own',
    ),
    "an unreachable Ray": (
        ["flow.mode=collocated", "flow.backend=ray", "flow.address=127.0.0.1:1"],
        "nobody answers there",
    ),
    "an address without Ray": (
        ["flow.mode=collocated", "flow.address=10.0.0.1:6379"],
        'is an address of Ray; set flow.backend = "ray"',
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_in_a_sentence_and_leaves_no_folder(case, tmp_path):
    settings, said = REFUSED[case]
    outcome = untail("train", *SMALL, *(f"--set={each}" for each in settings), "--out", tmp_path / "run")
    assert outcome.code == 2, outcome.err
    assert said in outcome.err
    assert not (tmp_path / "run").exists()
