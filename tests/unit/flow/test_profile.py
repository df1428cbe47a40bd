"""Profiles: kept and read back, made from a run, made on this machine."""

import json

import pytest
from tests.helpers.events import Log, member

from untail.config import load_recipe
from untail.errors import UserError
from untail.flow.planner import make_plan
from untail.flow.profile import Measured, Profile, RoleProfile, RolloutProfile, training_work
from untail.flow.recorded import profile_of_run

CHANGES = ["rollout.prompts=8", "rollout.group=4"]
QUICKSTART = load_recipe(None, {}, CHANGES)


def profile(**changes) -> Profile:
    update = RoleProfile(points=[Measured(devices=1, responses=8, seconds=2.0, memory_gib=4.0)], swap_s=0.5)
    fields = {
        "made_on": "here",
        "model": "tiny",
        "rollout": RolloutProfile(tau=[(1.0, 0.1), (4.0, 0.2)], lengths=[10, 20, 900], memory_gib=3.0),
        "roles": {"update": update},
    }
    return Profile(**{**fields, **changes})


def test_a_profile_is_read_back_as_it_was(tmp_path):
    made = profile(memory_gib=80.0, sync_s=0.25)
    made.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == made


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "all of it: Invalid JSON"),
        ("[]", "all of it: Input should be an object"),
        ("{}", "made_on: Field required"),
        (
            profile().model_dump_json().replace('"seconds":2.0', '"seconds":-2.0'),
            r"update.points.0.seconds: .* greater than or equal to 0; make it again",
        ),
        (profile().model_dump_json().replace("untail-profile-1", "untail-profile-9"), "format: Input should be"),
        (profile(roles={}).model_dump_json(), "has no role 'update'"),
        (profile().model_dump_json().replace('"swap_s":0.5', '"swaps":0.5'), "swaps: Extra inputs"),
    ],
)
def test_a_profile_that_cannot_be_used_is_refused(tmp_path, text, said):
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(UserError, match=said):
        Profile.load(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match=r"cannot read the profile .*nowhere.json"):
        Profile.load(tmp_path / "nowhere.json")
    with pytest.raises(UserError, match="cannot write the profile"):
        profile().save(tmp_path / "no" / "folder.json")


def test_the_costs_of_a_step_are_those_of_its_groups():
    work = training_work(profile(), QUICKSTART, devices=2)
    assert work.batch == 8
    assert work.costs["update"].seconds(1, 8) == pytest.approx(8.0)  # 32 responses where 8 took 2 s
    assert work.costs["update"].seconds(2, 8) == pytest.approx(8.0), "what two learners exchange is not known"
    longest = work.costs["rollout"].seconds(64, 8) / 0.1
    assert longest == pytest.approx(QUICKSTART.rollout.max_tokens, rel=0.05)  # no response of it is longer
    assert make_plan(work).predicted_step_s > 0


@pytest.mark.parametrize(
    ("changes", "portions"),
    [
        ([], [1, 2, 4, 8]),
        (["rollout.prompts=32"], [4, 8, 16, 32]),
        (["rollout.prompts=13"], [13]),
        (["learn.updates=2"], [8]),
        (["learn.advantage=ppo"], [8]),
    ],
    ids=str,
)
def test_a_batch_is_cut_as_the_learner_may_have_it(changes, portions):
    recipe = load_recipe(None, {}, ["rollout.prompts=8", "rollout.group=4", *changes])
    assert training_work(profile(), recipe, devices=2).sizes == portions


def test_portions_hide_an_update_behind_the_rollout_and_no_more_than_there_is_to_hide_behind():
    """Prompts one after the other, one group at a time: the learner has each while the next one is sampled. All at
    once: they are whole together, and there is nothing to begin with."""
    slow = {"update": RoleProfile(points=[Measured(devices=1, responses=32, seconds=5.0)])}
    long = RolloutProfile(tau=[(1.0, 0.1), (64.0, 0.1)], lengths=[100])
    made = profile(rollout=long, roles=slow)
    in_turn, at_once = (
        make_plan(training_work(made, load_recipe(None, {}, [*CHANGES, f"engine.max_seqs={slots}"]), devices=2))
        for slots in (4, 64)
    )
    sampled = 8 * 100 * 0.1
    assert (in_turn.mode, in_turn.granularity) == ("collocated", 8), "two engines need half of it"
    beside = next(other for other in in_turn.alternatives if other.mode == "disaggregated")
    assert beside.seconds == pytest.approx(sampled + 5.0 / 8)
    beside = next(other for other in at_once.alternatives if other.mode == "disaggregated")
    assert beside.seconds == pytest.approx(sampled / 8 + 5.0)


def test_log_probs_belong_to_the_update_and_rewards_to_the_host():
    point = RoleProfile(points=[Measured(devices=1, responses=8, seconds=1.0, memory_gib=6.0)])
    roles = {**profile().roles, "logprob": point, "reward": point}
    work = training_work(profile(roles=roles), QUICKSTART, devices=2)
    assert work.graph.nodes["reward"].on_host
    assert work.costs["update"].seconds(1, 2) == pytest.approx(3.0)
    assert work.costs["update"].memory_gib(1, 2) == 6.0
    assert work.costs["update"].swap_s(1) == 0.5


