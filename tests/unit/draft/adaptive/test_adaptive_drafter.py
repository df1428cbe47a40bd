"""The adaptive drafter in the engine: whatever happens to a sequence, its draft is that of the plain model."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.drafting import always
from tests.unit.draft.adaptive.helpers import TOY, hidden_states, random_model, toy_target

from untail.config import EngineConfig
from untail.draft.adaptive import head as head_module
from untail.draft.adaptive.data import Capture
from untail.draft.adaptive.drafter import Adaptive
from untail.draft.adaptive.head import SEEN
from untail.draft.adaptive.model import DraftModel, turn_of
from untail.draft.adaptive.trainer import AdaptiveTrainer
from untail.draft.base import DRAFTERS
from untail.draft.training import DraftTraining
from untail.engine.attention.varlen import VarlenAttention
from untail.engine.blocks import BLOCK
from untail.engine.draft import Ask
from untail.engine.engine import Engine
from untail.engine.sampler import draw, uniform
from untail.engine.sequence import Sequence
from untail.errors import ConfigError
from untail.types import SamplingParams, SequenceSpec

GREEDY = SamplingParams(temperature=0.0)


@torch.no_grad()
def plain_draft(model, target, sequence, depth, first=0) -> list[int]:
    """Nothing kept from step to step: the whole context again for each token, from position `first` on."""
    tokens, sampling = list(sequence.tokens), sequence.spec.sampling
    hidden = hidden_states(target, torch.tensor(tokens[:-1]))
    for _ in range(depth):
        ids, positions = torch.tensor(tokens[first + 1 :]), torch.arange(first, len(tokens) - 1)
        turn, attention = turn_of(target, positions, hidden.dtype), VarlenAttention([len(ids)])
        guess = model(F.embedding(ids, target.embed), hidden[first:], turn, attention)[-1:]
        logits = target.logits(guess).float()
        if sampling.temperature == 0:
            token = logits.argmax()
        else:
            probs = (logits / sampling.temperature).softmax(-1)
            token = draw(probs, uniform(torch.tensor([sequence.spec.stream]), torch.tensor([len(tokens)])))
        hidden = torch.cat((hidden, guess))
        tokens.append(int(token))
    return tokens[len(sequence.tokens) :]


def learned(weights) -> dict[str, torch.Tensor]:
    """As a trainer would publish them that has seen no text."""
    return {**weights, SEEN: torch.zeros(TOY.vocab, dtype=torch.int64)}


class Checked:
    """Drafts with the adaptive drafter, as deep as it is told, and compares each draft to the plain model's."""

    wants_hidden = True

    def __init__(self, depth, drafter, weights=None):
        self.drafter, self.depth, self.weights = drafter, depth, weights or random_model().state_dict()
        self.drafts, self.wrong, self.accepted, self.filled_in = 0, [], 0, []

    def attach(self, runner, slots):
        self.drafter.attach(runner)
        guesser = self.guesser = self.drafter.guesser
        guesser.load(learned(self.weights))
        real = guesser._catch_up

        def catch_up(jobs):
            self.filled_in.append([(job.missing, job.last) for job in jobs])
            real(jobs)

        guesser._catch_up = catch_up

    def begin(self, sequence):
        self.drafter.begin(sequence)

    def end(self, sequence):
        self.drafter.end(sequence)

    def occupied(self, running):
        pass

    def unverified(self, sequence):
        pass

    def target_changed(self):
        pass

    def depths(self, sequences):
        return [self.depth(sequence) for sequence in sequences]

    def propose(self, asks):
        drafts, guesser = self.drafter.propose(asks), self.guesser
        for ask, draft in zip(asks, drafts, strict=True):
            self.drafts += 1
            first = max(0, len(ask.sequence.tokens) - 1 - guesser.window) // BLOCK * BLOCK
            plain = plain_draft(guesser.model, guesser.runner.decoder, ask.sequence, ask.most, first)
            if draft.tokens != plain:
                self.wrong.append((ask.sequence.id, len(ask.sequence.tokens), draft.tokens, plain))
        return drafts

    def verified(self, results, seconds, mostly_decoded):
        self.accepted += sum(result.accepted for result in results)


def make(depth=lambda sequence: 3, weights=None, target=None, config=None, **fields) -> tuple[Engine, Checked]:
    """In float64, so that no two tokens are too close to call."""
    checked = Checked(depth, Adaptive(Adaptive.Config(**fields)), weights)
    config = config or EngineConfig(kv_blocks=64)
    return Engine(target or toy_target().double(), config, speculation=checked), checked


