"""Drafts change no token: not in mixed batches, not over forks, extensions, preemption or a switch in mid-sequence.

Every drafter runs through the same scenes, with a choice that goes from one depth to another and to nobody and back
every few steps. The same sequences, made alone and undrafted, are the measure.
"""

import random
from collections import Counter

import pytest
import torch

from tests.helpers.drafting import Knowing, always, let_guess, switching
from tests.helpers.equality import assert_same, reference_logits
from tests.helpers.models import random_decoder
from tests.helpers.running import GREEDY, extend_to, finish, join, spec
from untail.config import EngineConfig
from untail.draft.base import DRAFTERS, Drafter
from untail.draft.build import build  # noqa: F401  (registers all drafters)
from untail.engine import sampler
from untail.engine.engine import Engine
from untail.engine.models.decoder import Decoder
from untail.engine.models.shape import Rope, Shape
from untail.types import Chunk, SamplingParams

SHARED = [5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4, 3, 3, 8, 3, 2, 7, 9, 5, 0, 2, 8, 8, 4, 1, 9]
PROMPTS = [[*SHARED, 71], [*SHARED, 69, 39], [17, 21, 33], list(range(100, 160)), [1] * 16]
BUDGET = 80
MORE_STREAMS = 100  # what past responses are made with: others than the sequences' own
SAMPLED = SamplingParams(temperature=1.0)
NAMES = ("knowing", "history", "ngram", "layer_skip", "adaptive")


@pytest.fixture(scope="module", params=["greedy", "sampled"])
def sampling(request):
    return GREEDY if request.param == "greedy" else SAMPLED


@pytest.fixture(scope="module")
def model():
    return random_decoder("llama")


@pytest.fixture(scope="module")
def alone(model, sampling):
    return [respond(model, prompt, number, sampling) for number, prompt in enumerate(PROMPTS)]


