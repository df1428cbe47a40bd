"""The roles over workers, whose processes are threads here: the same losses in every mode; what dies is replaced; what
runs ahead stays within its bound. tests/e2e/test_flow.py has the same with real processes."""

import asyncio
import threading
from unittest.mock import patch

import pytest
from tests.helpers.flowing import check_books, engine_is_there, small, someone_runs, train
from tests.helpers.here_cluster import HereCluster

from untail.errors import UserError, WeightsError
from untail.flow.engine_worker import EngineWorker
from untail.flow.failures import WorkerLost
from untail.flow.learner_worker import LearnerWorker
from untail.flow.profile import Measured, Profile, RoleProfile, RolloutProfile


def run(folder, name=None, devices=2, interfere=None, **changes):
    recipe = small(name, flow__devices=devices, **changes)
    with patch("untail.flow.choose.make_cluster", lambda *about: HereCluster(devices)):
        outcome = train(recipe, folder / f"{recipe.flow.mode}-{recipe.flow.schedule}", interfere)
    check_books(outcome)
    return outcome


def test_the_same_losses_in_turn_and_side_by_side(tmp_path):
    alone = run(tmp_path, steps=2, deterministic=True)
    assert any(alone.losses)
    for mode, devices in (("collocated", 1), ("disaggregated", 2)):
        outcome = run(tmp_path, devices=devices, steps=2, deterministic=True, flow__mode=mode)
        assert outcome.losses == alone.losses


def in_portions(size: int = 1, **changes):
    return {"steps": 3, "deterministic": True, "flow__mode": "disaggregated", "flow__portion": size, **changes}


