"""A recipe's mechanisms: what is refused, and how several answers become one."""

import math
from itertools import islice

import pytest
from tests.helpers.rig import make_mechanisms
from tests.helpers.rollout import FakeView, make_group, make_plan, make_prompt, whole, write
from tests.helpers.tiny import closes, keeps, refills, routes, shapes, stops, strides

from untail.backends.base import Capabilities
from untail.config import RolloutConfig, load_recipe, recipe_names
from untail.errors import ConfigError
from untail.rollout.live import Route
from untail.rollout.mechanisms import MechanismError, Mechanisms, resolved
from untail.rollout.points import Admit, GroupPoint, Lane, Mechanism, Move, Place, Strider, Verdict

CONFIG = RolloutConfig(max_tokens=8192)


def made(*classes, **tables) -> Mechanisms:
    """Those of the tables, then these, each under its number."""
    return make_mechanisms(tables, CONFIG, **{f"m{number}": cls for number, cls in enumerate(classes)})


def member(tokens: int = 0, budget: int = 100):
    one = make_group(make_plan(size=2, budget=budget)).members[0]
    return write(one, [1] * tokens)


# ---- what a recipe may ask for -----------------------------------------------------------------------------------


def test_they_are_asked_in_the_order_of_the_recipe():
    assert list(made(defer={}, fixed={}, loop={}).by_name) == ["defer", "fixed", "loop"]


def test_false_leaves_one_out():
    mechanisms = made(fixed={}, defer=False)
    assert list(mechanisms.by_name) == ["fixed"]
    assert not mechanisms.finishes
    assert mechanisms.rest == "close"


def test_an_unknown_one_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown mechanism 'tail_bach'; did you mean 'tail_batch'\?"):
        made(tail_bach={})


def test_an_unknown_field_is_refused_with_its_place():
    with pytest.raises(ConfigError, match=r"mechanisms.fixed.*segmnts.*segments"):
        made(fixed={"segmnts": 3})


def test_two_that_set_strides_contradict_each_other():
    sentence = r"mechanisms.fixed and mechanisms.remainder contradict each other: each sets strides"
    with pytest.raises(ConfigError, match=sentence) as caught:
        made(loop={}, fixed={}, remainder={})
    assert "--set mechanisms.remainder=false" in str(caught.value)
    made(fixed={}, remainder=False)


def test_two_that_rank_prompts_contradict_each_other():
    with pytest.raises(ConfigError, match=r"mechanisms.vade and mechanisms.utility contradict.*each ranks prompts"):
        made(vade={}, utility={})
    made(vade={}, order={}, tiers={})  # these shape plans, and that goes one after another


def test_a_length_over_the_budget_is_refused():
    config = RolloutConfig(max_tokens=16384)
    with pytest.raises(ConfigError, match=r"mechanisms.pyramid.first = 20000 is longer than the longest response"):
        Mechanisms({"pyramid": {"first": 20000}}, config)
    with pytest.raises(ConfigError, match=r"mechanisms.fixed.segments = 99 .* rollout.max_tokens = 50"):
        Mechanisms({"fixed": {"segments": 99}}, RolloutConfig(max_tokens=50))


def test_two_that_fill_free_slots_contradict_each_other():
    with pytest.raises(
        ConfigError, match=r"generations and mechanisms.compaction contradict.*new groups in free slots"
    ):
        made(generations={}, compaction={})


