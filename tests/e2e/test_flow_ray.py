"""The same training program over a real Ray cluster of three nodes, with a worker killed, a node lost, and a learner
killed between two steps."""

import asyncio

import pytest

from tests.helpers.flowing import check_books, small, someone_runs, train
from tests.helpers.raying import ray_nodes
from untail.learn.checkpoint import is_sharded, latest, load


def test_the_same_losses_on_ray(tmp_path):
    alone = train(small(deterministic=True), tmp_path / "local")
    with ray_nodes(2, cpus=1):
        flow = {"flow__mode": "disaggregated", "flow__backend": "ray", "flow__devices": 2}
        outcome = train(small(deterministic=True, **flow), tmp_path / "ray")
    assert outcome.losses == alone.losses
    check_books(outcome)


@pytest.mark.slow
def test_a_batch_in_portions_over_several_ranks(tmp_path):
    with ray_nodes(2, cpus=2):
        flow = {"flow__mode": "disaggregated", "flow__backend": "ray", "flow__devices": 3, "flow__learner_devices": 2}
        whole, cut = (train(small(deterministic=True, flow__portion=m, **flow), tmp_path / str(m)) for m in (4, 1))
    assert [row["learn"].get("portions", 0) for row in whole.metrics] == [0, 0, 0]
    assert [row["learn"]["portions"] for row in cut.metrics] == [4, 4, 4]
    assert [loss or 0.0 for loss in cut.losses] == pytest.approx([loss or 0.0 for loss in whole.losses], rel=1e-3)
    check_books(cut)


@pytest.mark.slow
def test_a_plan_places_the_roles_on_ray(tmp_path):
    """By what a worker measures on the cluster's first device."""
    with ray_nodes(2, cpus=1):
        outcome = train(small(flow__mode="auto", flow__backend="ray", steps=2), tmp_path / "run")
    (run,) = outcome.all("run")
    assert run["plan"]["predicted_step_s"] > 0
    assert run["engines"] == run["plan"]["placement"]["rollout"]["count"]
    check_books(outcome)


@pytest.mark.slow
def test_two_learners_on_two_nodes_lend_their_devices_and_save_their_shards(tmp_path):
    """Three devices: an engine has one to itself, and two share theirs with a rank each."""
    flow = {"flow__mode": "hybrid", "flow__backend": "ray", "flow__schedule": "async", "flow__learner_devices": 2}
    with ray_nodes(3, cpus=1):
        outcome = train(small("es-grpo", steps=4, **flow), tmp_path / "run")
    check_books(outcome)
    assert outcome.engines == 3
    assert {event["engine"] for event in outcome.all("back")} == {1, 2}, "who had made way came back"
    saved = latest(tmp_path / "run" / "checkpoints")
    assert is_sharded(saved)
    assert len(list((saved / "shards").glob("*.distcp"))) == 2
    assert load(saved).state["trainer"]["optimizer_steps"] > 0


@pytest.mark.slow
def test_a_worker_a_node_and_a_learner_are_lost_and_the_run_goes_on(tmp_path):
    """Four devices on two nodes: three engines and the learner. In step 1 an engine is killed in mid-group, in step 2
    the node is lost that is not the driver's, and before step 4 the learner is killed."""
    with ray_nodes(2, cpus=2) as nodes:
        away = []

        async def interfere(roles, step):
            async def kill(engine):
                await someone_runs(roles, engine, tokens=8)
                await asyncio.to_thread(roles.workers[engine].kill)

            async def lose_node():
                head, seats = nodes.head_node.node_id, roles.cluster.seats
                away.append(next(engine for engine in roles.placement.alone if seats[engine].node != head))
                await someone_runs(roles, away[0], tokens=8)
                gone = seats[away[0]].node
                node = next(node for node in nodes.worker_nodes if node.node_id == gone)
                await asyncio.to_thread(nodes.remove_node, node, allow_graceful=False)

            if step == 1:
                interfere.task = asyncio.create_task(kill(0))
            if step == 2:
                interfere.task = asyncio.create_task(lose_node())
            if step == 4:
                await asyncio.to_thread(roles.learner.first.kill)

        flow = {"flow__mode": "disaggregated", "flow__backend": "ray", "engine__max_seqs": 4}
        outcome = train(small("es-grpo", steps=5, **flow), tmp_path / "run", interfere)
    check_books(outcome)
    assert outcome.engines == 3
    lost = [event["engine"] for event in outcome.all("lost")]
    assert lost[0] == 0
    assert away[0] in lost
    hit = {event["id"] for event in outcome.all("segment") if event["why"] == "lost"}
    assert hit <= {event["id"] for event in outcome.all("resume")}
    assert sum(row["learn"].get("learners_lost", 0) for row in outcome.metrics) >= 1


@pytest.mark.slow
def test_drafters_learn_beside_the_learner_and_draft_in_engines_on_ray(tmp_path):
    """Also where the learner was replaced."""

    async def interfere(roles, step):
        if step == 4:
            await asyncio.to_thread(roles.learner.first.kill)

    flow = {"flow__mode": "disaggregated", "flow__backend": "ray", "flow__devices": 2}
    with ray_nodes(2, cpus=1):
        recipe = small("untail", steps=4, draft__drafters__adaptive__slices=2, **flow)
        outcome = train(recipe, tmp_path / "run", interfere)
    check_books(outcome)
    slices = [row["learn"]["adaptive_slices"] for row in outcome.metrics]
    assert 0 < slices[-2] <= slices[-1], "another learner went on from what the first had learned by its last update"
    drafted = [row["drafts"]["adaptive"] for row in outcome.metrics]
    assert sum(row["drafted"] for row in drafted) > 0
    assert sum(row["failures"] for row in drafted) == 0
