"""The spot trainer: it learns, it yields, it publishes whole sets of weights, and it resumes where it was."""

import threading
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from tests.unit.draft.adaptive.helpers import (
    TOY,
    accepted_length,
    capture,
    captures_of,
    random_model,
    toy_target,
    windows_of,
)

from untail.draft.adaptive import spot as spot_module
from untail.draft.adaptive.head import SEEN
from untail.draft.adaptive.loss import passes, rows_in_loss
from untail.draft.adaptive.model import DraftModel
from untail.draft.adaptive.spot import LARGEST, SLICE_SECONDS, SMALLEST, AskedBack, Spot
from untail.errors import WeightsError


@pytest.fixture(scope="module")
def target():
    return toy_target()


@pytest.fixture(scope="module")
def learned_from(target):
    return [capture(target, 40, seed) for seed in range(12)]


def make(target, captures, test_steps=2) -> Spot:
    model = DraftModel(TOY, "cpu", torch.float32).initialise()
    return Spot(target, model, captures_of(*captures), lr=3e-3, test_steps=test_steps)


def weights(spot) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in spot.model.state_dict().items()}


def same(ours, theirs) -> bool:
    return all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_its_drafts_get_longer_on_what_it_was_trained_on(target, learned_from):
    spot = make(target, learned_from)
    before = accepted_length(spot.model, target, learned_from)
    assert spot.run(20) == 20
    first = spot.loss
    middle = accepted_length(spot.model, target, learned_from)
    spot.run(50)
    after = accepted_length(spot.model, target, learned_from)
    assert spot.loss < first
    assert before + 0.3 < middle < after


def test_test_steps_make_later_steps_better(target, learned_from):
    """Trained without them, it goes on worse from its own guesses, however well it does from the target's states."""
    windows = windows_of(*learned_from)

    index = rows_in_loss(windows, 2)

    def third_step(test_steps):
        spot = make(target, learned_from, test_steps)
        spot.run(40)
        with torch.no_grad():
            return F.smooth_l1_loss(passes(spot.model, target, windows, 2)[2][index], windows.wanted_TD[index])

    assert third_step(2) < 0.9 * third_step(0)


def test_without_data_nothing_happens(target):
    spot = make(target, [])
    before = weights(spot)
    assert spot.run(3) == 0
    assert spot.fresh() is None
    assert same(before, weights(spot))
    assert spot.figures()["slices"] == 0
    assert "loss" not in spot.figures()


def test_what_serves_changes_only_when_it_is_fetched(target, learned_from):
    serving = random_model()
    before = {name: tensor.clone() for name, tensor in serving.state_dict().items()}
    spot = Spot(target, serving, captures_of(*learned_from), lr=1e-3, test_steps=1)
    spot.run(2)
    assert same(before, serving.state_dict())
    fresh = spot.fresh()
    assert same(spot.model.state_dict(), fresh)
    assert spot.fresh() is None, "it was fetched"
    kept = {name: tensor.clone() for name, tensor in fresh.items()}
    spot.slice()
    assert same(kept, fresh), "training goes on in its own copy"
    assert not same(kept, weights(spot))


class Stepped(Spot):
    """Runs no slice before it is told to, and notes how many it ran."""

    def prepare(self) -> "Stepped":
        self.may, self.begun, self.pauses_in = threading.Semaphore(0), threading.Semaphore(0), None
        return self

    def _slice(self, tokens, look):
        self.begun.release()
        self.may.acquire()
        self.slices += 1
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.fill_(self.slices)
        if self.slices == self.pauses_in:
            self.pause()
        return True


@pytest.fixture
def stepped(target):
    spot = Stepped(target, random_model(), captures_of(), lr=1e-3, test_steps=0).prepare()
    yield spot
    for _ in range(1000):
        spot.may.release()
    spot.close()


def wait_for(condition):
    for _ in range(10_000):
        if condition():
            return
        threading.Event().wait(0.001)
    raise AssertionError("it never came")


def test_it_trains_only_while_allowed_and_ends_with_the_slice_it_is_in(stepped):
    stepped.start()
    assert not stepped.begun.acquire(timeout=0.05), "nobody allowed it"
    stepped.pauses_in = 3
    stepped.allow()
    for _ in range(10):
        stepped.may.release()
    wait_for(lambda: stepped.fresh() is not None)
    assert stepped.slices == 3, "none after the one in which it was asked back"
    assert stepped.longest_wait > 0
    stepped.pauses_in = 5
    stepped.allow()
    wait_for(lambda: stepped.slices == 5)
    wait_for(lambda: stepped.fresh() is not None)
    assert stepped.slices == 5


