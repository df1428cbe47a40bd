"""How large passes are, and that running out of memory in one changes nothing but that."""

import pytest
import torch
from tests.helpers.models import random_decoder
from tests.unit.learn.helpers import assert_close, gradient, group, learn_config, uneven_batch
from tests.unit.learn.test_hear import Listener

from untail.config import CriticConfig, LearnConfig
from untail.errors import UserError
from untail.learn.memory import FIRST, LARGEST, Line, Memory
from untail.learn.pack import halves, pack
from untail.learn.policy import Policy
from untail.learn.ranks import Ranks
from untail.learn.rules import rules_of
from untail.learn.sample import samples_of
from untail.learn.trainer import Trainer
from untail.types import Batch

VOCAB = 199
OUT = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nDetails.")


class FakeGauge:
    """A device of `room` bytes; the passes take what the test says."""

    def __init__(self, room: int):
        self.room = room
        self.taken = 0

    def free(self) -> int:
        return self.room

    def begin(self) -> None:
        self.taken = 0

    def peak(self) -> int:
        return self.taken


class SmallDevice:
    """Holds passes of `keeps` tokens with their activations and of `holds` without; fails where a real one would:
    before the pass, or in the middle of its backward."""

    def __init__(self, monkeypatch, keeps: int, holds: int = 10**6, late: bool = False):
        self.keeps, self.holds, self.late = keeps, holds, late
        self.failures = 0
        self.passes: list[tuple[int, bool]] = []
        real = Policy.hidden
        monkeypatch.setattr(Policy, "hidden", lambda policy, *args: self.hidden(real, policy, *args))

    def hidden(self, real, policy, micro, *rest):
        out = real(policy, micro, *rest)
        self.passes.append((micro.tokens, micro.recompute))
        if micro.tokens <= (self.holds if micro.recompute else self.keeps):
            return out
        self.failures += 1
        if not (self.late and out.requires_grad):
            raise OUT
        policy.decoder.embed.register_hook(self.fail_once())  # by then nearly all gradients are added
        return out

    @staticmethod
    def fail_once():
        pending = [OUT]

        def fail(gradient):
            if pending:
                raise pending.pop()

        return fail


def batch() -> Batch:
    return uneven_batch(VOCAB)


def update(decoder, listener=None, batches=(batch,), **fields):
    """Figures of each update without its times, and the weights after them."""
    trainer = Trainer(decoder, learn_config(lr=1e-2, warmup_steps=0, **fields), hear=listener)
    figures = [trainer.update(make()) for make in batches]
    timeless = [{name: value for name, value in f.items() if not name.endswith("_s")} for f in figures]
    return timeless, {name: parameter.detach() for name, parameter in decoder.named_parameters()}


def assert_same_update(ours, theirs) -> None:
    for mine, reference in zip(ours[0], theirs[0], strict=True):
        mine.pop("computed_tokens"), reference.pop("computed_tokens")  # a prompt may be computed once for each half
        assert mine == pytest.approx(reference, rel=1e-4, abs=1e-5)
    for name, parameter in theirs[1].items():
        torch.testing.assert_close(ours[1][name], parameter, atol=2e-4, rtol=0)


@pytest.mark.parametrize("late", [False, True], ids=["before", "in mid-backward"])
@pytest.mark.parametrize(
    "fields",
    [{}, {"updates": 2, "kl": 0.1}, {"prune": {"share": 0.3, "how": "detach", "cosine_every": 1}}],
    ids=["plain", "two minibatches and a reference", "constants"],
)
def test_out_of_memory_changes_nothing(monkeypatch, fields, late):
    listeners = Listener(), Listener()
    expected = update(random_decoder("llama"), listeners[0], batches=(batch, batch), **fields)
    device = SmallDevice(monkeypatch, keeps=60, late=late)
    ours = update(random_decoder("llama"), listeners[1], batches=(batch, batch), **fields)
    assert device.failures > 0
    assert_same_update(ours, expected)
    assert listeners[0].names == listeners[1].names


def test_the_gradient_after_a_failure_in_mid_backward_is_the_whole_one(monkeypatch):
    """To 1e-12: nothing of the failed pass is in it twice."""
    decoder = random_decoder("llama", dtype=torch.float64)
    gradients = []
    for keeps in (10**6, 60):
        SmallDevice(monkeypatch, keeps, late=True)
        trainer = Trainer(decoder, learn_config())
        monkeypatch.setattr(trainer._optimizer, "step", lambda: gradients.append(gradient(decoder)) or (OUT, False))
        monkeypatch.setattr("untail.learn.tally.Tally.mean", lambda *args, **values: None)
        monkeypatch.setattr("untail.learn.tally.Tally.mean_of", lambda *args: 0.0)
        trainer.update(batch())
    assert_close(gradients[1], gradients[0], 1e-12)


def test_what_did_not_fit_is_not_tried_again(monkeypatch):
    device = SmallDevice(monkeypatch, keeps=60)
    update(random_decoder("llama"), batches=(batch, batch, batch))
    first, failures = device.passes[0], device.failures
    assert first[0] > 60
    update_again = device.passes[-5:]
    assert failures <= 3
    assert all(tokens <= 60 for tokens, _ in update_again)


def test_a_single_sequence_is_recomputed(monkeypatch):
    expected = update(random_decoder("llama"))
    device = SmallDevice(monkeypatch, keeps=30)
    ours = update(random_decoder("llama"))
    assert_same_update(ours, expected)
    assert any(tokens > 30 and recompute for tokens, recompute in device.passes)
    assert not any(tokens <= 20 and recompute for tokens, recompute in device.passes)


