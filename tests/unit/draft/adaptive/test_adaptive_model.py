"""The drafter's layer: packed, paged and step by step it is the same model, and its loss is what it says."""

import torch
import torch.nn.functional as F
from tests.helpers.models import FAMILIES
from tests.unit.draft.adaptive.helpers import TOY, capture, hidden_states, random_model, toy_target, windows_of

from untail.draft.adaptive.head import Head
from untail.draft.adaptive.loss import draft_loss, passes, rows_in_loss, scored_rows, visible
from untail.draft.adaptive.model import DraftModel, draft_shape, turn_of
from untail.engine.attention.varlen import VarlenAttention
from untail.engine.runner import Piece, Runner


def packed_guesses(model, target, *captures):
    windows = windows_of(*captures)
    turn = turn_of(target, windows.positions_T, torch.float32)
    embedded = F.embedding(windows.next_ids_T, target.embed)
    return model(embedded, windows.hidden_TD, turn, VarlenAttention(windows.lengths)).split(windows.lengths)


@torch.no_grad()
def test_paged_is_packed():
    """Two sequences in scattered blocks, first a chunk of each and then one row at a time."""
    target, model = toy_target(), random_model()
    captures = [capture(target, 41, seed=1), capture(target, 23, seed=2)]
    expected = packed_guesses(model, target, *captures)
    runner, tables = Runner(target, 8), [[5, 1, 6], [3, 7]]
    kv = torch.zeros(1, 2, 8, 16, TOY.kv_heads, TOY.head_dim)

    def run(begin, end):
        pieces = [Piece(blocks, begin, [0] * (end - begin)) for blocks in tables]
        layout = runner.lay_out(pieces)
        rows = [(captures[number], position) for number in layout.order for position in range(begin, end)]
        ids = torch.tensor([int(own.ids_N[position + 1]) for own, position in rows])
        hidden = torch.stack([own.hidden_ND[position] for own, position in rows])
        turn = turn_of(target, layout.positions_T, torch.float32)
        guesses = model(F.embedding(ids, target.embed), hidden, turn, runner.attend(layout, kv)).split(end - begin)
        return dict(zip(layout.order, guesses, strict=True))

    for begin, end in [(0, 17), *((row, row + 1) for row in range(17, 22))]:
        for number, guess in run(begin, end).items():
            torch.testing.assert_close(guess, expected[number][begin:end], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_keys_and_values_alone_are_those_of_the_whole():
    target, model, seen = toy_target(), random_model(), {}

    def remember(layer, q, k, v):
        seen.update(k=k, v=v)
        return q.flatten(1)

    windows = windows_of(capture(target, 12))
    inputs = F.embedding(windows.next_ids_T, target.embed), windows.hidden_TD
    turn = turn_of(target, windows.positions_T, torch.float32)
    model(*inputs, turn, remember)
    keys, values = model.keys_values(*inputs, turn)
    torch.testing.assert_close(keys, seen["k"])
    torch.testing.assert_close(values, seen["v"])


def test_it_is_about_one_layer_of_the_target_and_none_of_its_embedding():
    shape = FAMILIES["qwen2"]
    own = sum(parameter.numel() for parameter in DraftModel(shape, "meta", torch.float32).parameters())
    layer = shape.hidden * (2 * shape.q_size + 2 * shape.kv_size + 3 * shape.intermediate + 1)
    assert own == layer + 2 * shape.hidden**2
    assert not draft_shape(shape).qkv_bias
    assert draft_shape(shape).layers == 1


@torch.no_grad()
def test_a_fresh_drafter_guesses_something_of_the_right_size():
    target = toy_target()
    own = capture(target, 40)
    guesses = passes(DraftModel(TOY, "cpu", torch.float32).initialise(), target, windows_of(own), 2)
    for guess in guesses:
        assert 0.3 < guess.norm() / own.hidden_ND[1:].norm() < 3


@torch.no_grad()
def test_test_passes_are_the_steps_of_a_draft():
    """Pass j at row t is what the j-th step of a draft from row t - j computes, with that draft's own keys."""
    target, model = toy_target().double(), random_model().double()
    captures, steps = [capture(target, 9, seed=1), capture(target, 14, seed=2)], 3
    windows = windows_of(*captures)
    guesses = [guess.split(windows.lengths) for guess in passes(model, target, windows, steps)]
    for number, own in enumerate(captures):
        for begin in range(own.rows - steps):
            hidden_TD = own.hidden_ND[: begin + 1]
            for step in range(steps + 1):
                rows = begin + 1 + step
                embedded = F.embedding(own.ids_N[1 : rows + 1], target.embed)
                turn = turn_of(target, torch.arange(rows), torch.float64)
                drafted = model(embedded, hidden_TD, turn, VarlenAttention([rows]))[-1]
                torch.testing.assert_close(guesses[step][number][begin + step], drafted)
                hidden_TD = torch.cat((hidden_TD, drafted[None]))


def test_the_loss_is_that_of_a_plain_loop():
    target, model, steps = toy_target(), random_model(), 2
    captures = [capture(target, 9, seed=1, prompt=4), capture(target, 12, seed=2)]
    windows = windows_of(*captures)
    total, rows = 0.0, 0
    guesses = [guess.split(windows.lengths) for guess in passes(model, target, windows, steps)]
    for number, own in enumerate(captures):
        for row in range(max(own.taught, steps), own.rows):
            rows += 1
            wanted = own.hidden_ND[row + 1]
            for step in range(steps + 1):
                guess = guesses[step][number][row]
                apart = (guess - wanted).abs()
                near = torch.where(apart < 1, 0.5 * apart**2, apart - 0.5).mean()
                probs = (target.output_weight @ wanted).softmax(0)
                far = -(probs * (target.output_weight @ guess).log_softmax(0)).sum()
                total = total + 0.5 * near + 0.5 * far
    loss = draft_loss(model, target, Head(target), windows, steps, torch.Generator())
    torch.testing.assert_close(loss, total / rows / (steps + 1))


def test_the_gradient_runs_through_what_was_fed_back():
    """Of the second pass, it is not what it would be if the first pass's guesses were given."""
    target, model = toy_target(), random_model()
    own = capture(target, 12)
    windows = windows_of(own)
    first, second = passes(model, target, windows, 1)
    (gradient,) = torch.autograd.grad(second[1:].sum(), [model.fc], retain_graph=True)
    (to_the_guess,) = torch.autograd.grad(second[1:].sum(), [first])
    assert torch.count_nonzero(to_the_guess[:-1].sum(1)) == own.rows - 1
    assert gradient.isfinite().all()


def test_what_a_row_may_see():
    """Row 3 of pass 2 began its draft at row 1: it sees the target's up to there, then its own two guesses."""
    first, second, third = visible(5, 2, torch.device("cpu"))[3].split(5)
    assert first.nonzero()[:, 0].tolist() == [0, 1]
    assert second.nonzero()[:, 0].tolist() == [2]
    assert third.nonzero()[:, 0].tolist() == [3]


def test_prompts_and_the_first_rows_of_a_window_are_context():
    target = toy_target()
    windows = windows_of(capture(target, 9, prompt=6), capture(target, 7, prompt=1))
    assert rows_in_loss(windows, 2).tolist() == [5, 6, 7, 8 + 2, 8 + 3, 8 + 4, 8 + 5]


def test_a_large_vocabulary_is_asked_about_fewer_rows():
    model = random_model()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    head = lambda times: torch.empty(times * parameters // TOY.hidden, TOY.hidden, device="meta")
    assert scored_rows(model, head(1), 100) == 100
    assert scored_rows(model, head(10), 100) == 10
    assert scored_rows(model, head(1000), 100) == 1
    assert scored_rows(model, head(1), 10**6) == 512


def test_the_target_gets_no_gradient():
    target = toy_target().requires_grad_(True)
    own = capture(target, 12)
    draft_loss(random_model(), target, Head(target), windows_of(own), 1, torch.Generator()).backward()
    assert all(parameter.grad is None for parameter in target.parameters())
    assert hidden_states(target, own.ids_N).requires_grad