CONTRADICTIONS = {
    "dropped or deferred": {"oversample": {"rest": "drop"}, "defer": {}},
    "asked anew or deferred": {"tail_batch": {}, "defer": {}},
    "asked anew or kept as partials": {"tail_batch": {}, "oversample": {"rest": "defer"}},
    "a long round that waits for all, or not": {"tail_batch": {}, "deadline": {}},
    "asked anew or dropped": {"oversample": {"rest": "drop"}, "tail_batch": {}},
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_what_cannot_become_of_the_same_rest_is_refused(case):
    tables = CONTRADICTIONS[case]
    for names in (list(tables), list(tables)[::-1]):
        with pytest.raises(
            ConfigError, match=r"contradict each other: of what is unfinished .*; leave one out"
        ) as error:
            made(**{name: tables[name] for name in names})
        assert all(f"mechanisms.{name}" in str(error.value) for name in names)


def test_what_goes_together_is_not_refused():
    assert made(oversample={"rest": "drop"}, deadline={}).rest == "close"  # whichever comes first closes
    assert made(deadline={}, defer={}).rest == "defer"
    assert made(oversample={"rest": "defer"}, defer={}).rest == "defer"
    assert made(dynamic={}, defer={}).rest == "defer"
    assert made(dynamic={}, tail_batch={}).rest == "cancel"


def test_patience_beyond_the_budget_is_refused():
    with pytest.raises(ConfigError, match=r"rollout.patience = 101 exceeds rollout.max_tokens = 100.*; lower it"):
        Mechanisms({"loop": {}}, RolloutConfig(max_tokens=100, patience=101))
    Mechanisms({"fixed": {}}, RolloutConfig(max_tokens=100, patience=101))  # nobody watches


FIXES = {
    "more than all slots": ("buckets", {"short": 3}, r"short = 3.0 times .*base = 0.5 is more .*; set it to at most 2"),
    "upside down": ("buckets", {"long": 1.5, "short": 1}, r"long = 1.5 exceeds .*short = 1.0.*; lower it"),
    "unfinished small": ("unfinished", {"small": 2000}, "2000, 1024 and 4096; lower mechanisms.unfinished.small"),
    "unfinished large": ("unfinished", {"large": 5000}, "512, 5000 and 4096; lower mechanisms.unfinished.large"),
    "unfinished few": ("unfinished", {"few": 0.9}, r"few = 0.9 must be below .*many = 0.8; lower it"),
    "remainder floor": ("remainder", {"floor": 9, "cap": 8}, r"floor = 9 must not exceed .*cap = 8; lower it"),
    "entropy strides": ("entropy", {"min_stride": 9, "max_stride": 8}, r"min_stride = 9 must not .* = 8; lower it"),
    "collapse n-gram": ("collapse", {"ngram": 129}, r"ngram = 129 must not exceed .* = 128; lower it"),
    "no fields at all": ("defer", {"x": 1}, r"unknown key 'mechanisms.defer.x'; nothing can be set here: leave it out"),
}


@pytest.mark.parametrize("case", FIXES)
def test_what_is_refused_comes_with_a_fix(case):
    name, table, sentence = FIXES[case]
    with pytest.raises(ConfigError, match=sentence):
        made(**{name: table})


def test_a_rate_of_one_is_refused():
    with pytest.raises(ConfigError, match=r"mechanisms.oversample.rate = 1.0"):
        made(oversample={"rate": 1.0})


def test_entropy_must_be_given_by_the_backend():
    can = lambda entropy: Capabilities(entropy=entropy, fork="none", hidden=False, draft=False)
    mechanisms = made(fixed={}, collapse={})
    mechanisms.check(can("exact"), "native")
    mechanisms.check(can("topk"), "other")
    with pytest.raises(ConfigError, match=r"mechanisms.collapse needs the entropy.*'other'.*collapse=false"):
        mechanisms.check(can("none"), "other")
    made(fixed={}, loop={}).check(can("none"), "other")


def test_copies_must_be_made_by_the_backend():
    can = lambda fork: Capabilities(entropy="exact", fork=fork, hidden=False, draft=False)
    mechanisms = made(fixed={}, tournament={}, fork={})
    mechanisms.check(can("cow"), "native")
    mechanisms.check(can("prefix"), "other")
    with pytest.raises(ConfigError, match=r"mechanisms.fork copies running.*'other' cannot.*mechanisms.fork=false"):
        mechanisms.check(can("none"), "other")
    made(fixed={}, tournament={}).check(can("none"), "other")


def test_two_that_copy_contradict_each_other():
    class Copies(Mechanism, GroupPoint):
        def copies(self, group, places, view):
            return []

    with pytest.raises(ConfigError, match=r"mechanisms.fork and mechanisms.m0 contradict.*each copies members"):
        made(Copies, fork={})
    made(fork={}, tournament={}, outliers={}, duplicates={}, mode_collapse={})


def test_what_they_want_to_know():
    wants = lambda **tables: (
        (mechanisms := made(**tables)).wants_hidden,
        mechanisms.wants_partial,
        mechanisms.watchers_want_partial,
    )
    assert wants(fixed={}, loop={}, fork={}, duplicates={}) == (False, False, False)
    assert wants(tournament={}) == (True, True, False)
    assert wants(outliers={}) == (True, False, False)
    assert wants(structure={}) == (False, True, True)


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_that_ships_can_be_built(name):
    recipe = load_recipe(name, {}, [])
    mechanisms = Mechanisms(recipe.mechanisms, recipe.rollout)
    assert list(mechanisms.by_name) == list(recipe.mechanisms)


# ---- several answers ---------------------------------------------------------------------------------------------


def test_with_none_it_is_plain_grpo():
    mechanisms, view, one = made(), FakeView(wanted=4, ready=[whole(make_prompt(), [1.0])]), member(budget=80)
    assert [prompt.tokens[0] for prompt in islice(mechanisms.rank(view), 2)] == [0, 1]
    plan = make_plan()
    assert mechanisms.shape(plan, view) is plan
    assert mechanisms.route(one, view) == Route()
    assert mechanisms.place(one, [2, 0], view) == 2
    assert (mechanisms.stride(one, view).tokens, mechanisms.stride(one, view).in_place) == (80, False)
    assert mechanisms.look(one, view, True, set()) is None
    assert mechanisms.copies(one.group, 1, view) == []
    assert (mechanisms.starts(view), mechanisms.closes_at(view), mechanisms.rest) == (3, math.inf, "close")
    assert mechanisms.keeps(view.ready[0], view)
    assert (mechanisms.moves(view), mechanisms.refills, mechanisms.looks) == ([], False, False)


def test_the_first_ranking_holds():
    class None_(Mechanism, Admit):
        def rank(self, view):
            return None

    class Last(Mechanism, Admit):
        def rank(self, view):
            return iter(view.prompts[-1:])

    mechanisms, view = made(Last), FakeView()
    assert [prompt.tokens[0] for prompt in mechanisms.rank(view)] == [15]
    assert [prompt.tokens[0] for prompt in islice(made(None_).rank(view), 1)] == [0]


def test_plans_are_shaped_in_turn_until_one_refuses():
    class Doubles(Mechanism, Admit):
        def shape(self, plan, view):
            plan.budget *= 2
            return plan

    class Refuses(Mechanism, Admit):
        def shape(self, plan, view):
            return None

    assert made(shapes(budget=10), Doubles).shape(make_plan(), FakeView()).budget == 20
    assert made(Refuses, shapes(budget=10)).shape(make_plan(), FakeView()) is None


def test_a_route_or_a_place_is_one_mechanism_s_business():
    assert made(routes(lambda one: None)).route(member(), FakeView()).lane == "all"
    assert made(routes(lambda one: Route("a"))).route(member(), FakeView()).lane == "a"
    with pytest.raises(ConfigError, match="each routes members"):
        made(routes(lambda one: Route("a")), routes(lambda one: Route("b")))

    class Nowhere(Mechanism, Place):
        pass

    class Last(Mechanism, Place):
        every = 7.0

        def place(self, one, free, view):
            return free[-1]

        def moves(self, view):
            return [Move(member(), 3)]

    mechanisms = made(Nowhere, Last)
    assert mechanisms.place(member(), [4, 2, 1], FakeView()) == 1
    assert [move.engine for move in mechanisms.moves(FakeView())] == [3]
    with pytest.raises(ConfigError, match="each places members"):
        made(Last, Last)
    assert mechanisms.looks


def test_one_says_how_much_is_refilled_and_without_an_answer_nothing_is():
    class Silent(Mechanism, Lane):
        pass

    assert not made(Silent).refills
    assert made(Silent, refills(0)).refills
    assert made(Silent, refills(5)).refill(FakeView()) == 5


@pytest.mark.parametrize(
    ("asked", "route", "tokens"),
    [
        (30, Route(), 30),
        (300, Route(), 90),  # what is left
        (0, Route(), 1),
        (30, Route(scale=0.5), 15),
        (1, Route(scale=0.1), 1),
        (30, Route(stride=50), 50),
        (30, Route(stride=500, scale=0.5), 90),
    ],
)
def test_a_stride_is_within_what_is_left(asked, route, tokens):
    one = member(tokens=10, budget=100)
    one.route = route
    stride = made(strides(asked, in_place=True)).stride(one, FakeView())
    assert stride.tokens == tokens
    assert stride.in_place is (route.stride is None)


def test_a_strider_without_an_answer_leaves_what_is_left():
    class Silent(Mechanism, Strider):
        def stride(self, one, view):
            return None

    assert made(Silent).stride(member(tokens=10, budget=100), FakeView()).tokens == 90


def test_who_only_stops_is_not_asked_before_the_patience_is_over():
    class Asked(stops(1)):
        only_stops = True

        def look(self, one, view):
            asked.append(one.id)
            return super().look(one, view)

    asked: list[str] = []
    look = made(Asked).look
    assert look(member(5), FakeView(), False, set()) is None
    assert not asked
    assert look(member(5), FakeView(), True, set()).act == "stop"


def test_the_first_verdict_that_counts_holds():
    first, second = stops(1, reason="first"), stops(1, reason="second")
    look = made(first, second).look
    assert look(member(5), FakeView(), True, set()).reason == "first"
    assert look(member(5), FakeView(), True, {"first"}).reason == "second"
    assert look(member(5), FakeView(), True, {"first", "second"}) is None
    assert look(member(5), FakeView(), False, set()) is None
    assert look(member(0), FakeView(), True, set()) is None
    cut = made(first, stops(1, act="cut", reason="cut")).look
    assert cut(member(5), FakeView(), False, set()) == Verdict("cut", "cut")


def test_the_most_are_started_and_the_earliest_closes():
    mechanisms = made(closes(9, groups=5), closes(3, groups=7), closes(groups=6))
    view = FakeView(began=1.0)
    assert (mechanisms.starts(view), mechanisms.closes_at(view)) == (7, 4.0)


@pytest.mark.parametrize(
    ("rests", "rest"),
    [
        ([], "close"),
        (["close"], "close"),
        (["close", "cancel"], "cancel"),
        (["cancel", "defer"], "defer"),
        (["defer", "close"], "defer"),
    ],
)
def test_whoever_keeps_more_says_what_becomes_of_the_rest(rests, rest):
    assert made(*(closes(what=what) for what in rests)).rest == rest


def test_all_must_want_to_keep_a_group():
    yes, no, group = keeps(lambda group: True), keeps(lambda group: False), whole(make_prompt(), [1.0])
    assert made(yes, yes).keeps(group, FakeView())
    assert not made(yes, no).keeps(group, FakeView())


def test_state_goes_by_name():
    class Counts(Mechanism):
        count = 0

        def after_step(self, batch, view):
            self.count += len(batch)

        def state(self):
            return {"count": self.count}

        def restore(self, state):
            self.count = state["count"]

    mechanisms, fresh = made(Counts, closes()), made(Counts, closes())
    mechanisms.after_step([whole(make_prompt(), [1.0])] * 3, FakeView())
    assert mechanisms.state() == {"m0": {"count": 3}, "m1": {}}
    fresh.restore(mechanisms.state())
    assert fresh.by_name["m0"].count == 3


def test_a_mechanism_that_is_left_out_has_to_be_known():
    recipe = load_recipe("untail", {}, ["mechanisms.lop=false"])
    for use in (resolved, lambda recipe: Mechanisms(recipe.mechanisms, recipe.rollout)):
        with pytest.raises(ConfigError, match="unknown mechanism 'lop'; did you mean 'loop'"):
            use(recipe)


# ---- one that fails ----------------------------------------------------------------------------------------------


def test_one_that_raises_is_named_with_what_it_was_asked():
    class Broken(Mechanism, Admit, Strider):
        def rank(self, view):
            yield from view.prompts[:1]
            raise ZeroDivisionError("no prompts left")

        def stride(self, member, view):
            return {}["x"]

    mechanisms, view = made(Broken), FakeView()
    with pytest.raises(MechanismError, match=r"mechanisms.m0 \(.*\) failed when it was asked `stride`: KeyError: 'x'"):
        mechanisms.stride(member(), view)
    ranked = mechanisms.rank(view)
    next(ranked)
    with pytest.raises(MechanismError, match=r"mechanisms.m0 .* asked `rank`: ZeroDivisionError: no prompts left"):
        next(ranked)


def test_what_a_mechanism_says_about_the_users_input_stays_as_it_is():
    class Refuses(Mechanism):
        def check(self, group, budget):
            raise ConfigError("mechanisms.m0.x = 1 is odd; set it to 2")

    with pytest.raises(ConfigError, match=r"^mechanisms.m0.x = 1 is odd; set it to 2$"):
        made(Refuses)