def spec(name: str, length: int, budget: int, sampling: SamplingParams = GREEDY) -> SequenceSpec:
    tokens = [(7 * number + sum(map(ord, name))) % TOY.vocab for number in range(length)]
    return SequenceSpec(name, tuple(tokens), budget, stream=1000 + sum(map(ord, name)), sampling=sampling)


def run(engine: Engine, specs: list[SequenceSpec]) -> dict[str, list[int]]:
    for one in specs:
        engine.add(one)
    return finish(engine)


def finish(engine: Engine) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    while engine.has_work:
        for name, chunk in engine.step():
            tokens.setdefault(name, []).extend(chunk.tokens)
            if chunk.end == "boundary":
                engine.release(name)
    return tokens


def test_it_is_registered():
    assert DRAFTERS.get("adaptive") is Adaptive


def test_drafts_are_the_plain_models_at_every_depth_and_temperature():
    engine, checked = make(depth=lambda sequence: sum(map(ord, sequence.id)) % 5)
    for number, temperature in enumerate((0.0, 1.0, 0.6, 1.3, 0.0, 1.0)):
        engine.add(spec("abcdef"[number], 3 + 9 * number, 30, SamplingParams(temperature=temperature)))
    finish(engine)
    assert not checked.wrong
    assert checked.drafts > 60