def test_published_sets_are_whole_while_it_trains(stepped, monkeypatch):
    monkeypatch.setattr(spot_module, "PUBLISH_EVERY", 1)
    stepped.start()
    stepped.allow()
    seen = set()
    for number in range(1, 30):
        stepped.may.release()
        wait_for(lambda number=number: stepped.slices >= number)
        fresh = stepped.fresh()
        if fresh is not None:
            values = torch.cat([fresh[name].flatten() for name in weights(stepped)]).unique()
            assert len(values) == 1
            seen.add(values.item())
    assert len(seen) > 1


def test_pausing_and_waiting_is_to_have_the_device(target, learned_from):
    spot = make(target, learned_from)
    spot.start()
    spot.allow()
    wait_for(lambda: spot.slices > 2)
    spot.pause()
    spot.wait()
    after = spot.slices
    before = weights(spot)
    threading.Event().wait(0.05)
    assert spot.slices == after
    assert same(before, weights(spot))
    spot.close()


def test_a_slice_that_was_about_to_begin_does_not(target, learned_from):
    """It was asked back while it waited for whoever held the weights."""
    spot = make(target, learned_from)

    class AskedBackMeanwhile:
        def __enter__(self):
            spot.pause()

        def __exit__(self, *error):
            pass

    spot._training = AskedBackMeanwhile()
    spot.allow()
    spot._stint()
    assert spot.slices == 0


@pytest.mark.parametrize("looks", range(8))
def test_a_slice_is_given_up_between_any_two_passes_and_made_again_later(target, learned_from, looks, monkeypatch):
    """Three passes there, the loss, three passes back, the optimizer: it looks before each."""
    spot, undisturbed = make(target, learned_from), make(target, learned_from)
    real = spot._look

    def asked_back_after():
        nonlocal looks
        if looks == 0:
            spot.pause()
        looks -= 1
        real()

    monkeypatch.setattr(spot, "_look", asked_back_after)
    before = weights(spot)
    spot.allow()
    spot._stint()
    assert (spot.slices, spot.given_up, spot.failures) == (0, 1, 0)
    assert looks == -1, "it looked once more after it was asked back"
    assert spot.longest_wait > 0
    assert same(before, weights(spot))
    assert spot.fresh() is None
    assert all(parameter.grad is None for parameter in spot.model.parameters())
    for one in (spot, undisturbed):
        one.run(2)
    assert same(weights(undisturbed), weights(spot))


def test_a_slice_that_nobody_asks_back_looks_eight_times(target, learned_from, monkeypatch):
    spot, looks = make(target, learned_from), []
    monkeypatch.setattr(spot, "_look", lambda: looks.append(1))
    spot.allow()
    assert spot._slice_if_allowed()
    assert (spot.slices, len(looks)) == (1, 8)


def test_a_slice_that_raises_is_counted_and_training_goes_on(target, learned_from, monkeypatch):
    real, calls = spot_module.draft_loss, []

    def fails_once(*args):
        calls.append(args)
        if len(calls) == 1:
            raise RuntimeError("out of memory")
        return real(*args)

    monkeypatch.setattr(spot_module, "draft_loss", fails_once)
    monkeypatch.setattr(spot_module, "PATIENCE", 0.001)
    spot = make(target, learned_from)
    spot.start()
    spot.allow()
    wait_for(lambda: spot.slices > 0)
    spot.close()
    assert spot.figures()["failed_slices"] == 1


