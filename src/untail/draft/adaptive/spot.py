"""The spot trainer: trains the drafter on time that nobody else wants, in slices.

Invariant: what is trained is a copy in float32; the weights that serve change only when the engine's thread fetches a
whole new set (`fresh`). A slice is one optimizer step, made as large as fits `SLICE_SECONDS` by measurement, and none
begins while training is not allowed. Between its passes, each of which a GPU has done by then, it looks whether the
device is wanted back: then it is given up, moves nothing, and is made again later. So whoever wants the device waits
for one pass, there or back, or for the optimizer. A gradient that is not finite moves nothing and is counted; a slice
that fails is counted and said once, and the next one is half as large.

The same slices run without the thread, at one size (`run`): then weights depend on the data and on nothing else.
Pre: training is not allowed while the target's weights are being written (`pause` and `wait` before an update).
"""

import threading
import time
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from untail.draft.adaptive.data import Captures
from untail.draft.adaptive.head import SEEN, Head
from untail.draft.adaptive.loss import Look, draft_loss
from untail.draft.adaptive.model import DraftModel
from untail.draft.adaptive.target import Target
from untail.errors import WeightsError
from untail.notice import say_once

SLICE_SECONDS = 0.05
AIM = 0.6  # of it: the next slice may find the machine busier than the last one did
SMALLEST, LARGEST, STEADY = 16, 16384, 512  # tokens of a slice; the last, of those without a thread
PUBLISH_EVERY = 64  # slices
MAX_GRAD_NORM = 1.0
BETAS = (0.9, 0.95)
PATIENCE = 0.05  # seconds between looks for data when there is none


class AskedBack(Exception):
    """The device is wanted in the middle of a slice."""