def test_a_sequence_that_is_switched_on_again_catches_up():
    engine, checked = make(depth=lambda sequence: 4 if len(sequence.tokens) // 20 % 2 else 0)
    engine.add(spec("a", 5, 90))
    engine.add(spec("b", 33, 70, SamplingParams()))
    finish(engine)
    assert not checked.wrong
    assert checked.drafts > 30


def test_forks_preemption_and_returning_sequences():
    """A pool too small for all: blocks change hands, some come back to whom they had belonged to."""
    config = EngineConfig(kv_blocks=14, max_seqs=4)
    engine, checked = make(config=config)
    for name in "abcd":
        engine.add(spec(name, 21, 60, SamplingParams()))
    steps = 0
    while engine.has_work:
        engine.step()
        steps += 1
        if steps == 9:
            engine.fork("a", [77, 78])
        engine.check_integrity()
    assert engine.counts.preemptions > 0
    assert not checked.wrong
    assert checked.drafts > 100


def test_siblings_fill_in_their_prompt_once():
    engine, checked = make(depth=lambda sequence: 2)
    prompt = spec("prompt", 90, 5)
    for name in "abcd":
        engine.add(replace(prompt, id=name))
    engine.step()  # prefill
    engine.step()
    assert sorted(missing for missing, _ in checked.filled_in[0]) == [0, 5, 5, 5]
    engine.step()
    assert {missing for missing, _ in checked.filled_in[1]} == {5}
    assert not checked.wrong


def resident(engine: Engine, name: str, length: int, blocks: list[int]) -> Sequence:
    """A sequence that has caught up in these blocks, put there by hand."""
    sequence = Sequence(spec(name, length, 1))
    sequence.blocks, sequence.computed = blocks, length - 1
    hidden = hidden_states(engine.decoder, torch.tensor(sequence.tokens))
    for position in range(length - 1):
        engine.runner.hidden[blocks[position // BLOCK], position % BLOCK] = hidden[position]
    return sequence


@torch.no_grad()
def test_a_block_that_held_somebodys_drafts_meanwhile_is_filled_in_again():
    engine, checked = make()
    drafts = lambda sequence: checked.propose([Ask(sequence, 5)])
    drafts(resident(engine, "a", 40, [0, 1, 2, 3]))
    drafts(resident(engine, "b", 17, [4, 1]))
    drafts(resident(engine, "a", 40, [0, 1, 2, 3]))
    assert [jobs[0][0] for jobs in checked.filled_in] == [0, 0, 1]
    assert not checked.wrong


def test_a_long_context_costs_a_window():
    engine, checked = make(window=32)
    engine.add(spec("a", 150, 40))
    finish(engine)
    assert not checked.wrong
    assert checked.drafts > 5
    filled_in = [last - missing * BLOCK for jobs in checked.filled_in for missing, last in jobs]
    assert 32 <= filled_in[0] < 32 + BLOCK
    assert max(filled_in[1:]) < 2 * BLOCK


def test_fresh_weights_serve_from_the_next_draft_on():
    engine, checked = make()
    engine.add(spec("a", 40, 40))
    for _ in range(3):
        engine.step()
    checked.drafter.load(learned(random_model(seed=9).state_dict()))
    engine.step()
    assert torch.equal(checked.guesser.model.fc, random_model(seed=9).fc.double())
    finish(engine)
    assert not checked.wrong, "no key of the old weights is left"


def test_after_a_failure_nothing_half_written_is_used():
    engine, checked = make(depth=lambda sequence: 0)
    engine.add(spec("a", 60, 20))
    for _ in range(3):
        engine.step()
    (sequence,), guesser = engine.scheduler.running, checked.guesser
    real, guesser._catch_up = guesser._catch_up, lambda jobs: 1 / 0
    with pytest.raises(ZeroDivisionError):
        guesser.drafts([Ask(sequence, 1)])
    guesser._catch_up = real
    assert guesser.drafts([Ask(sequence, 1)])[0].tokens == plain_draft(guesser.model, engine.decoder, sequence, 1)


def test_a_sequence_of_one_token_gets_no_draft():
    _, checked = make()
    assert checked.drafter.propose([Ask(Sequence(SequenceSpec("a", (1,), 9, 0)), 3)])[0].tokens == []


def test_tokens_are_the_same_as_without_drafts_and_training_gets_more_of_them_accepted():
    target = toy_target()
    specs = [spec(name, 4, 40, SamplingParams(temperature=0.5)) for name in "abcdef"]
    untrained = DraftModel(TOY, "cpu", torch.float32).initialise().state_dict()
    engine, checked = make(target=target, weights=untrained, lr=3e-3)
    trainer, expected = (
        Adaptive.trainer(checked.drafter.config, target),
        run(Engine(target, EngineConfig(kv_blocks=64)), specs),
    )
    assert run(engine, specs) == expected
    before, checked.accepted = checked.accepted, 0
    for one in specs:
        ids_N = torch.tensor([*one.tokens, *expected[one.id]])
        trainer.data._take([Capture(0, 3, ids_N, hidden_states(target, ids_N))])
    trainer.spot.run(50)
    checked.drafter.load(trainer.fresh())
    assert run(engine, specs) == expected
    assert checked.accepted > 2 * before + 20


def test_an_exported_drafter_is_a_start(tmp_path):
    engine, _ = make()
    trainer = Adaptive.trainer(Adaptive.Config(), engine.decoder)
    trainer.spot.model.load_state_dict(random_model(seed=5).state_dict())
    trainer.export(tmp_path)
    drafter = Adaptive(Adaptive.Config(start=str(tmp_path)))
    drafter.attach(engine.runner)
    assert torch.equal(drafter.guesser.model.down, random_model(seed=5).down.double())
    follower = Adaptive.trainer(drafter.config, engine.decoder)
    assert torch.equal(follower.spot.model.down, random_model(seed=5).down), "and that is what is trained on"
    with pytest.raises(ConfigError, match="their embeddings"):
        make(start=str(tmp_path), target=toy_target(seed=3))


def taught_here(**fields) -> tuple[Engine, AdaptiveTrainer]:
    """The drafter is trained in the engine's process."""
    drafter = Adaptive(Adaptive.Config(**fields))
    speculator = always("adaptive", drafter)
    engine = Engine(toy_target(), EngineConfig(kv_blocks=64), speculation=speculator)
    trainer = Adaptive.trainer(drafter.config, engine.decoder)
    speculator.training = DraftTraining({"adaptive": trainer})
    return engine, trainer


def test_it_has_no_guess_before_it_has_learned():
    engine, trainer = taught_here()
    run(engine, [spec("a", 5, 6)])
    assert engine.counts.drafted == 0
    trainer.spot.publish()
    run(engine, [spec("b", 5, 6)])
    assert engine.counts.drafted > 0


def test_a_resume_teaches_it_nothing():
    (_, saved), (engine, resumed) = taught_here(), taught_here()
    resumed.load_state_dict(*saved.state_dict())
    run(engine, [spec("a", 5, 6)])
    assert engine.counts.drafted == 0


def test_its_candidates_follow_its_trainer_and_the_targets_weights(monkeypatch):
    monkeypatch.setattr(head_module, "MOST", 4)
    engine, trainer = taught_here()
    (drafter,) = engine.speculation.drafters.values()
    head = drafter.guesser.head
    trainer.spot.head.see(torch.tensor([3, 5, 8, 13]))
    trainer.spot.publish()
    run(engine, [spec("a", 5, 6)])
    assert head.token_ids(torch.arange(4)).tolist() == [3, 5, 8, 13]
    engine.decoder.embed.mul_(2)
    engine.load_weights(None, 1)
    assert torch.equal(head.rows_CD, engine.decoder.output_weight[[3, 5, 8, 13]])
