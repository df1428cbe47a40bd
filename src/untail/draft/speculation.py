"""A recipe's drafting, as the engine sees it: who guesses in a step, how deep, and what came of it.

Invariant: whatever a drafter does wrong stays with it, is counted, and is said once. One that raises, or gives what is
no draft, leaves its sequence undrafted; a draft that is longer than asked for is cut. The engine hears of nothing but
drafts that it can try.
"""

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

from untail.draft.base import Drafter, Learned
from untail.draft.budget import Acceptance, spread
from untail.draft.choose.base import OFF, Chooser, Outcome, Scene
from untail.draft.training import DraftTraining
from untail.engine.draft import NONE, Ask, Draft, Verified
from untail.engine.sequence import Figures, Sequence
from untail.errors import UserError
from untail.notice import say_once

if TYPE_CHECKING:
    from untail.engine.runner import Runner

DEEPEST = 32  # drafts of one sequence in one step
FIGURES = len(get_args(Figures))


@dataclass
class DraftCounts:
    """Of one drafter, since the engine began."""

    proposals: int = 0  # sequences that carried its drafts, step by step
    drafted: int = 0
    accepted: int = 0
    unverified: int = 0  # tokens that nobody verified
    failures: int = 0  # times that it raised, or gave something else than was asked for


@dataclass
class _Step:
    """What was decided for the step under way."""

    scene: Scene
    arm: Any = OFF
    draft_s: float = 0.0
    drafted: set[str] = field(default_factory=set)  # sequences that got a draft