def test_slices_that_fail_get_smaller_and_one_is_told_of(target, learned_from, monkeypatch, capsys):
    """One that was too large would fail for ever, every time it is tried again."""
    tried = []

    def runs_out(tokens, look):
        tried.append(tokens)
        if tokens > 2 * SMALLEST:
            raise torch.OutOfMemoryError(f"{tokens} are too many")
        return True

    spot = make(target, learned_from)
    monkeypatch.setattr(spot, "_slice", runs_out)
    monkeypatch.setattr(spot, "_resize", lambda seconds: None)
    spot.size = 16 * SMALLEST
    spot.allow()
    assert [spot._slice_if_allowed() for _ in range(4)] == [False, False, False, True]
    assert tried == [16 * SMALLEST, 8 * SMALLEST, 4 * SMALLEST, 2 * SMALLEST]
    assert capsys.readouterr().err.count("draft.drafters.adaptive's training failed: OutOfMemoryError: 256 are") == 1
    monkeypatch.setattr(spot, "_slice", lambda tokens, look: 1 / 0)
    for _ in range(4):
        spot._slice_if_allowed()
    assert spot.size == SMALLEST
    assert capsys.readouterr().err == ""


def test_on_a_gpu_it_looks_when_what_was_sent_is_done(target, monkeypatch):
    spot = make(target, [])
    spot._device = torch.device("cuda")
    stream = SimpleNamespace(synchronize=spot.pause)  # asked back while the GPU is at a pass
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    spot.allow()
    with pytest.raises(AskedBack):
        spot._look()


def test_closing_ends_it_whoever_asks_for_the_device_meanwhile(target):
    """It was about to wait until it is allowed."""
    spot = make(target, [])
    real, about_to_wait, may_wait = spot._allowed.wait, threading.Event(), threading.Event()

    def wait():
        about_to_wait.set()
        may_wait.wait()
        real()

    spot._allowed.wait = wait
    spot.start()
    assert about_to_wait.wait(10)
    closing = threading.Thread(target=spot.close, daemon=True)
    closing.start()
    wait_for(spot._allowed.is_set)
    spot.pause()
    may_wait.set()
    closing.join(10)
    assert not closing.is_alive()


def test_an_update_that_is_not_finite_moves_nothing_and_is_counted(target, learned_from):
    bad = learned_from[0]._replace(hidden_ND=learned_from[0].hidden_ND * float("nan"))
    spot = make(target, [bad])
    before = weights(spot)
    assert spot.run(2) == 2
    assert spot.skipped == 2
    assert same(before, weights(spot))
    spot.data = captures_of(*learned_from)
    spot.run(1)
    assert spot.skipped == 2
    assert not same(before, weights(spot))
    assert all(tensor.isfinite().all() for tensor in weights(spot).values())


def test_a_slice_grows_and_shrinks_towards_its_time(target):
    spot = make(target, [])
    before = spot.size
    spot._resize(SLICE_SECONDS / 100)
    assert spot.size == 2 * before
    spot._resize(SLICE_SECONDS)
    assert spot.size < 2 * before
    for _ in range(40):
        spot._resize(10.0)
    assert spot.size == SMALLEST
    for _ in range(40):
        spot._resize(1e-6)
    assert spot.size == LARGEST


def test_a_resumed_trainer_goes_on_to_the_same_weights(target, learned_from):
    whole, begun, resumed = (make(target, learned_from) for _ in range(3))
    whole.run(8)
    begun.run(5)
    tensors, numbers = begun.state_dict()
    begun.run(1)  # what was taken is a copy
    resumed.load_state_dict(tensors, numbers)
    assert same(weights(resumed), resumed.fresh()), "what was loaded serves"
    resumed.run(3)
    assert resumed.slices == 8
    assert same(weights(whole), weights(resumed))
    assert not same(weights(whole), weights(begun))


def test_its_checkpoint_holds_nothing_of_the_target(target):
    tensors, _ = make(target, []).state_dict()
    own = sum(parameter.numel() for parameter in random_model().parameters())
    assert tensors.pop(SEEN).shape == (TOY.vocab,)
    assert sum(tensor.numel() for tensor in tensors.values() if tensor.ndim) == 3 * own


def test_a_checkpoint_of_another_drafter_is_refused_and_nothing_is_touched(target):
    spot = make(target, [])
    before = weights(spot)
    tensors, numbers = spot.state_dict()
    tensors = {name: tensor + 1 for name, tensor in tensors.items()}
    tensors["weight.down"] = torch.zeros(3, 3)
    with pytest.raises(WeightsError, match=r"\(3, 3\) for 'weight.down'.*\(32, 64\)"):
        spot.load_state_dict(tensors, numbers)
    del tensors["weight.down"]
    with pytest.raises(WeightsError, match=r"nothing for 'weight.down'"):
        spot.load_state_dict(tensors, numbers)
    assert same(before, weights(spot))
