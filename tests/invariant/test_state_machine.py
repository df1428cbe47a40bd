"""Random operations in random order: the block manager and the scheduler never lose a block or a sequence.

The decoder is replaced by a runner that draws tokens without computing anything, so that hundreds of long runs are
cheap; everything else is the real engine.
"""

import random

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.helpers.models import FAMILIES
from tests.helpers.running import spec
from untail.config import EngineConfig
from untail.engine.blocks import BLOCK
from untail.engine.draft import Draft
from untail.engine.engine import Engine
from untail.engine.models.decoder import Decoder
from untail.engine.runner import Drawn, Result
from untail.engine.sampler import Sampled
from untail.engine.scheduler import Plan
from untail.engine.sequence import State
from untail.types import SamplingParams

EOS = 0


class ShadowRunner:
    """Keeps, for every slot of the pool, which token history was 'computed' into it, and checks what is read."""

    def __init__(self, blocks: int):
        self.slots: list[tuple[int, ...] | None] = [None] * (blocks * BLOCK)
        self.random = random.Random(0)
        self.kv = object()

    def copy(self, copies: list[tuple[int, int]]) -> None:
        for source, target in copies:
            self.slots[target * BLOCK : (target + 1) * BLOCK] = self.slots[source * BLOCK : (source + 1) * BLOCK]

    def run(self, plan: Plan) -> Result:
        written: set[int] = set()
        for work in plan.work:
            history = (*work.sequence.tokens[: work.sequence.computed + work.size], *work.drafts)
            for position in range(work.sequence.computed, len(history)):
                slot = work.sequence.blocks[position // BLOCK] * BLOCK + position % BLOCK
                assert slot not in written, "two sequences write one slot in one step"
                written.add(slot)
                self.slots[slot] = history[: position + 1]
        drawn, sampled = [], Sampled([], [], [])
        for work in plan.work:
            history = (*work.sequence.tokens[: work.sequence.computed + work.size], *work.drafts)
            for position in range(len(history)):
                slot = work.sequence.blocks[position // BLOCK] * BLOCK + position % BLOCK
                assert self.slots[slot] == history[: position + 1], "a sequence reads another's history"
            if work.catches_up:
                first = len(sampled.tokens)
                self.draw(work.drafts, sampled)
                drawn.append(Drawn(work.sequence, work.drafts, range(first, len(sampled.tokens))))
        return Result(drawn, sampled, torch.zeros(len(sampled.tokens), 1))

    def draw(self, drafts: list[int], sampled: Sampled) -> None:
        """Tokens out of four, so that one in four drafts is right."""
        counts = True
        for draft in (*drafts, None):
            token = self.random.randrange(0, 4)
            sampled.tokens.append(token)
            sampled.figures.append((0.0, 0.0, 0.0, 0.0))
            sampled.counts.append(counts)
            counts = counts and token == draft


class Guesses:
    """Drafts of any length up to what is asked for out of the same four tokens, for some and not for others."""

    wants_hidden = False

    def __init__(self):
        self.random = random.Random(1)
        self.alive: set[str] = set()

    def attach(self, runner, slots):
        pass

    def begin(self, sequence):
        assert sequence.id not in self.alive
        self.alive.add(sequence.id)

    def occupied(self, sequences):
        pass

    def depths(self, sequences):
        return [self.random.choice((0, 1, 3, 20)) for _ in sequences]

    def propose(self, asks):
        for ask in asks:
            assert len(ask.sequence.blocks) * BLOCK >= len(ask.sequence.tokens) + ask.most
        lengths = [min(ask.most, self.random.choice((0, 2, 30))) for ask in asks]
        return [Draft([self.random.randrange(0, 4) for _ in range(length)]) for length in lengths]

    def verified(self, results, seconds, mostly_decoded):
        for result in results:
            assert result.tokens == result.sequence.tokens[-len(result.tokens) :]
            assert 0 <= result.accepted <= result.drafted

    def unverified(self, sequence):
        return None

    def target_changed(self):
        pass

    def end(self, sequence):
        self.alive.remove(sequence.id)


class EngineMachine(RuleBasedStateMachine):
    speculation: type[Guesses] | None = None

    def __init__(self):
        super().__init__()
        config = EngineConfig(kv_blocks=10, max_seqs=4, max_batch_tokens=24, context=96)
        self.guesses = self.speculation() if self.speculation else None
        self.engine = Engine(Decoder(FAMILIES["llama"]), config, speculation=self.guesses)
        self.engine.runner = ShadowRunner(10)
        self.made = 0

    def sequences(self, *states: State) -> list[str]:
        return [s.id for s in self.engine._sequences.values() if not states or s.state in states]

    def pick(self, data, *states: State) -> str:
        return data.draw(st.sampled_from(self.sequences(*states)))

    @rule(data=st.data(), length=st.integers(1, 60), budget=st.integers(1, 40), hold=st.booleans(), alike=st.booleans())
    def add(self, data, length, budget, hold, alike):
        self.made += 1
        tokens = [1 + (i if alike else i * self.made) % 150 for i in range(length)]
        sampling = SamplingParams(stop_ids=(EOS,))
        done = data.draw(st.integers(0, length - 1))
        self.engine.add(spec(f"s{self.made}", tokens, budget, sampling=sampling, hold=hold, chunk=5, done=done))

    @rule(steps=st.integers(1, 12))
    def step(self, steps):
        for _ in range(steps):
            self.engine.step()
            self.engine.check_integrity()

    @precondition(lambda self: self.sequences())
    @rule(data=st.data(), children=st.integers(1, 5))
    def fork(self, data, children):
        free = self.engine.pool.free
        self.engine.fork(self.pick(data), list(range(children)))
        assert self.engine.pool.free == free, "a fork took a block before anybody wrote"

    @precondition(lambda self: self.sequences(State.BOUNDARY))
    @rule(data=st.data(), budget=st.integers(1, 30), reply=st.integers(1, 20))
    def go_on(self, data, budget, reply):
        name = self.pick(data, State.BOUNDARY)
        sequence = self.engine._sequences[name]
        if sequence.turn_over:
            if len(sequence.tokens) + reply < 96:
                self.engine.append(name, [7] * reply)
        else:
            self.engine.extend(name, budget)

    @precondition(lambda self: self.sequences())
    @rule(data=st.data())
    def abort(self, data):
        self.engine.abort(self.pick(data))

    @precondition(lambda self: self.sequences(State.RUNNING, State.WAITING))
    @rule(data=st.data())
    def cut(self, data):
        name = self.pick(data, State.RUNNING, State.WAITING)
        free, length = self.engine.pool.free, len(self.engine._sequences[name].tokens)
        chunk = self.engine.cut(name)
        assert chunk.end == "boundary"
        assert self.sequences(State.BOUNDARY).count(name) == 1
        assert self.engine.pool.free == free, "a cut gave up blocks"
        assert len(self.engine._sequences[name].tokens) == length

    @precondition(lambda self: self.sequences(State.BOUNDARY))
    @rule(data=st.data())
    def release(self, data):
        self.engine.release(self.pick(data, State.BOUNDARY))

    @precondition(lambda self: self.engine.scheduler.running)
    @rule()
    def preempt(self):
        self.engine.scheduler._preempt(self.engine.scheduler.running[-1])

    @rule(keep=st.booleans())
    def update_weights(self, keep):
        self.engine.config = self.engine.config.model_copy(update={"kv_after_update": "keep" if keep else "recompute"})
        self.engine.load_weights(None, self.engine.version + 1)

    @invariant()
    def integrity(self):
        self.engine.check_integrity()
        assert self.guesses is None or self.guesses.alive == set(self.engine.names())

    def teardown(self):
        """Whatever happened, everything can still be finished and every block comes home."""
        for _ in range(2000):
            if not self.engine.has_work:
                break
            self.engine.step()
        assert not self.engine.has_work, "work that never ends"
        for name in self.engine.names():
            self.engine.release(name)
        assert self.engine.pool.free == self.engine.pool.total


class DraftingMachine(EngineMachine):
    speculation = Guesses


TestEngineMachine = EngineMachine.TestCase
TestDraftingMachine = DraftingMachine.TestCase
for case, examples in ((TestEngineMachine, 500), (TestDraftingMachine, 300)):
    case.settings = settings(
        max_examples=examples, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
    )