@pytest.mark.parametrize(
    ("recompute", "advice"), [("auto", "lower rollout.max_tokens"), (False, "learn.recompute to 'auto'")]
)
def test_a_sequence_that_fits_in_no_way_is_named(monkeypatch, recompute, advice):
    decoder = random_decoder("llama")
    before = [parameter.clone() for parameter in decoder.parameters()]
    SmallDevice(monkeypatch, keeps=20, holds=20)
    with pytest.raises(UserError, match=r"one sequence of \d+ tokens \(CUDA out of memory.*GiB\.\).*" + advice):
        update(decoder, recompute=recompute)
    assert all(torch.equal(*pair) for pair in zip(decoder.parameters(), before, strict=True))
    assert all(parameter.grad is None for parameter in decoder.parameters())


def test_other_errors_pass_through(monkeypatch):
    monkeypatch.setattr(Policy, "hidden", lambda *args: (_ for _ in ()).throw(RuntimeError("shapes differ")))
    with pytest.raises(RuntimeError, match="shapes differ"):
        update(random_decoder("llama"))


@pytest.mark.parametrize("kind", ["head", "model"])
def test_a_critic_that_ran_out_learns_the_same(monkeypatch, kind):
    fields = {"advantage": {"name": "ppo"}, "critic": CriticConfig(kind=kind)}
    expected = update(random_decoder("llama"), **fields)
    device = SmallDevice(monkeypatch, keeps=60)
    assert_same_update(update(random_decoder("llama"), **fields), expected)
    assert device.failures > 0


def packed(tokens: int = 10_000):
    rules = rules_of(LearnConfig(), 512)
    samples = [sample for members in batch().groups for sample in samples_of(members, rules)]
    return pack(samples, tokens, torch.device("cpu"), torch.float32)


def test_halves_hold_every_row_once_with_its_columns():
    (whole,) = packed()
    whole.columns.prox_R = torch.arange(len(whole.columns.target_R), dtype=torch.float32)
    policy = Policy(random_decoder("llama"), 1.0, 64)
    parts = halves(whole)
    assert [sample for part in parts for sample in part.samples] == whole.samples
    for name in ("target_R", "prox_R", "advantage_R", "weight_R"):
        joined = torch.cat([getattr(part.columns, name) for part in parts])
        assert torch.equal(joined, getattr(whole.columns, name))
    joined = torch.cat([policy.logprobs(part) for part in parts])
    torch.testing.assert_close(joined, policy.logprobs(whole), atol=1e-5, rtol=0)
    sizes = [sum(part.lengths) for part in parts]
    assert max(sizes) < 0.8 * sum(sizes)


def measured(room: int, per_token: int, fixed: int = 0, **fields) -> tuple[Memory, FakeGauge]:
    """One that has seen passes: of a few tokens, and of a few times as many."""
    gauge = FakeGauge(room)
    memory = Memory(learn_config(**fields), gauge, Ranks())

    def work(micro):
        gauge.taken = fixed + micro.tokens * per_token

    for tokens in (40, 10_000):
        memory.run(packed(tokens), work, undo=lambda: None, measure=True)
    return memory, gauge


def test_tokens_of_a_pass_come_from_what_passes_needed():
    assert Memory(learn_config(), None, Ranks()).token_budget == FIRST
    assert Memory(learn_config(), FakeGauge(10**9), Ranks()).token_budget == FIRST, "nothing was measured yet"
    assert Memory(learn_config(), FakeGauge(10**9), Ranks()).wanted > 10**15
    assert measured(10**7, 1000)[0].token_budget == pytest.approx(9000, abs=1)
    assert measured(10**7, 1000, fixed=4 * 10**6)[0].token_budget == pytest.approx(5000, abs=1)
    assert measured(10**12, 1000)[0].token_budget == LARGEST
    assert measured(0, 1000)[0].token_budget == 1
    assert measured(10**7, 1000, micro_batch_tokens=123)[0].token_budget == 123


def test_long_sequences_are_recomputed_where_they_would_not_fit():
    memory, _ = measured(10**7, 1000, fixed=4 * 10**6)
    assert not memory.recomputes(4999)
    assert memory.recomputes(5001)
    assert measured(10**7, 1000, recompute=True)[0].recomputes(1)
    assert not measured(10**7, 1000, recompute=False)[0].recomputes(10**9)


def test_one_small_pass_says_nothing_about_large_ones():
    """Most of it is gradients and logits, which do not grow: whoever took it for the tokens' would recompute all."""
    line = Line()
    line.note(100, 7 * 10**9)
    assert line.slope is None
    line.note(120, 8 * 10**9)
    assert line.slope is None, "too close together"
    line.note(4096, 7 * 10**9 + 4096 * 10**6)
    assert line.need(8192) == pytest.approx(7 * 10**9 + 8192 * 10**6, rel=0.02)
    assert line.tokens(line.need(8192)) == pytest.approx(8192, abs=1)


def test_a_limit_ends_where_there_is_more_room():
    memory, gauge = measured(10**7, 1000)
    micros, failed = packed(), []

    def work(micro):
        if not failed:
            failed.append(micro)
            raise OUT

    memory.run(micros, work, undo=lambda: None)
    assert len(micros) == 2
    assert memory.token_budget == failed[0].tokens // 2
    assert memory.wanted > 10**15, "it takes all that it can get"
    gauge.room *= 2
    assert memory.token_budget == pytest.approx(18000, abs=1)
    assert memory.wanted == pytest.approx(8192 * 1000 / 0.9, rel=1e-6)


def test_a_response_of_one_token_and_nothing_to_cut(monkeypatch):
    SmallDevice(monkeypatch, keeps=0, holds=0)
    with pytest.raises(UserError, match="one sequence of 5 tokens"):
        update(random_decoder("llama"), batches=(lambda: Batch(1, [group("g", [1, 1], [0.0, 1.0], VOCAB)]),))
