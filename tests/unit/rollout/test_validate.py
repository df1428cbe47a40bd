"""Held-out prompts are answered to their end."""

import asyncio

import pytest
from tests.helpers.rig import Numbers, by, lengths
from tests.helpers.rollout import make_prompt
from tests.helpers.scripted import Script, Scripted
from tests.helpers.tiny import talks

from untail.backends.virtual_loop import run_virtual
from untail.rewards.scorer import Score
from untail.rollout.turns import Turns
from untail.rollout.validate import validate
from untail.types import SamplingParams

PROMPTS = [make_prompt(number) for number in range(5)]
SAMPLING = SamplingParams(temperature=0.0, stop_ids=(0,), policy_temperature=0.8)


async def by_length(trajectory) -> Score:
    return Score(float(len(trajectory.tokens)), "timeout" if trajectory.end == "length" else None)


def check(backend: Scripted, label: str = "valid-3", slots: int = 2, most: int = 10, score=by_length, seed: int = 1):
    return validate(backend, slots, PROMPTS, score, SAMPLING, most, label, seed)


def test_every_prompt_is_answered_to_its_end_or_to_the_longest_response():
    backend = Scripted(lengths((3,), (30,), (5,), (10,), (2,)))
    answers = run_virtual(check(backend))
    assert [answer.prompt for answer in answers] == PROMPTS
    assert [(len(answer.tokens), answer.end) for answer in answers] == [
        *((3, "stop"), (10, "length"), (5, "stop"), (10, "stop"), (2, "stop")),
    ]
    assert [answer.reward for answer in answers] == [3.0, 10.0, 5.0, 10.0, 2.0]
    assert [answer.failure for answer in answers] == [None, "timeout", None, None, None]
    assert not backend.called("abort") + backend.called("cut")
    assert not backend.alive


def test_no_more_run_than_there_are_slots():
    backend = Scripted(lengths())
    run_virtual(check(backend))
    assert backend.most == 2


def test_how_it_is_sampled():
    backend = Scripted(lengths())
    run_virtual(check(backend))
    specs = backend.called("generate")
    assert {(spec.sampling, spec.budget) for spec in specs} == {(SAMPLING, 10)}
    assert len({spec.stream for spec in specs}) == 5


def test_streams_are_the_label_s_and_the_seed_s():
    def streams(**more) -> list[int]:
        backend = Scripted(lengths())
        run_virtual(check(backend, **more))
        return [spec.stream for spec in backend.called("generate")]

    assert streams() == streams()
    assert not set(streams()) & set(streams(label="valid-4"))
    assert not set(streams()) & set(streams(seed=2))


def test_a_failure_comes_out_as_itself_and_nothing_runs_on():
    backend = Scripted(by(lambda prompt, member: Script(50, fails_at=3 if member == 2 else None)))
    with pytest.raises(MemoryError, match="no room for valid-3/2"):
        run_virtual(check(backend))
    assert not backend.alive


def test_a_scorer_s_failure_too():
    async def fails(trajectory):
        raise ValueError("cannot score")

    backend = Scripted(lengths())
    with pytest.raises(ValueError, match="cannot score"):
        run_virtual(check(backend, score=fails))
    assert not backend.alive


def test_nothing_runs_after_it_was_cancelled():
    backend = Scripted(lengths(default=9))

    async def cancel() -> None:
        task = asyncio.create_task(check(backend))
        await asyncio.sleep(3.5)
        assert backend.running == 2
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not backend.alive

    run_virtual(cancel())


def converse(backend: Scripted, tool, slots: int = 5, most: int = 20):
    turns = Turns(tool, Numbers(), by_length, backend.clock, 1000, 100, 1)
    return validate(backend, slots, PROMPTS, by_length, SAMPLING, most, "valid-3", 1, turns)


def test_the_turns_are_played_within_the_longest_response():
    backend = Scripted(lengths((3,), (30,), (5,), (18,), (20,)))
    answers = run_virtual(converse(backend, talks(turns=3)))
    assert [(answer.turns, answer.length, answer.end) for answer in answers] == [
        *((3, 11, "stop"), (1, 20, "length"), (3, 13, "stop"), (2, 20, "length"), (1, 20, "stop")),
    ]
    assert not backend.called("abort") + backend.called("cut")
    assert not backend.alive


def test_a_tool_at_work_leaves_its_slot_to_another():
    backend = Scripted(lengths(default=4))

    async def run() -> float:
        await converse(backend, talks(seconds=lambda turn: 3.0, turns=2), slots=1)
        return asyncio.get_running_loop().time()

    assert run_virtual(run()) == 40, "5 prompts of 2 turns of 4 s each, and nobody waited for a tool"
    assert backend.most == 1


def test_a_tool_that_fails_or_hangs_ends_its_own_answer():
    def says(turn):
        if turn.prompt.tokens[0] == 1:
            raise OSError("no disk")
        return "abc"

    slow = talks(says, lambda turn: 1e6 if turn.prompt.tokens[0] == 2 else 0.0, turns=2, time_limit_s=9.0)
    answers = run_virtual(converse(Scripted(lengths(default=4)), slow))
    assert [(answer.turns, answer.tool_failure) for answer in answers] == [
        *((2, None), (1, "raised: OSError: no disk"), (1, "timeout"), (2, None), (2, None)),
    ]
