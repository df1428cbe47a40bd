"""What a drafter does wrong stays with it, and everything is counted."""

import numpy as np
import pytest
from tests.helpers.drafting import Knowing, Raising, always, switching
from tests.helpers.running import finish, spec

from untail.config import DraftConfig, EngineConfig
from untail.draft import build as drafting
from untail.draft.base import Drafter, DraftTrainer
from untail.draft.choose.base import Chooser
from untail.draft.choose.first import First
from untail.draft.speculation import Speculator
from untail.draft.training import DraftTraining
from untail.engine.draft import NONE, Draft
from untail.engine.engine import Engine
from untail.errors import ConfigError, UserError
from untail.types import SamplingParams

PROMPTS = {"a": [1, 2, 3], "b": [4, 5, 6], "c": [7, 8]}


def run(decoder, speculation, budget=30, **sampling):
    engine = Engine(decoder, EngineConfig(kv_blocks=64), speculation=speculation)
    for number, (name, prompt) in enumerate(PROMPTS.items()):
        engine.add(spec(name, prompt, budget, stream=number, sampling=SamplingParams(1.0, **sampling)))
    return engine, finish(engine)


@pytest.fixture(scope="module")
def plain(decoder):
    return {name: chunk.tokens for name, chunk in run(decoder, None)[1].items()}


@pytest.fixture
def knowing(decoder, plain):
    return Knowing({tuple(PROMPTS[name]): tokens for name, tokens in plain.items()}, decoder.shape.vocab, wrong=0.0)


