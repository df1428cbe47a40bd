"""What the drafter is trained to: the target's next hidden state and the distribution that its head makes of it, also
when the drafter goes on from its own guesses.

Pass 0 sees the target's hidden states. Pass j sees, at each row, what pass j - 1 guessed for it: the state of the j-th
step of a draft. Its attention is that of such a step, too: the context up to where the draft began is the target's, and
the j positions since are those of passes 1 to j (`DraftAttention`).

    loss = mean over passes of  1/2 smooth-L1(guess, hidden) + 1/2 sum_v -p_v log q_v

with p and q the head's distributions of the target's hidden state and of the guess, over its candidates (head.py). The
gradient runs through the guesses that were fed back. Rows of the prompt are context only, and so are a window's first
rows, which no draft that began within the window can have come to.

Shape suffixes: T rows, R rows in the loss, S rows that the head scores, C candidates, D hidden, W rows of one window.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from untail.draft.adaptive.data import Windows
from untail.draft.adaptive.head import Head
from untail.draft.adaptive.model import DraftModel, turn_of
from untail.draft.adaptive.target import Target

Look = Callable[[], None]
"""Called before each pass, on the way there and on the way back; if it raises, that is the end of it."""
MOST_SCORED = 512  # rows of [rows x candidates], for the target and for each pass


def draft_loss(
    model: DraftModel,
    target: Target,
    head: Head,
    windows: Windows,
    test_steps: int,
    random: torch.Generator,
    look: Look = lambda: None,
) -> Tensor:
    """Pre: a row of the windows is in the loss."""
    wanted_TD = windows.wanted_TD.to(model.fc.dtype)
    index_R = rows_in_loss(windows, test_steps)
    chosen_S = torch.randperm(len(index_R), generator=random)[: scored_rows(model, head.rows_CD, len(index_R))]
    index_S = index_R[chosen_S.to(index_R.device)]
    guesses = passes(model, target, windows, test_steps, look)
    look()
    # All at once: to read the head costs more than to multiply a few rows by it.
    states = torch.cat([states_TD[index_S] for states_TD in (wanted_TD, *guesses)])
    wanted_SC, *guessed = head.logits(states).split(len(index_S))
    probs_SC = wanted_SC.detach().softmax(-1)
    far = sum(-(probs_SC * logits_SC.log_softmax(-1)).sum(-1).mean() for logits_SC in guessed)
    near = sum(F.smooth_l1_loss(guess_TD[index_R], wanted_TD[index_R]) for guess_TD in guesses)
    return (0.5 * near + 0.5 * far) / len(guesses)


def scored_rows(model: DraftModel, head_CD: Tensor, rows: int) -> int:
    """The head of a small model with a large vocabulary costs many times what the drafter's layer does. It is asked
    about as many rows, drawn at random, as make both cost the same."""
    share = sum(parameter.numel() for parameter in model.parameters()) / head_CD.numel()
    return max(1, min(rows, MOST_SCORED, round(rows * share)))


def rows_in_loss(windows: Windows, test_steps: int) -> Tensor:
    """The same for all passes, so that the target's distribution is computed once."""
    within_T = torch.cat([torch.arange(length) for length in windows.lengths]).to(windows.is_taught_T.device)
    return (windows.is_taught_T & (within_T >= test_steps)).nonzero()[:, 0]


def passes(
    model: DraftModel, target: Target, windows: Windows, test_steps: int, look: Look = lambda: None
) -> list[Tensor]:
    """The guesses of pass 0 to `test_steps`, [T, D] each. Of pass j a window's first j rows mean nothing."""
    dtype = model.fc.dtype
    embedded_TD = F.embedding(windows.next_ids_T, target.embed.detach()).to(dtype)
    turn, attention = turn_of(target, windows.positions_T, dtype), DraftAttention(windows.lengths)
    hidden_TD, guesses = windows.hidden_TD.to(dtype), []
    for _ in range(test_steps + 1):
        look()
        guesses.append(model(embedded_TD, hidden_TD, turn, attention))
        if guesses[-1].requires_grad:
            guesses[-1].register_hook(lambda gradient: look())
        hidden_TD = guesses[-1].roll(1, 0)  # a row's own state was guessed by the row before it
    return guesses


class DraftAttention:
    """Its j-th call is pass j's: a row sees the keys of pass 0 up to j rows before it, and one key of each pass since.
    Windows do not see each other."""

    def __init__(self, lengths: list[int]):
        self._lengths = lengths
        self._keys: list[tuple[Tensor, ...]] = []  # by pass, by window
        self._values: list[tuple[Tensor, ...]] = []

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        self._keys.append(k_TKD.split(self._lengths))
        self._values.append(v_TKD.split(self._lengths))
        by_window = (zip(*by_pass, strict=True) for by_pass in (self._keys, self._values))
        columns = zip(q_THD.split(self._lengths), *by_window, strict=True)
        return torch.cat([self._window(q, torch.cat(keys), torch.cat(values)) for q, keys, values in columns])

    def _window(self, q_WHD: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        mask = None if len(keys) == len(q_WHD) else visible(len(q_WHD), len(self._keys) - 1, q_WHD.device)
        q, k, v = (x.transpose(0, 1)[None] for x in (q_WHD, keys, values))
        grouped = q.shape[1] != k.shape[1]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped)
        return out[0].transpose(0, 1).reshape(len(q_WHD), -1)


def visible(rows: int, number: int, device: torch.device) -> Tensor:
    """[W, (number + 1) W]: which keys of passes 0 to `number` each row of pass `number` may look at."""
    key = torch.arange(rows, device=device)
    row = key[:, None]
    since = [key == row - number + earlier for earlier in range(1, number + 1)]
    return torch.cat([key <= row - number, *since], dim=1)
