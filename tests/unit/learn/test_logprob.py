"""The fused head against a full log-softmax: values, gradients, and that no more than a chunk of logits ever exists."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from untail.learn.logprob import head_loss, token_logprobs

ROWS, HIDDEN, VOCAB, TEMPERATURE = 23, 6, 37, 0.7


@pytest.fixture
def head():
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(ROWS, HIDDEN, generator=generator, dtype=torch.float64).requires_grad_()
    weight = torch.randn(VOCAB, HIDDEN, generator=generator, dtype=torch.float64).requires_grad_()
    return hidden, weight, torch.randint(VOCAB, (ROWS,), generator=generator)


def plain(hidden, weight, target):
    every = (hidden @ weight.T / TEMPERATURE).log_softmax(-1)
    return every.gather(1, target[:, None])[:, 0], -(every.exp() * every).sum(-1)


def curved_loss(logprob):
    """Not linear in the log-probs: each row's slope depends on its value."""
    return ((logprob + 1).exp() * torch.linspace(-1, 2, ROWS, dtype=logprob.dtype)).sum()


@pytest.mark.parametrize("logit_rows", [1, 7, ROWS, 100])
def test_values(head, logit_rows):
    logprob, entropy = token_logprobs(*head, TEMPERATURE, logit_rows)
    expected_logprob, expected_entropy = plain(*head)
    torch.testing.assert_close(logprob, expected_logprob.detach(), atol=1e-12, rtol=0)
    torch.testing.assert_close(entropy, expected_entropy.detach(), atol=1e-12, rtol=0)
    assert not logprob.requires_grad


@pytest.mark.parametrize("logit_rows", [1, 7, ROWS, 100])
def test_loss_and_gradient(head, logit_rows):
    hidden, weight, target = head
    slopes = torch.linspace(-1, 2, ROWS, dtype=torch.float64)

    def loss_of(rows, logprob, entropy):
        return ((logprob + 1).exp() * slopes[rows]).sum()

    ours = head_loss(hidden, weight, target, TEMPERATURE, logit_rows, loss_of)
    theirs = curved_loss(plain(*head)[0])
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-12)
    gradients = torch.autograd.grad(3 * ours, (hidden, weight)), torch.autograd.grad(3 * theirs, (hidden, weight))
    for mine, reference in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, reference, atol=1e-11, rtol=1e-11)


def test_gradcheck(head):
    hidden, weight, target = head
    loss_of = lambda rows, logprob, entropy: (logprob.exp() * (1 + logprob)).sum()
    assert torch.autograd.gradcheck(lambda h, w: head_loss(h, w, target, TEMPERATURE, 5, loss_of), (hidden, weight))


def test_the_entropy_that_the_loss_sees(head):
    seen = []
    head_loss(*head, TEMPERATURE, 4, lambda rows, logprob, entropy: seen.append(entropy) or logprob.sum())
    torch.testing.assert_close(torch.cat(seen), plain(*head)[1].detach(), atol=1e-12, rtol=0)


def test_extreme_logits_stay_finite(head):
    hidden, weight, target = (x.detach() * 1e4 if x.is_floating_point() else x for x in head)
    logprob, entropy = token_logprobs(hidden, weight, target, TEMPERATURE, 8)
    assert logprob.isfinite().all()
    assert entropy.isfinite().all()


def test_low_precision_weights_give_float32_logprobs(head):
    hidden, weight, target = (x.detach().bfloat16() if x.is_floating_point() else x for x in head)
    weight.requires_grad_()
    assert token_logprobs(hidden, weight, target, TEMPERATURE, 8)[0].dtype == torch.float32
    loss = head_loss(hidden, weight, target, TEMPERATURE, 8, lambda rows, logprob, entropy: logprob.mean())
    loss.backward()
    assert loss.dtype == torch.float32
    assert weight.grad.dtype == torch.bfloat16


class LargestLogits(TorchDispatchMode):
    """Remembers the most elements that any tensor with a vocabulary axis had."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and VOCAB in out.shape and HIDDEN not in out.shape:
            self.largest = max(self.largest, out.numel())
        return out


def test_logits_never_exceed_a_chunk(head):
    hidden, weight, target = head
    with LargestLogits() as mode:
        token_logprobs(hidden, weight, target, TEMPERATURE, 5)
        head_loss(hidden, weight, target, TEMPERATURE, 5, lambda rows, logprob, entropy: logprob.sum()).backward()
    assert mode.largest == 5 * VOCAB