def write_run(folder, steps: int = 3, **learn: float) -> None:
    """Two responses at once, at 0.2 s a step; the longer one goes on alone, at 0.1 s."""
    log, t = Log(), 0.0
    log.run(concurrency=4)
    log.events[0]["recipe"] = {"model": "tiny"}
    for step in range(1, steps + 1):
        log.begin(step, t)
        log.start("a1", t)
        log.start("a2", t)
        log.end("a1", t + 10 * 0.2, 10)
        log.score("a1", t + 10 * 0.2 + 0.05, 1.0)
        log.end("a2", t + 10 * 0.2 + 90 * 0.1, 100)
        log.score("a2", t + 11.05, 0.0)
        log.train(t + 12, member("a1", 10, 1.0), member("a2", 100, 0.0))
        log.over(t + 12, t + 15, t + 15.5, 110, logprob_s=0.5, update_s=2.0, **learn)
        t += 16
    log.write(folder / "events.jsonl")


def test_what_a_learner_took_during_the_rollout_counts_as_well(tmp_path):
    write_run(tmp_path, early_s=1.5)
    made = profile_of_run(tmp_path)
    assert made.roles["update"].points == [Measured(devices=1, responses=2, seconds=2.0)]
    assert made.roles["logprob"].points[0].seconds == 0.5
    assert made.sync_s == pytest.approx(2.0)


def test_a_run_tells_what_its_roles_took(tmp_path):
    write_run(tmp_path)
    made = profile_of_run(tmp_path)
    assert made.model == "tiny"
    assert made.sync_s == pytest.approx(0.5)
    assert made.memory_gib is None
    assert made.roles["update"].points == [Measured(devices=1, responses=2, seconds=2.0)]
    assert made.roles["logprob"].points[0].seconds == 0.5
    seconds = made.roles["reward"].points[0].seconds
    assert seconds == pytest.approx(0.05)  # of the second alone: the first was scored while that ran
    assert sorted(made.rollout.lengths) == [10, 10, 100, 100]  # the first step is left out
    (few, alone), (two, both) = made.rollout.tau
    assert two == pytest.approx(2.0)
    assert both == pytest.approx(0.2)
    assert few == pytest.approx(1.0)
    assert alone == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("about", "learners"),
    [
        ({"recipe": {"model": "tiny", "flow": {"mode": "local", "learner_devices": 3}}}, 1),
        ({"recipe": {"model": "tiny", "flow": {"mode": "hybrid", "learner_devices": 3}}}, 3),
        ({"plan": {"placement": {"update": {"first": 0, "count": 2}}}}, 2),
    ],
)
def test_a_run_tells_how_many_learned(tmp_path, about, learners):
    write_run(tmp_path)
    first, *rest = (tmp_path / "events.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "events.jsonl").write_text(json.dumps({**json.loads(first), **about}) + "\n" + "".join(rest))
    roles = profile_of_run(tmp_path).roles
    assert {point.devices for name in ("update", "logprob") for point in roles[name].points} == {learners}


def test_engines_are_told_apart_and_the_fuller_is_never_the_faster(tmp_path):
    """Each of two engines has one response, then one of them two; noise makes those two look faster."""
    log, t = Log(), 0.0
    log.run(concurrency=4)
    log.events[0]["recipe"] = {"model": "tiny"}
    for step in (1, 2):
        log.begin(step, t)
        log.start("a1", t)
        log.start("a2", t, engine=1)
        log.end("a1", t + 1.0, 10)
        log.end("a2", t + 1.0, 10)
        log.start("b1", t + 1.0)
        log.start("b2", t + 1.0)
        log.end("b1", t + 2.0, 11)
        log.end("b2", t + 2.0, 11)
        log.train(t + 3, member("a1", 10, 1.0), member("a2", 10, 0.0))
        log.over(t + 3, t + 4, t + 4.5, 42, logprob_s=0.5, update_s=0.5)
        t += 5
    log.write(tmp_path / "events.jsonl")
    ((_, seconds),) = profile_of_run(tmp_path).rollout.tau
    assert seconds == pytest.approx(4.0 / 42)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="is no run"):
        profile_of_run(tmp_path)
    (tmp_path / "events.jsonl").write_text(json.dumps({"e": "run", "t": 0, "concurrency": 4, "recipe": {}}) + "\n")
    with pytest.raises(UserError, match="has no whole step"):
        profile_of_run(tmp_path)
    (tmp_path / "events.jsonl").write_text("")
    with pytest.raises(UserError, match="does not begin with the run's own line"):
        profile_of_run(tmp_path)


def test_this_machine_is_measured():
    from untail.engine.models.load import load_model
    from untail.flow.measure import WAIT_S, measure
    from untail.tasks.prepare import prepare

    small = ["rollout.prompts=4", "rollout.group=4", "rollout.max_tokens=24", "engine.kv_gib=0.05"]
    recipe = load_recipe(None, {}, [*small, "validation.prompts=8", "task.size=16"])
    model = load_model("tiny", "cpu", "float32")
    made = measure(recipe, model, prepare(recipe, model.tokenizer, model.decoder.shape.context).prompts, 2)
    assert len(made.rollout.lengths) == 8
    assert all(1 <= length <= 24 for length in made.rollout.lengths)
    assert [point.responses for point in made.roles["update"].points] == [4, 8]
    assert all(point.seconds > 0 and point.memory_gib > 0 for point in made.roles["update"].points)
    assert made.sync_s > 0
    numbers = sum(parameter.numel() for parameter in model.decoder.parameters())
    assert made.exchange.gib == pytest.approx(3 * 4 * numbers / 2**30)
    assert made.exchange.responses == 8, "one pass had them all"
    assert made.exchange.wait_s == pytest.approx(3 * (model.decoder.shape.layers + 1) * WAIT_S["cpu"])
    assert make_plan(training_work(made, recipe, 4)).predicted_step_s > 0
