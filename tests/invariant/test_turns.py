"""Conversations on the native engine with the tiny model: what is sampled after a reply is what the conversation as a
prompt would give, and a slow tool keeps no slot."""

import pytest

from tests.helpers.equality import reference_logits
from tests.helpers.native import arithmetic, native_controller, odd_lengths_win, tiny
from tests.helpers.steps import Steps, small_recipe, take_steps
from tests.helpers.tiny import talks
from untail.backends.native import NativeBackend
from untail.config import EngineConfig
from untail.engine.engine import Engine
from untail.rollout.turns import ChatVoice, Turns
from untail.rollout.validate import validate
from untail.types import SamplingParams

SAYS = "wrong, try again"


async def steps(tool, count: int = 1, name: str | None = None, deterministic: bool = True, **more) -> Steps:
    recipe = small_recipe(name, audit=0.0, prompts=2, group=2, max_tokens=96, **more.pop("rollout", {}))
    async with native_controller(recipe, deterministic=deterministic, environment=tool, **more) as controller:
        (backend,) = controller.stage.fleet.backends

        async def update(step, batch):
            await backend.load_weights(None, step)

        taken = await take_steps(controller, range(1, count + 1), update)
        backend.engine.check_integrity()
        return taken


def conversation(trajectory) -> list[int]:
    """As the chat template renders it up to where the last turn begins, from the texts alone."""
    tokenizer = tiny().tokenizer
    question = trajectory.prompt.text.removeprefix("<|user|>").removesuffix("<|assistant|>")
    messages = [{"role": "user", "content": question}]
    for segment in trajectory.segments:
        if segment.why == "turn":
            text = tokenizer.decode(trajectory.tokens[segment.begin : segment.end])
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": SAYS}]
    return tokenizer.chat(messages)


@pytest.mark.parametrize("kv_blocks", [256, 26])
async def test_the_tokens_are_the_conversation_s_and_the_log_probs_the_model_s(kv_blocks):
    """Whether or not the parked lose their KV on the way."""
    tool = talks(lambda turn: SAYS, latency=lambda turn: 0.2, turns=3)
    taken = await steps(tool, kv_blocks=kv_blocks)
    assert max(t.turns for _, t in taken.trained) > 1
    for _, t in taken.trained:
        assert [*t.prompt.tokens, *t.tokens[: t.turn_begin]] == conversation(t)
        whole = [*t.prompt.tokens, *t.tokens]
        logprobs = reference_logits(tiny().decoder, whole).log_softmax(-1)
        for place, ours in enumerate(t.from_model):
            at = len(t.prompt.tokens) + place
            expected = logprobs[at - 1, whole[at]].item() if ours else 0.0
            assert t.policy_logprob[place] == pytest.approx(expected, abs=1e-4)
    assert (sum(event["preemptions"] for event in taken.all("rolled_out")) > 0) == (kv_blocks == 26)


async def test_a_tool_of_200_ms_keeps_no_slot():
    """One slot: by its clock, others run in it while a trajectory is parked, and never two at once."""
    tool = talks(lambda turn: SAYS, latency=lambda turn: 0.2, turns=2)
    taken = await steps(tool, max_seqs=1)
    (events,) = taken.events
    parked, holder, ran_meanwhile = set(), None, 0
    for event in events:
        match event["e"]:
            case "start" | "resume":
                assert holder is None
                holder = event["id"]
                ran_meanwhile += bool(parked - {holder})
            case "park":
                holder, parked = None, parked | {event["id"]}
            case "reply":
                assert 0.2 <= event["seconds"] < 0.22, "to the next step of the engine"
                parked.discard(event["id"])
            case "end":
                holder = None if holder == event["id"] else holder
    assert ran_meanwhile > 0
    assert len(taken.all("reply")) > 0


async def test_a_real_tool_that_hangs_is_cut():
    tool = talks(seconds=lambda turn: 3600.0, turns=2, time_limit_s=0.05)
    for deterministic in (True, False):
        taken = await steps(tool, deterministic=deterministic)
        failures = [end["tool_failure"] for end in taken.all("end") if end["end"] == "stop"]
        assert failures
        assert set(failures) <= {"timeout", None}, "none where the budget was used up"
        assert "timeout" in failures


async def test_the_same_seed_gives_the_same_conversations():
    """Though the tool really takes its time, and another one each time."""
    delays = iter([0.0, 0.03, 0.01, 0.02] * 50)
    tool = talks(lambda turn: SAYS, lambda turn: next(delays), lambda turn: 0.1 * (turn.stream % 5), turns=3)
    one, other = [await steps(tool, 3, "april", rollout={"max_staleness": 2}) for _ in range(2)]
    strip = lambda taken: [[{**event, "peak_mem": 0} for event in events] for events in taken.events]
    assert strip(one) == strip(other)
    assert one.all("reply")


@pytest.mark.parametrize("deterministic", [True, False])
async def test_validation_plays_the_turns(deterministic):
    backend = NativeBackend(Engine(tiny().decoder, EngineConfig(kv_blocks=256, max_seqs=4)), deterministic)
    tool = talks(lambda turn: SAYS, latency=lambda turn: 0.01, turns=2)
    turns = Turns(tool, ChatVoice(tiny().tokenizer), odd_lengths_win, backend.clock, 1024, 261, 0)
    sampling = SamplingParams(stop_ids=tiny().tokenizer.eos_ids)
    answers = await validate(backend, 2, list(arithmetic()[:4]), odd_lengths_win, sampling, 120, "v", 0, turns)
    await backend.close()
    assert {answer.turns for answer in answers if answer.end == "stop" and answer.length < 120} == {2}
    for answer in answers:
        if answer.turns == 2:
            assert answer.tokens[answer.turn_begin - 1] == tiny().tokenizer.encode("<|assistant|>")[0]
            assert answer.reply_tokens == answer.from_model.count(False) == len(SAYS) + 2


async def test_a_stop_string_ends_a_turn_and_the_reply_says_where():
    """As the calculator has it; the tiny model knows no <calc>, so any digit will do."""
    tool = talks(lambda turn: SAYS if turn.text.endswith("=") else None, turns=3)
    type(tool).stop_strings = ("=",)
    taken = await steps(tool)
    end, equals = tiny().tokenizer.eos_ids[0], tiny().tokenizer.encode("=")[0]
    replied = [t for _, t in taken.trained if t.turns > 1]
    assert replied
    for t in replied:
        first = t.from_model.index(False)
        assert (t.tokens[first - 1], t.tokens[first]) == (equals, end), "the template's own mark is context"