@pytest.fixture(scope="module")
def past(model, sampling):
    """Earlier responses to each prompt, one of them right up to its middle."""
    responses = []
    for number, prompt in enumerate(PROMPTS):
        own, other = (respond(model, prompt, stream, sampling) for stream in (number, number + MORE_STREAMS))
        responses.append((tuple(own[: BUDGET // 2] + other[BUDGET // 2 :]), tuple(other)))
    return responses


def respond(decoder, prompt, stream, sampling) -> list[int]:
    engine = Engine(decoder, EngineConfig(kv_blocks=64, prefix_cache=False))
    engine.add(spec("x", prompt, BUDGET, stream=stream, sampling=sampling))
    return finish(engine)["x"].tokens


@pytest.fixture(params=NAMES)
def name(request) -> str:
    return request.param


@pytest.fixture
def drafter(name, alone, model) -> Drafter:
    if name == "knowing":
        responses = {tuple(prompt): tokens for prompt, tokens in zip(PROMPTS, alone, strict=True)}
        return Knowing(responses, model.shape.vocab)
    return make(name)


def make(name: str) -> Drafter:
    """Random text hardly ever repeats three tokens: one has to do."""
    return DRAFTERS.build({"name": name, **({"shortest": 1} if name in ("history", "ngram") else {})}, name)


def start(decoder, sampling, name, drafter, past, budget=BUDGET, **config) -> Engine:
    engine = Engine(decoder, EngineConfig(**{"kv_blocks": 128, **config}), speculation=switching(name, drafter))
    let_guess(drafter)
    for number, prompt in enumerate(PROMPTS):
        engine.add(spec(str(number), prompt, budget, stream=number, sampling=sampling, past=past[number], chunk=9))
    return engine


def assert_unchanged(decoder, sampling, alone, results, what):
    for number, prompt in enumerate(PROMPTS):
        stream = None if sampling is GREEDY else number
        assert_same(decoder, prompt, alone[number], results[str(number)].tokens, what, stream)


def assert_drafted(engine):
    """Something was drafted, and no drafter failed."""
    figures = engine.speculation.figures()
    assert engine.counts.drafted > 0
    assert all(counts["failures"] == 0 for counts in figures.values()), figures


def test_mixed_batches(model, sampling, alone, past, name, drafter):
    engine = start(model, sampling, name, drafter, past)
    results = finish(engine)
    assert_unchanged(model, sampling, alone, results, name)
    assert_drafted(engine)
    if name in ("knowing", "history"):
        assert engine.counts.steps < BUDGET, "drafts saved no step"
    for result in results.values():  # every column has an entry for every token
        columns = (result.policy_logprob, result.behaviour_logprob, result.entropy, result.p_eos, result.version)
        assert {len(column) for column in columns} == {BUDGET}


def test_figures_are_those_of_undrafted_tokens(model, sampling, alone, past, name, drafter):
    plain = Engine(model, EngineConfig(kv_blocks=128))
    for number, prompt in enumerate(PROMPTS):
        plain.add(spec(str(number), prompt, BUDGET, stream=number, sampling=sampling))
    results = finish(start(model, sampling, name, drafter, past))
    for sequence, one in finish(plain).items():
        other = results[sequence]
        if one.tokens != other.tokens:
            continue  # a near tie, which the other tests look at
        for column in ("policy_logprob", "behaviour_logprob", "entropy", "p_eos"):
            torch.testing.assert_close(
                torch.tensor(getattr(one, column)), torch.tensor(getattr(other, column)), atol=1e-4, rtol=0
            )


def test_few_slots_and_preemption(model, sampling, alone, past, name, drafter):
    engine = start(model, sampling, name, drafter, past, kv_blocks=16, max_seqs=3, max_batch_tokens=40)
    assert_unchanged(model, sampling, alone, finish(engine), name)
    assert engine.counts.preemptions > 0
    assert_drafted(engine)


def test_extend(model, sampling, alone, past, name, drafter):
    engine = start(model, sampling, name, drafter, past, budget=10)
    results = extend_to(engine, BUDGET, by=10)
    assert_unchanged(model, sampling, alone, results, name)
    fresh = sum(map(len, PROMPTS)) + (BUDGET - 1) * len(PROMPTS)
    assert engine.counts.computed + engine.counts.prefix_hits == fresh, "something was computed twice"


@pytest.mark.parametrize("at", [1, 5, 9])
def test_fork(model, sampling, alone, past, name, drafter, at):
    engine = start(model, sampling, name, drafter, past)
    children: dict[str, tuple[int, int]] = {}

    def fork(step, so_far):
        if step == at:
            for number in range(len(PROMPTS)):
                if engine.is_alive(str(number)):
                    forked, chunk = engine.fork(str(number), [number, number])
                    join(so_far.setdefault(str(number), Chunk()), chunk)
                    children.update((child, (number, forked.position)) for child in forked.children)

    results = finish(engine, fork)
    assert_unchanged(model, sampling, alone, results, name)
    assert children
    for child, (number, done) in children.items():
        stream = None if sampling is GREEDY else number
        own = results[child].tokens if child in results else []
        assert_same(model, PROMPTS[number], alone[number], alone[number][:done] + own, name, stream)


def test_weights_that_do_not_change_and_a_nap(model, sampling, alone, past, name, drafter):
    engine = start(model, sampling, name, drafter, past)

    def interfere(step, _):
        if step == 6:
            engine.load_weights(None, 1)
        if step == 12:
            engine.sleep()
            engine.wake()

    assert_unchanged(model, sampling, alone, finish(engine, interfere), name)


def test_stop_tokens_end_a_sequence_in_the_middle_of_its_drafts(model, sampling, alone, past, name, drafter):
    """Whatever was drafted behind the stop token is gone; the tokens up to it are the same."""
    stops = [response[31] for response in alone]
    engine = Engine(model, EngineConfig(kv_blocks=128), speculation=switching(name, drafter))
    let_guess(drafter)
    for number, prompt in enumerate(PROMPTS):
        stopping = SamplingParams(temperature=sampling.temperature, stop_ids=(stops[number],))
        engine.add(spec(str(number), prompt, BUDGET, stream=number, sampling=stopping, past=past[number]))
    results = finish(engine)
    for number in range(len(PROMPTS)):
        result = results[str(number)]
        end = alone[number].index(stops[number]) + 1
        assert result.end == "stop"
        stream = None if sampling is GREEDY else number
        assert_same(model, PROMPTS[number], alone[number][:end], result.tokens, name, stream)


VOCAB = 12
TOY = Shape(
    family="llama", vocab=VOCAB, hidden=16, intermediate=32, layers=2, heads=2, kv_heads=1, context=64, head_dim=8,
    rope=Rope(500.0),
)  # fmt: skip


@pytest.fixture(scope="module")
def toy() -> Decoder:
    return Decoder(TOY).initialise(torch.Generator().manual_seed(3), std=0.6)


def sample_many(decoder: Decoder, name: str, count: int) -> Counter[tuple[int, int, int]]:
    """Three tokens of many sequences, drafted from the second on."""
    seen: Counter[tuple[int, int, int]] = Counter()
    drafter = toy_drafter(name)
    past = tuple(tuple(random.Random(i).choices(range(VOCAB), k=8)) for i in range(4))
    for first in range(0, count, 500):
        engine = Engine(decoder, EngineConfig(kv_blocks=1100, max_seqs=500), speculation=always(name, drafter, 2))
        let_guess(drafter)
        for number in range(first, min(count, first + 500)):
            stream = random.Random(number).getrandbits(62)
            engine.add(spec(str(number), [1, 2, 3], 3, stream=stream, sampling=SAMPLED, past=past))
        for result in finish(engine).values():
            seen[tuple(result.tokens)] += 1
    return seen


@torch.inference_mode()
def exact_distribution(decoder: Decoder) -> dict[tuple[int, int, int], float]:
    result = {}
    first = reference_logits(decoder, [1, 2, 3])[-1].softmax(-1)
    for a in range(VOCAB):
        second = reference_logits(decoder, [1, 2, 3, a])[-1].softmax(-1)
        for b in range(VOCAB):
            third = reference_logits(decoder, [1, 2, 3, a, b])[-1].softmax(-1)
            for c in range(VOCAB):
                result[a, b, c] = float(first[a] * second[b] * third[c])
    return result


def p_value(seen: Counter[tuple[int, int, int]], exact: dict[tuple[int, int, int], float]) -> float:
    """Chi-square; outcomes too rare to be tested alone are put together."""
    total = sum(seen.values())
    common = [key for key, p in exact.items() if p * total >= 10]
    observed = [seen[key] for key in common] + [total - sum(seen[key] for key in common)]
    expected = [exact[key] * total for key in common]
    expected.append(total - sum(expected))
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    freedom = torch.tensor(len(common) / 2, dtype=torch.float64)
    return torch.special.gammaincc(freedom, torch.tensor(statistic / 2, dtype=torch.float64)).item()


def toy_drafter(name: str) -> Drafter:
    return Knowing({(1, 2, 3): [4, 5, 6]}, VOCAB, wrong=0.5) if name == "knowing" else make(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_distribution_is_the_models(toy, name):
    assert p_value(sample_many(toy, name, 50_000), exact_distribution(toy)) > 0.01


def test_the_distribution_is_the_models_on_fewer_samples(toy):
    assert p_value(sample_many(toy, "knowing", 4_000), exact_distribution(toy)) > 0.001


def test_both_tests_notice_a_broken_acceptance_rule(toy, model, alone, past, sampling, monkeypatch):
    """One that goes on behind a wrong draft is seen in the tokens and in the distribution."""
    monkeypatch.setattr(sampler, "follows_accepted", lambda tokens_R, drafts, offsets: torch.ones_like(tokens_R))
    wrong = Knowing({tuple(p): t for p, t in zip(PROMPTS, alone, strict=True)}, model.shape.vocab, wrong=0.5)
    results = finish(start(model, sampling, "wrong", wrong, past))
    with pytest.raises(AssertionError):
        assert_unchanged(model, sampling, alone, results, "broken")
    assert p_value(sample_many(toy, "knowing", 4_000), exact_distribution(toy)) < 1e-6