class Speculator:
    def __init__(self, drafters: dict[str, Drafter], chooser: Chooser):
        """Pre: at least one drafter."""
        self.drafters = drafters
        self.chooser = chooser
        self.counts = {name: DraftCounts() for name in drafters}
        self.wants_hidden = any(drafter.wants_hidden for drafter in drafters.values())
        self.training = DraftTraining()  # of those that learn, if that is in this process
        self.goes_unverified = any(drafter.is_lossy(drafter.config) for drafter in drafters.values())
        self.wants_past = any(drafter.wants_past for drafter in drafters.values())
        self._acceptance = Acceptance()
        self._step = _Step(Scene(0, 0, None))
        self._remembered = chooser.state()

    def attach(self, runner: "Runner", slots: int) -> None:
        self._slots = slots
        self._vocab = runner.decoder.shape.vocab
        for name, drafter in self.drafters.items():
            try:
                drafter.attach(runner)
            except UserError:
                raise
            except Exception as error:
                raise UserError(
                    f"draft.drafters.{name} could not begin ({error!r}); mend it, or leave it out with "
                    f"--set draft.drafters.{name}=false"
                ) from error

    def begin(self, sequence: Sequence) -> None:
        self._acceptance.begin(sequence.id)
        for name in self.drafters:
            self._tell(name, "begin", sequence)

    def end(self, sequence: Sequence) -> None:
        self._acceptance.end(sequence.id)
        for name in self.drafters:
            self._tell(name, "end", sequence)

    def depths(self, sequences: list[Sequence]) -> list[int]:
        count = len(sequences)
        if not count:
            self._step = _Step(Scene(0, 0, None))
            return []
        context = sum(len(sequence.tokens) for sequence in sequences) // count
        scene = Scene(count, context, self._acceptance.recent)
        self._step = _Step(scene, self.chooser.choose(scene))
        if self._step.arm.drafter is None:
            return [0] * count
        accepted = [self._acceptance.of(sequence.id) for sequence in sequences]
        return spread(self._step.arm.depth * count, accepted, [DEEPEST] * count)

    def occupied(self, sequences: int) -> None:
        """How many the engine has to do with; from any thread."""
        self.training.occupied(sequences / self._slots)

    def target_changed(self) -> None:
        for name in self.drafters:
            self._tell(name, "target_changed")

    def load(self, learned: dict[str, Learned]) -> None:
        """What drafters have learned, by name. Pre: on the engine's thread."""
        for name, own in learned.items():
            self._tell(name, "load", own)

    def propose(self, asks: list[Ask]) -> list[Draft]:
        began = time.perf_counter()
        self.load(self.training.fresh())
        name = self._step.arm.drafter
        drafts = self._ask(name, asks)
        self._step.drafted = {ask.sequence.id for ask, draft in zip(asks, drafts, strict=True) if draft.tokens}
        self._step.draft_s = time.perf_counter() - began
        return drafts

    def verified(self, results: list[Verified], seconds: float, mostly_decoded: bool, steps: int = 1) -> None:
        step = self._step
        for result in results:
            own = step.arm.drafter if result.sequence.id in step.drafted else None
            if own is not None:
                self._count(own, result)
            for name in self.drafters:
                told = (result.drafted, result.accepted) if name == own else (0, 0)
                self._tell(name, "hear", result.sequence, result.tokens, *told)
        if mostly_decoded and results and step.scene.batch:
            emitted, drafted, accepted = (
                sum(column) for column in zip(*((len(r.tokens), r.drafted, r.accepted) for r in results), strict=True)
            )
            drafted_for = sum(result.drafted > 0 for result in results)
            # A chooser thinks in steps.
            outcome = Outcome(emitted / steps, drafted_for, drafted, accepted, step.draft_s, seconds / steps)
            self.chooser.heard(step.scene, step.arm, outcome)

    def unverified(self, sequence: Sequence) -> Draft | None:
        for name, drafter in self.drafters.items():
            if not drafter.is_lossy(drafter.config):
                continue
            try:
                draft = drafter.unverified(sequence)
                if draft is not None:
                    self._refuse_bad(draft)
                    _refuse_unless_one(draft)
            except Exception as error:
                self._failed(name, error)
                continue
            if draft is not None:
                self.counts[name].unverified += 1
                return draft
        return None

    def figures(self) -> dict[str, dict[str, int]]:
        return {name: dict(vars(counts)) for name, counts in self.counts.items()}

    def remember(self) -> None:
        """What is saved next is what the chooser knows now. Pre: the engine computes nothing."""
        self._remembered = self.chooser.state()

    def state(self) -> dict[str, Any]:
        """What the chooser knew when it was told to remember, as JSON. Whether or not the engine runs meanwhile."""
        return self._remembered

    def restore(self, state: dict[str, Any]) -> None:
        """A state that does not fit, of an older version or of another chooser, is left alone: to know nothing yet
        costs some speed, and no token."""
        try:
            self.chooser.restore(state)
        except (TypeError, ValueError, KeyError) as error:
            half = self.chooser  # it may have taken over some of it
            self.chooser = type(half)(half.config, half.drafters, half.seed)
            say_once(
                f"what the checkpoint has of draft.choose does not fit ({type(error).__name__}: {error}): it begins "
                "anew, which changes no token"
            )

    def _ask(self, name: str, asks: list[Ask]) -> list[Draft]:
        """All at once; if that fails, one by one, so that only those go without whose draft it is that fails."""
        try:
            drafts = list(self.drafters[name].propose(asks))
            if len(drafts) != len(asks):
                raise TypeError(f"it gave {len(drafts)} drafts for {len(asks)} sequences")
        except Exception as error:
            if len(asks) == 1:
                self._failed(name, error)
                return [NONE]
            return [draft for ask in asks for draft in self._ask(name, [ask])]
        return [self._tried(name, ask, draft) for ask, draft in zip(asks, drafts, strict=True)]

    def _tried(self, name: str, ask: Ask, draft: Draft) -> Draft:
        """What of a draft can be tried."""
        try:
            self._refuse_bad(draft)
            if len(draft.tokens) > ask.most:
                self._failed(name, ValueError(f"it drafted {len(draft.tokens)} tokens where {ask.most} were asked for"))
                return Draft(draft.tokens[: ask.most])
        except Exception as error:
            self._failed(name, error)
            return NONE
        return draft

    def _refuse_bad(self, draft: Any) -> None:
        """Plain ints of the vocabulary: of other kinds, not all compare and index alike."""
        if not isinstance(draft, Draft) or not isinstance(draft.tokens, list):
            raise TypeError(f"{draft!r:.80} is no Draft with a list of tokens")
        for token in draft.tokens:
            if type(token) is not int or not 0 <= token < self._vocab:
                kind = type(token).__name__
                raise ValueError(f"it drafted {token!r:.80} ({kind}), and a token is an int below {self._vocab}")

    def _tell(self, name: str, what: str, *about: Any) -> None:
        try:
            getattr(self.drafters[name], what)(*about)
        except Exception as error:
            self._failed(name, error)

    def _failed(self, name: str, error: Exception) -> None:
        counts = self.counts[name]
        counts.failures += 1
        if counts.failures == 1:
            say_once(
                f"draft.drafters.{name} failed: {type(error).__name__}: {error}; the run goes on, and its metrics "
                "count the failures"
            )

    def _count(self, name: str, result: Verified) -> None:
        counts = self.counts[name]
        counts.proposals += 1
        counts.drafted += result.drafted
        counts.accepted += result.accepted
        self._acceptance.heard(result.sequence.id, result.drafted, result.accepted)


def _refuse_unless_one(draft: Draft) -> None:
    figures = draft.figures
    if len(draft.tokens) != 1 or figures is None or [len(own) for own in figures] != [FIGURES]:
        raise ValueError(
            f"{draft!r:.80} is not one token with its {FIGURES} figures, as what nobody verifies has to be"
        )