class Spot:
    def __init__(self, target: Target, model: DraftModel, data: Captures, lr: float, test_steps: int, seed: int = 0):
        """Trains a copy of `model` as it is now."""
        self.model = DraftModel(target.shape, model.fc.device, torch.float32)
        self.model.load_state_dict(model.state_dict())
        self.data = data
        self.head = Head(target)
        self.slices = self.skipped = self.failures = self.given_up = 0
        self.seconds = self.longest_wait = 0.0
        self.loss: float | None = None
        self.size = 4 * SMALLEST  # tokens of the thread's next slice
        self._target = target
        self._device = model.fc.device
        self._test_steps = test_steps
        self._seed = seed
        self._adam = torch.optim.Adam(self.model.parameters(), lr=lr, betas=BETAS, fused=True)
        for parameter in self.model.parameters():
            moments = {"exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}
            self._adam.state[parameter] = {"step": torch.zeros((), device=parameter.device)} | moments
        self._training = threading.Lock()  # held during a slice, and by whoever reads or writes the weights
        self._published: deque[dict[str, Tensor]] = deque(maxlen=1)
        self._allowed = threading.Event()
        self._ended = threading.Event()  # for good: it is allowed from then on, so that the thread sees it
        self._pausing = threading.Lock()  # no pause while it is ended
        self._asked_back = 0.0
        self._thread: threading.Thread | None = None

    def slice(self, tokens: int = STEADY) -> bool:
        """One optimizer step on about so many tokens; whether there was anything to learn from."""
        with self._training:
            return self._slice(tokens)

    def run(self, slices: int) -> int:
        """So many slices here and now, and publish; returns how many there was data for."""
        done = sum(self.slice() for _ in range(slices))
        if done:
            self.publish()
        return done

    def start(self) -> None:
        """Train on a thread from now on, whenever it is allowed."""
        self._thread = threading.Thread(target=self._train, name="untail-spot", daemon=True)
        self._thread.start()

    def close(self) -> None:
        with self._pausing:
            self._ended.set()
            self._allowed.set()
        if self._thread is not None:
            self._thread.join()

    def allow(self) -> None:
        self._allowed.set()

    def pause(self) -> None:
        """No slice begins after this."""
        with self._pausing:
            if self._allowed.is_set() and not self._ended.is_set():
                self._asked_back = time.perf_counter()
                self._allowed.clear()

    def wait(self) -> None:
        """Until the slice that is running is over, or given up."""
        with self._training:
            pass

    def weights(self) -> dict[str, Tensor]:
        """A copy of what is trained, between two slices."""
        with self._training:
            return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def publish(self) -> None:
        self._published.append(self.weights() | {SEEN: self.head.state()})

    def fresh(self) -> dict[str, Tensor] | None:
        """The newest whole set of weights, and what tokens are common, unless it was fetched already."""
        try:
            return self._published.pop()
        except IndexError:
            return None

    def figures(self) -> dict[str, float]:
        known = {} if self.loss is None else {"loss": self.loss}
        return known | {
            "slices": self.slices,
            "skipped_slices": self.skipped,
            "failed_slices": self.failures,
            "given_up_slices": self.given_up,
            "seconds": self.seconds,
            "longest_wait_s": self.longest_wait,
            "data_tokens": self.data.tokens,
            "left_out": self.data.left_out,
        }

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Copies: training may go on while they are written."""
        with self._training:
            tensors = {name: tensor.clone() for name, tensor in self._tensors().items()}
            return tensors | {SEEN: self.head.state()}, {"slices": self.slices}

    @torch.no_grad()
    def load_state_dict(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Nothing is touched unless every tensor is there and fits."""
        with self._training:
            own = self._tensors()
            for name, tensor in (own | {SEEN: self.head.state()}).items():
                if name not in tensors or tensors[name].shape != tensor.shape:
                    there = tuple(tensors[name].shape) if name in tensors else "nothing"
                    raise WeightsError(
                        f"the drafter's checkpoint has {there} for {name!r}, but this model's drafter needs "
                        f"{tuple(tensor.shape)}; resume with the same model"
                    )
            for name, tensor in own.items():
                tensor.copy_(tensors[name])
            self.head.restore(tensors[SEEN])
            self.slices = numbers["slices"]
        if self.slices:
            self.publish()

    def _tensors(self) -> dict[str, Tensor]:
        """Weights and optimizer state, by flat name."""
        flat: dict[str, Tensor] = {}
        for name, parameter in self.model.named_parameters():
            state = self._adam.state[parameter]
            flat |= {f"weight.{name}": parameter.detach()}
            flat |= {f"{kind}.{name}": state[kind] for kind in ("step", "exp_avg", "exp_avg_sq")}
        return flat

    def _slice(self, tokens: int, look: Look = lambda: None) -> bool:
        start = time.perf_counter()
        windows = self.data.draw(tokens, self._test_steps, np.random.default_rng((self._seed, self.slices)))
        if windows is None:
            return False
        random = torch.Generator().manual_seed(self.slices)
        loss = draft_loss(self.model, self._target, self.head, windows, self._test_steps, random, look)
        loss.backward()
        look()
        self._step(loss.item())
        self.slices += 1
        self.seconds += time.perf_counter() - start
        return True

    def _step(self, loss: float) -> None:
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        norm = get_total_norm(gradients)
        if bool(norm.isfinite()):
            clip_grads_with_norm_(self.model.parameters(), MAX_GRAD_NORM, norm)
            self._adam.step()
            self.loss = loss
        else:
            self.skipped += 1
        self._adam.zero_grad(set_to_none=True)

    def _train(self) -> None:
        while not self._ended.is_set():
            self._allowed.wait()
            self._stint()

    def _stint(self) -> None:
        """Slices while training is allowed; what they taught is published in the end, and now and then before."""
        before = self.slices
        while self._allowed.is_set() and not self._ended.is_set():
            done = self.slices
            if not self._slice_if_allowed():
                self._ended.wait(PATIENCE)
            elif self.slices > done and (self.slices - before) % PUBLISH_EVERY == 0:
                self.publish()
        if self.slices > before:
            self.publish()

    def _slice_if_allowed(self) -> bool:
        """Looked at with the lock held: whoever paused and waited has the device for good. False: there was nothing to
        learn from, or it went wrong."""
        with self._training:
            start = time.perf_counter()
            try:
                if not self._allowed.is_set() or not self._slice(self.size, self._look):
                    return False
                self._resize(time.perf_counter() - start)
            except AskedBack:
                self.given_up += 1
                self._adam.zero_grad(set_to_none=True)
            except Exception as error:  # the drafts stay as good as they were, and the run goes on
                self._adam.zero_grad(set_to_none=True)
                self._failed(error)
                return False
            if not self._allowed.is_set():
                self.longest_wait = max(self.longest_wait, time.perf_counter() - self._asked_back)
            return True

    def _look(self) -> None:
        # A GPU is sent passes faster than it computes them: whoever wants it back would wait for all that it was sent.
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        if not self._allowed.is_set():
            raise AskedBack

    def _failed(self, error: Exception) -> None:
        """It may have been too large for what memory is left."""
        self.failures += 1
        if self.failures == 1:
            say_once(
                f"a slice of {self.size} tokens of draft.drafters.adaptive's training failed: {type(error).__name__}: "
                f"{error}; the run goes on with smaller ones, and its metrics count the failures"
            )
        self.size = max(SMALLEST, self.size // 2)

    def _resize(self, seconds: float) -> None:
        """Towards the aimed-at time, at most twofold at once: one measurement says little."""
        factor = min(2.0, max(0.5, AIM * SLICE_SECONDS / seconds))
        self.size = int(min(LARGEST, max(SMALLEST, self.size * factor)))