def test_a_batch_in_portions_comes_to_the_same_and_a_whole_one_to_the_very_same(tmp_path):
    alone, whole = run(tmp_path / "a", steps=2, deterministic=True), run(tmp_path / "w", **in_portions(4, steps=2))
    assert whole.losses == alone.losses
    assert not any("portions" in row["learn"] for row in whole.metrics)
    once, again = (run(tmp_path / name, **in_portions(steps=2)) for name in ("once", "again"))
    assert once.losses == again.losses
    assert [row["learn"]["portions"] for row in once.metrics] == [4, 4]
    for row, expected in zip(once.metrics, alone.metrics, strict=True):
        figures = {name: value for name, value in expected["learn"].items() if not name.endswith("_s")}
        figures["computed_tokens"] = row["learn"]["computed_tokens"]  # a prompt once for each pass that has it
        assert row["learn"] == pytest.approx({**row["learn"], **figures}, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("after", [1, 3], ids=["with portions to come", "with all but one"])
def test_a_learner_that_dies_with_portions_in_it_learns_the_whole_batch_again(tmp_path, after):
    async def interfere(roles, step):
        if step == 2:
            handed, hand_on = [], roles.hand_on

            def hand_on_and_kill(step, group):
                hand_on(step, group)
                handed.append(group)
                if len(handed) == after and step == 2:
                    asyncio.get_running_loop().call_later(0.02, roles.learner.first.kill)

            roles.hand_on = hand_on_and_kill

    alone = run(tmp_path / "a", steps=3, deterministic=True)
    outcome = run(tmp_path / "b", interfere=interfere, **in_portions())
    assert [row["learn"].get("learners_lost", 0) for row in outcome.metrics] == [0, 1, 0]
    assert [row["learn"].get("portions") for row in outcome.metrics] == [4, None, 4]
    assert outcome.losses[1] == alone.losses[1], "from the whole batch"
    assert outcome.losses[2] == pytest.approx(alone.losses[2], rel=1e-4)


def test_what_goes_wrong_with_a_portion_ends_the_run(tmp_path):
    broken = patch.object(LearnerWorker, "learn", side_effect=UserError("no room for it"))
    with broken, pytest.raises(UserError, match="no room for it"):
        run(tmp_path, **in_portions())


@pytest.mark.parametrize("schedule", ["one-off", "async"])
def test_portions_of_rollouts_that_run_ahead(schedule, tmp_path):
    changes = {"steps": 4, "deterministic": False, "flow__schedule": schedule}
    outcome = run(tmp_path, "es-grpo", **in_portions(2, **changes))
    assert 1 <= max(row["staleness"]["max"] for row in outcome.metrics) <= 4
    assert any("portions" in row["learn"] for row in outcome.metrics)


def test_a_plan_cuts_the_batch(tmp_path):
    """The profile says that an engine alone is as fast as two, and that a batch's groups are whole at different times:
    the learner is better off with the other device, and with groups as they come."""
    rollout = RolloutProfile(tau=[(1, 1.0), (16, 1.0)], lengths=[6] * 9 + [48])
    roles = {"update": RoleProfile(points=[Measured(devices=1, responses=16, seconds=20.0)])}
    Profile(made_on="nowhere", model="tiny", rollout=rollout, roles=roles).save(tmp_path / "profile.json")
    flow = {"flow__mode": "auto", "flow__profile": str(tmp_path / "profile.json"), "engine__max_seqs": 16}
    outcome = run(tmp_path, steps=2, **flow)
    (event,) = outcome.all("run")
    assert (event["plan"]["mode"], event["plan"]["granularity"]) == ("disaggregated", 1)
    assert [row["learn"]["portions"] for row in outcome.metrics] == [4, 4]


def over_gloo(folder, receive, steps, **changes):
    flow = {"flow__mode": "disaggregated", "flow__weights": "gloo", "deterministic": True, **changes}
    with patch.object(EngineWorker, "receive_weights", receive):
        return run(folder, steps=steps, **flow)


def breaks_at(*versions):
    """What engines receive, but these versions; all that were sent."""
    real, sent = EngineWorker.receive_weights, []

    def receive(worker):
        real(worker)
        sent.append(worker.seat.received[0])
        if sent[-1] in versions:
            worker.seat.received = None
            raise WeightsError("a cable was pulled")

    return receive, sent


def test_weights_may_go_over_torch_distributed_and_come_from_the_store_when_that_breaks(tmp_path, capfd):
    receive, sent = breaks_at(2, 3)
    outcome = over_gloo(tmp_path, receive, steps=4)
    assert outcome.losses == run(tmp_path, steps=4, deterministic=True).losses
    assert sent == [1, 2, 3, 4]
    assert [row["learn"].get("exchanges_broken", 0) for row in outcome.metrics] == [0, 1, 1, 0]
    assert "from the store" not in capfd.readouterr().err


def test_an_exchange_that_breaks_again_and_again_is_given_up(tmp_path, capfd):
    receive, sent = breaks_at(1, 2, 3, 4)
    outcome = over_gloo(tmp_path, receive, steps=5)
    assert sent == [1, 2, 3]
    assert [row["learn"].get("exchanges_broken", 0) for row in outcome.metrics] == [1, 1, 1, 0, 0]
    said = 'flow.weights = "gloo": the exchange broke 3 times in a row (a cable was pulled); from now on weights come'
    assert capfd.readouterr().err.count(said) == 1


def test_weights_go_to_the_others_while_an_engine_is_being_revived(tmp_path):
    """It is lost before the second update and is back after it."""
    receive, sent = breaks_at()
    let_in = threading.Event()

    async def interfere(roles, step):
        if step == 2:
            roles.workers[0].kill()
            revive = roles.workers[0]._caller.revive
            bring = roles._bring_weights

            def revive_late(rank):
                let_in.wait()
                revive(rank)

            async def bring_and_let_in(version):
                assert not roles.workers[0].is_alive
                await bring(version)
                let_in.set()
                roles._bring_weights = bring

            roles.workers[0]._caller.revive, roles._bring_weights = revive_late, bring_and_let_in
        if step == 3:
            await engine_is_there(roles, 0)

    changes = {"devices": 3, "deterministic": False, "interfere": interfere}
    outcome = over_gloo(tmp_path, receive, steps=3, **changes)
    assert sorted(sent) == [1, 1, 2, 3, 3]
    assert not any("exchanges_broken" in row["learn"] for row in outcome.metrics)


def test_engines_and_a_learner_that_die_are_replaced(tmp_path):
    async def interfere(roles, step):
        async def kill():
            await someone_runs(roles, 0, tokens=8)
            roles.workers[0].kill()

        if step in (1, 3):
            await engine_is_there(roles, 0)
            interfere.task = asyncio.create_task(kill())
        if step == 2:
            roles.learner.first.kill()

    flow = {"flow__mode": "collocated", "engine__max_seqs": 3}
    outcome = run(tmp_path, "es-grpo", interfere=interfere, **flow)
    assert [event["engine"] for event in outcome.all("lost")] == [0, 0]
    assert [row["learn"].get("learners_lost", 0) for row in outcome.metrics] == [0, 1, 0]


def learner_dies_again(times: int, is_made: bool):
    """It is killed before step 2, and then so often while another is made in its place, or once that is there."""

    async def interfere(roles, step):
        if step == 2:
            caller, left = roles.learner.first._caller, times
            revive = caller.revive

            def revive_and_die(rank):
                nonlocal left
                if left and not is_made:
                    left -= 1
                    raise WorkerLost("learner[0]", "it was killed")
                revive(rank)
                if left:
                    left -= 1
                    caller.kill(rank)

            caller.revive = revive_and_die
            roles.learner.first.kill()

    return interfere


@pytest.mark.parametrize("is_made", [False, True], ids=["while it is made", "before it has its state"])
def test_a_learner_that_dies_again_while_it_is_replaced_is_replaced_again(tmp_path, is_made):
    flow = {"steps": 3, "deterministic": True, "flow__mode": "disaggregated"}
    outcome = run(tmp_path, interfere=learner_dies_again(2, is_made), **flow)
    assert [row["learn"].get("learners_lost", 0) for row in outcome.metrics] == [0, 3, 0]
    assert outcome.losses == run(tmp_path, steps=3, deterministic=True).losses


def test_a_learner_that_dies_again_and_again_ends_the_run(tmp_path):
    with pytest.raises(WorkerLost, match=r"learner\[0\] is lost"):
        run(tmp_path, steps=3, flow__mode="disaggregated", interfere=learner_dies_again(3, is_made=False))


@pytest.mark.parametrize("mode", ["disaggregated", "hybrid"])
@pytest.mark.parametrize("schedule", ["one-off", "async"])
def test_rollouts_run_ahead_within_the_bound(mode, schedule, tmp_path):
    outcome = run(tmp_path, "es-grpo", steps=4, flow__mode=mode, flow__schedule=schedule)
    assert 1 <= max(row["staleness"]["max"] for row in outcome.metrics) <= 4


def test_members_move_between_engines(tmp_path):
    changes = {"mechanisms__repack__every": 0.01, "mechanisms__repack__min_gain": 0, "mechanisms__defer": {}}
    longer = {"steps": 5, "rollout__max_tokens": 160}  # a tail that a busy machine sees, too
    assert run(tmp_path, "grpo", flow__mode="collocated", **changes, **longer).all("move")