def test_right_drafts_are_all_accepted(decoder, plain, knowing):
    engine, results = run(decoder, always("knowing", knowing, depth=4))
    assert {name: chunk.tokens for name, chunk in results.items()} == plain
    counts = engine.speculation.figures()["knowing"]
    assert counts["accepted"] == counts["drafted"] == engine.counts.accepted > 0
    # One token comes with the prompt; then five a step: four drafts and one more.
    assert engine.counts.steps == 1 + -(-29 // 5)
    assert counts["proposals"] <= 3 * (engine.counts.steps - 1)


def test_a_drafter_that_raises_leaves_its_sequence_undrafted(decoder, plain):
    engine, results = run(decoder, always("raising", Raising({"b"})))
    assert {name: chunk.tokens for name, chunk in results.items()} == plain
    counts = engine.speculation.figures()["raising"]
    assert counts["failures"] > 29, "asked and told, it failed each time"
    assert counts["proposals"] > 0, "the others are drafted for"


def test_a_drafter_that_fails_for_all(decoder, plain):
    engine, results = run(decoder, always("raising", Raising(set(PROMPTS))))
    assert {name: chunk.tokens for name, chunk in results.items()} == plain
    assert engine.counts.drafted == 0


class Careless(Drafter):
    """Drafts more than asked for, tokens that are none, and on after a stop token."""

    def __init__(self, draft):
        super().__init__(None)
        self.draft = draft
        self.asked = 0

    def propose(self, asks):
        self.asked += len(asks)
        return [Draft(self.draft) for _ in asks]


def test_drafts_past_what_was_asked_for_are_cut_and_counted(decoder, plain):
    engine, results = run(decoder, always("careless", Careless([5] * 500), depth=9))
    assert {name: chunk.tokens for name, chunk in results.items()} == plain
    assert all(chunk.end == "boundary" and len(chunk.tokens) == 30 for chunk in results.values())
    counts = engine.speculation.figures()["careless"]
    assert counts["failures"] == counts["proposals"] > 0
    assert counts["drafted"] <= 9 * counts["proposals"]


NO_DRAFTS = [[-1, 3], [10**6], [3, -7, 3], [3, 2.0], [True], ["3"], [None], [np.int64(3)], (3, 4), None, 3, "33"]


@pytest.mark.parametrize("draft", NO_DRAFTS, ids=repr)
def test_what_is_no_draft_is_counted_and_its_sequence_goes_on_undrafted(decoder, plain, draft):
    careless = Careless(draft)
    engine, results = run(decoder, always("careless", careless, depth=9))
    assert {name: chunk.tokens for name, chunk in results.items()} == plain
    assert engine.counts.drafted == 0
    assert engine.speculation.figures()["careless"]["failures"] == careless.asked > 0


def test_one_bad_draft_costs_the_others_nothing(decoder, plain, knowing, capsys):
    real, asked = knowing.guess, []

    def guess(ask):
        asked.append(ask.sequence.id)
        return [10**6] if ask.sequence.id == "b" else real(ask)

    knowing.guess = guess
    engine, results = run(decoder, always("half_right", knowing, depth=4))  # nobody was told of one of this name
    assert {name: chunk.tokens for name, chunk in results.items()} == plain
    counts = engine.speculation.figures()["half_right"]
    assert counts["failures"] == asked.count("b") > 0
    assert counts["accepted"] == counts["drafted"] > 0
    said = capsys.readouterr().err
    assert said.count("draft.drafters.half_right failed: ValueError: it drafted 1000000 (int)") == 1


FIGURES = (-1.0, -1.0, 2.0, 0.1)


class Lossy(Drafter):
    """Gives the same token without the target, or what is none."""

    def __init__(self, draft):
        super().__init__(None)
        self.draft, self.asked = draft, 0

    @classmethod
    def is_lossy(cls, config):
        return True

    def propose(self, asks):
        return [NONE for _ in asks]

    def unverified(self, sequence):
        self.asked += 1
        return self.draft


def run_alone(decoder, speculation=None):
    engine = Engine(decoder, EngineConfig(kv_blocks=64), speculation=speculation)
    engine.add(spec("a", PROMPTS["a"], 10, sampling=SamplingParams(1.0)))
    (chunk,) = finish(engine).values()
    return chunk


NOT_ONE = [
    Draft([], []),
    Draft([], None),
    Draft([5], None),
    Draft([5], []),
    Draft([5], [()]),
    Draft([5], [3]),
    Draft([5, 6], [FIGURES, FIGURES]),
    Draft([5], [FIGURES, FIGURES]),
    Draft([10**6], [FIGURES]),
    5,
]


@pytest.mark.parametrize("draft", NOT_ONE, ids=repr)
def test_what_is_not_one_token_with_its_figures_is_verified_after_all(decoder, draft):
    lossy = Lossy(draft)
    speculation = always("lossy", lossy)
    chunk = run_alone(decoder, speculation)
    assert chunk.tokens == run_alone(decoder).tokens
    assert not any(chunk.lossy)
    counts = speculation.figures()["lossy"]
    assert (counts["unverified"], counts["failures"]) == (0, lossy.asked)
    assert lossy.asked > 0


def test_one_token_with_its_figures_is_taken_and_counted(decoder):
    speculation = always("lossy", Lossy(Draft([5], [FIGURES])))
    chunk = run_alone(decoder, speculation)
    taken = [token for token, lossy in zip(chunk.tokens, chunk.lossy, strict=True) if lossy]
    assert taken == [5] * speculation.figures()["lossy"]["unverified"]
    assert len(taken) == 5, "it computes no keys: the model goes on after each"


def test_nothing_is_tried_behind_a_stop_token(decoder):
    engine = Engine(
        decoder, EngineConfig(kv_blocks=64), speculation=always("careless", Careless([3, 9, 4, 4]), depth=4)
    )
    engine.add(spec("a", [1, 2], 30, sampling=SamplingParams(1.0, stop_ids=(9,))))
    engine.step()
    plan = engine.scheduler.plan(engine.lookahead.depths())
    engine.lookahead.draft(plan)
    assert plan.work[0].drafts == [3, 9]


def test_the_context_is_never_exceeded(decoder):
    engine = Engine(
        decoder, EngineConfig(kv_blocks=64, context=20), speculation=always("careless", Careless([5] * 40), depth=30)
    )
    engine.add(spec("a", [1, 2], 18, sampling=SamplingParams(1.0)))
    (chunk,) = finish(engine).values()
    assert (len(chunk.tokens), chunk.end) == (18, "length")


class Listening(DraftTrainer):
    def __init__(self):
        self.heard = []

    def occupied(self, share):
        self.heard.append(share)


def test_a_trainer_hears_of_all_that_the_engine_has_to_do_with(decoder, knowing):
    """From the first step on, when nothing has caught up yet; of those that wait for a slot, as many as there are."""
    speculation, trainer = always("knowing", knowing), Listening()
    speculation.training = DraftTraining({"knowing": trainer})
    config = EngineConfig(kv_blocks=64, max_seqs=4, max_batch_tokens=2)
    engine = Engine(decoder, config, speculation=speculation)
    engine.add(spec("a", PROMPTS["a"], 10, sampling=SamplingParams(1.0)))
    engine.step()
    engine.add(spec("b", PROMPTS["b"], 10, stream=1, sampling=SamplingParams(1.0)))
    engine.step()
    assert trainer.heard == [0.25, 0.5]
    for number in range(5):
        engine.add(spec(f"c{number}", PROMPTS["c"], 10, stream=2, sampling=SamplingParams(1.0)))
    engine.step()
    engine.admit_new(False)
    engine.step()
    assert trainer.heard[2:] == [1.0, len(engine.scheduler.running) / 4]
    engine.sleep()
    engine.wake()
    engine.step()
    assert trainer.heard[4] == trainer.heard[3], "what lost its blocks will be computed again"


def test_hidden_states_are_kept_if_somebody_wants_them(decoder, knowing):
    knowing.wants_hidden = True
    engine, _ = run(decoder, switching("knowing", knowing))
    assert engine.runner.hidden is not None
    assert engine.runner.hidden.shape == (64, 16, decoder.shape.hidden)
    assert Engine(decoder, EngineConfig(kv_blocks=8)).runner.hidden is None


def test_a_recipe_that_drafts_on_a_backend_that_cannot_is_refused():
    config = DraftConfig(drafters={"ngram": {}})
    with pytest.raises(ConfigError, match=r"draft.drafters.ngram needs a backend .* 'other' does not"):
        drafting.refuse_if_it_cannot(config, False, "other")
    drafting.refuse_if_it_cannot(config, True, "native")
    drafting.refuse_if_it_cannot(DraftConfig(drafters={"ngram": False}), False, "other")


def test_unknown_drafters_fields_and_choosers_are_named():
    for fields, message in (
        ({"drafters": {"histroy": {}}}, r"draft.drafters.histroy: unknown drafter 'histroy'; did you mean 'history'\?"),
        ({"drafters": {"foo": False}}, "draft.drafters.foo: unknown drafter 'foo'; known: adaptive, history, "),
        ({"drafters": {"ngram": {"longst": 3}}}, "unknown key 'draft.drafters.ngram.longst'"),
        ({"choose": "bandid"}, r"draft.choose: unknown chooser 'bandid'; did you mean 'bandit'\? known: bandit, "),
        ({"choose": {"name": "first", "dept": 3}}, r"unknown key 'draft.choose.dept'; did you mean 'depth'\?"),
        ({"choose": {"depth": 3}}, "draft.choose has no name; set draft.choose.name to one of: bandit, first, formula"),
    ):
        with pytest.raises(ConfigError, match=message):
            drafting.resolved(DraftConfig(**fields))


class Halfway(Chooser):
    """Has taken over the half of a state when it finds that the rest does not fit."""

    def __init__(self, config, drafters, seed):
        super().__init__(config, drafters, seed)
        self.knows = {}

    def state(self):
        return dict(self.knows)

    def restore(self, state):
        self.knows["first"] = state["first"]
        (self.knows["second"],) = state["second"]


@pytest.mark.parametrize(
    ("state", "error"),
    [({"first": 1}, KeyError), ({"first": 1, "second": 2}, TypeError), ({"first": 1, "second": ()}, ValueError)],
)
def test_of_a_choosers_state_that_does_not_fit_nothing_is_taken_over(state, error, capsys):
    speculation = Speculator({"ngram": Careless([])}, Halfway(First.Config(depth=3), ["ngram"], 7))
    speculation.restore({"first": 1, "second": [2]})
    assert speculation.chooser.state() == {"first": 1, "second": 2}
    speculation.restore(state)
    assert speculation.chooser.state() == {}
    assert (speculation.chooser.config.depth, speculation.chooser.drafters, speculation.chooser.seed) == (
        3,
        ["ngram"],
        7,
    )
    assert capsys.readouterr().err.startswith(
        f"what the checkpoint has of draft.choose does not fit ({error.__name__}: "
    )


def test_a_checkpoint_from_before_bandits_kept_steps_and_seconds_is_resumed(decoder, plain):
    speculation = drafting.build(DraftConfig(drafters={"ngram": {}}, choose="bandit"), seed=0)
    speculation.restore({"rewards": [[[2, 0, 0], ["ngram", 2], [[5, 0.25]]]], "pulls": [[[2, 0, 0], 5]]})
    _, results = run(decoder, speculation)
    assert {name: chunk.tokens for name, chunk in results.items()} == plain


def test_left_out_with_false():
    assert drafting.build(DraftConfig(drafters={"ngram": False}), 0) is None


@pytest.mark.parametrize("drafts", [[], None, [None], [[1, 2]]])
def test_a_drafter_that_gives_no_drafts_is_counted_as_failed(decoder, drafts):
    class Wrong(Drafter):
        def propose(self, asks):
            return drafts

    engine, _ = run(decoder, always("wrong", Wrong(None)))
    assert engine.counts.drafted == 0
    assert engine.speculation.figures()["wrong"]["failures"] > 0


def test_a_drafter_that_cannot_begin_is_named(decoder):
    class Broken(Drafter):
        def attach(self, runner):
            raise RuntimeError("no room")

    with pytest.raises(UserError, match=r"draft.drafters.broken could not begin \(RuntimeError\('no room'\)\)"):
        Engine(decoder, EngineConfig(kv_blocks=8), speculation=always("broken", Broken(None)))
