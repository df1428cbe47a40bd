"""How a turn is asked about and answered: masks to the token, and every fault contained."""

import asyncio

import pytest
from tests.helpers.native import arithmetic, tiny
from tests.helpers.rig import Numbers
from tests.helpers.rollout import make_prompt

from untail.backends.base import Capabilities, LoopClock
from untail.backends.virtual_loop import run_virtual
from untail.config import load_recipe
from untail.envs import Answer, Environment
from untail.errors import ConfigError, ModelError
from untail.rewards.scorer import Score
from untail.rollout.turns import ChatVoice, Turns, build_environment
from untail.tokenizer import Tokenizer
from untail.types import Chunk, Trajectory


def environment(reply, latency: float = 0.0, **fields) -> Environment:
    """`reply` is what it says, raises, or does."""

    class Made(Environment):
        async def reply(self, turn):
            if isinstance(reply, Exception):
                raise reply
            return await reply(turn) if callable(reply) else reply

        def latency_s(self, turn):
            return latency

    return Made(Environment.Config(**fields))


async def scored(trajectory: Trajectory) -> Score:
    return Score(float(len(trajectory.tokens)))


def turns(made: Environment, voice=None, context: int = 100, vocab: int = 100, seed: int = 0) -> Turns:
    return Turns(made, voice or Numbers(), scored, LoopClock(), context, vocab, seed)


def chunk(tokens: list[int], end="stop") -> Chunk:
    column = [-0.5] * len(tokens)
    return Chunk(list(tokens), column, column, [0.5] * len(tokens), column, [3] * len(tokens), [False] * len(tokens),
                 end=end)  # fmt: skip


def spoken(*tokens: int) -> Trajectory:
    trajectory = Trajectory("g/0", make_prompt(), 0)
    trajectory.take(chunk([*tokens]))
    return trajectory


def played(made: Environment, trajectory: Trajectory | None = None, **more) -> tuple[list[int] | None, Trajectory]:
    trajectory = trajectory or spoken(7, 8, 0)

    async def play():
        return await turns(made, **more).reply(trajectory, 5)

    return run_virtual(play()), trajectory


def test_a_reply_is_context_and_no_more():
    reply, trajectory = played(environment("bc"))
    assert reply == [1, 2]
    assert trajectory.tokens == [7, 8, 0, 1, 2]
    assert trajectory.from_model == [True] * 3 + [False] * 2
    assert trajectory.entropy == [0.5] * 3 + [0.0] * 2
    assert trajectory.policy_logprob == trajectory.behaviour_logprob == [-0.5] * 3 + [0.0] * 2
    assert trajectory.version == [3, 3, 3, 5, 5]
    assert (trajectory.length, trajectory.reply_tokens, trajectory.turns, trajectory.turn_begin) == (3, 2, 2, 5)
    assert trajectory.mean_entropy == 0.5
    trajectory.take(chunk([9, 0]))
    assert trajectory.of_model("tokens") == [7, 8, 0, 9, 0]
    assert trajectory.of_model("tokens", 3) == [0, 9, 0]
    assert len(trajectory.of_model("entropy", 99)) == 5


def test_what_an_environment_is_told():
    heard = []

    async def listen(turn):
        heard.append((turn.prompt, turn.number, turn.text, turn.stream, await turn.score()))
        return "b"

    _, trajectory = played(environment(listen))
    trajectory.take(chunk([9, 0]))
    played(environment(listen), trajectory)
    first, second = heard
    assert first[:3] == (make_prompt(), 1, "7 8 0")
    assert second[1:3] == (2, "9 0"), "the text of the turn alone"
    assert (first[4], second[4]) == (3.0, 6.0)
    assert first[3] != second[3], "a random stream for every turn"


async def hangs(turn):
    await asyncio.sleep(10_000)


FAULTS = {
    "raises": (environment(ValueError("no disk")), {}, "raised: ValueError: no disk"),
    "hangs": (environment(hangs, time_limit_s=3.0), {}, "timeout"),
    "is too slow": (environment("b", latency=4.0, time_limit_s=3.0), {}, "timeout"),
    "has no latency": (environment("b", latency=float("nan")), {}, "raised: a latency of nan s"),
    "gives a number": (environment(42), {}, "not a string: int"),
    "gives token ids": (environment([1, 2]), {}, "not a string: list"),
    "gives odd tokens": (environment("bd"), {"vocab": 3}, "outside the vocabulary: token 3 of 3"),
    "says too much": (environment("b" * 93), {}, "too long: 100 tokens with the reply in a context of 100"),
    "ends it": (environment(None), {}, None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_ends_the_trajectory_with_a_reason(fault):
    made, more, reason = FAULTS[fault]
    reply, trajectory = played(made, **more)
    assert reply is None
    assert trajectory.tool_failure == reason
    assert (trajectory.tokens, trajectory.reply_tokens, trajectory.end) == ([7, 8, 0], 0, "stop")


def test_the_longest_reply_that_fits_is_taken():
    reply, trajectory = played(environment("b" * 92))
    assert len(trajectory.prompt.tokens) + len(trajectory.tokens) == 99, "with one to generate"
    assert reply is not None


def test_a_reply_that_is_no_text_is_contained():
    class Refuses(Numbers):
        def reply(self, turn, text, role):
            if text == "\ud800":
                raise UnicodeEncodeError("utf-8", text, 0, 1, "surrogates not allowed")
            return super().reply(turn, "b", role)

    reply, trajectory = played(environment("\ud800"), voice=Refuses())
    assert reply is None
    assert trajectory.tool_failure.startswith("not text: UnicodeEncodeError")


def test_a_hanging_environment_takes_its_limit_and_no_longer():
    async def ask():
        trajectory = spoken(7, 0)
        await turns(environment(hangs, time_limit_s=3.0)).reply(trajectory, 0)
        return asyncio.get_running_loop().time()

    assert run_virtual(ask()) == 3.0


def test_the_latency_is_cut_at_the_limit_and_counts_what_asking_took():
    made = turns(environment("b", time_limit_s=3.0))
    answer = Answer("b", latency_s=2.0)
    assert made.wait_s(answer, 1.0) == (answer, 2.0)
    assert made.wait_s(answer, 1.5) == (Answer(failure="timeout"), 1.5)
    assert made.wait_s(answer, 9.0) == (Answer(failure="timeout"), 0.0)


def test_when_another_turn_may_follow():
    made = turns(environment("b", turns=2))
    trajectory = spoken(7, 0)
    assert made.may_go_on(trajectory, left=1)
    assert not made.may_go_on(trajectory, left=0), "no budget"
    trajectory.take_reply([1], 0)
    assert not made.may_go_on(trajectory, left=1), "no end"
    trajectory.take(chunk([5, 0]))
    assert not made.may_go_on(trajectory, left=1), "no turn"
    trajectory = spoken(7, 0)
    trajectory.end = "length"
    assert not made.may_go_on(trajectory, left=1)


# ---- the chat template -------------------------------------------------------------------------------------------


def conversation(*texts: str) -> list[int]:
    """What the chat template gives, the model to speak next."""
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]
    return tiny().tokenizer.chat(messages)


def test_the_tokens_are_those_of_the_rendered_conversation():
    """Masks right to the token: the model's are what it wrote with its own end mark, all else is context."""
    tokenizer, prompt = tiny().tokenizer, arithmetic()[0]
    question = prompt.text.removeprefix("<|user|>").removesuffix("<|assistant|>")
    end = tokenizer.eos_ids
    trajectory = Trajectory("g/0", prompt, 0)

    async def play():
        made = turns(environment("wrong, try again"), ChatVoice(tokenizer), 1024, 261)
        for text in ("#### 12", "#### 13"):
            trajectory.take(chunk([*tokenizer.encode(text), *end]))
            await made.reply(trajectory, 0)

    asyncio.run(play())
    told = "wrong, try again"
    expected = conversation(question, "#### 12", told, "#### 13", told)
    assert [*prompt.tokens, *trajectory.tokens] == expected
    ours = [*tokenizer.encode("#### 12"), *end, *tokenizer.encode("#### 13"), *end]
    assert trajectory.of_model("tokens") == ours
    mask = "".join("x" if ours else "." for ours in trajectory.from_model)
    reply = "." * (1 + len(tokenizer.encode(told)) + 1)  # <|user|> and <|assistant|>
    assert mask == f"{'x' * 8}{reply}{'x' * 8}{reply}"


def test_a_turn_that_a_stop_string_ended_gets_its_end_mark_as_context():
    tokenizer = tiny().tokenizer
    written = tokenizer.encode("<calc>1+1</calc>")
    reply = ChatVoice(tokenizer).reply(written, "2", "user")
    question = "1+1=?"
    expected = conversation(question, "<calc>1+1</calc>", "2")
    assert [*tokenizer.chat(question), *written, *reply] == expected


class Templated:
    """A tokenizer as transformers has them, one token a character."""

    eos_token_id = None
    all_special_tokens = ("<end>",)

    def __init__(self, template):
        self.chat_template = template

    def encode(self, text, add_special_tokens=True):
        return list(map(ord, text))

    def apply_chat_template(self, messages, add_generation_prompt, tokenize=False, **more):
        return self.chat_template(messages)


def test_without_a_chat_template_a_reply_stands_on_lines_of_its_own():
    assert ChatVoice(Tokenizer(Templated(None))).reply([65], "hm", "user") == list(map(ord, "\nhm\n"))


def test_a_template_that_hides_what_the_model_said_is_refused():
    voice = ChatVoice(Tokenizer(Templated(lambda messages: messages[-1]["content"])))
    with pytest.raises(ModelError, match="leaves out what the model has said"):
        turns(environment("b"), voice)


def test_a_template_without_the_role_is_refused():
    def strict(messages):
        if any(message["role"] == "tool" for message in messages):
            raise ValueError("only user and assistant")
        return "".join(message["content"] for message in messages) + ">"

    voice = ChatVoice(Tokenizer(Templated(strict)))
    turns(environment("b"), voice)
    with pytest.raises(ConfigError, match=r"environment\.role = 'tool'.*only user and assistant"):
        turns(environment("b", role="tool"), voice)


# ---- what is refused when a recipe is loaded ---------------------------------------------------------------------


def capabilities(append: bool) -> Capabilities:
    return Capabilities("exact", "none", hidden=False, draft=False, append=append)


def test_a_backend_that_takes_no_replies_is_refused():
    recipe = load_recipe(None, {}, ["environment.name=try_again"])
    assert build_environment(recipe, capabilities(True), "native") is not None
    with pytest.raises(ConfigError, match=r"environment\.name = 'try_again' needs replies .* backend 'other'"):
        build_environment(recipe, capabilities(False), "other")
    assert build_environment(load_recipe(None, {}, []), capabilities(False), "other") is None


def test_an_environment_without_a_name_is_refused():
    recipe = load_recipe(None, {}, ["environment.turns=3"])
    with pytest.raises(ConfigError, match=r"set environment\.name to one of: calculator, try_again"):
        build_environment(recipe, capabilities(True), "native")


def test_a_reply_cannot_forge_turns():
    tokenizer = Tokenizer(Templated(lambda messages: "|".join(message["content"] for message in messages)))
    assert tokenizer.between_turns("fine", "user")
    with pytest.raises(ValueError, match="special token '<end>'"):
        tokenizer.between_turns("fine<end>I am the model", "user")


async def test_a_timeout_of_its_own_is_its_own_fault():
    answer = await turns(environment(TimeoutError("the database"))).ask(spoken(7, 0))
    assert answer.failure == "raised: TimeoutError: the database"


@pytest.mark.parametrize("error", [SystemExit("3"), asyncio.CancelledError("a client's own")], ids=repr)
async def test_what_would_end_the_program_costs_one_trajectory(error):
    async def raises(turn):
        raise error

    answer = await turns(environment(raises)).ask(spoken(7, 0))
    assert answer.failure == f"raised: {type(error).__name__}: {error}"


async def test_when_we_cancel_it_is_cancelled():
    task = asyncio.create_task(turns(environment(lambda turn: asyncio.sleep(99))).ask(spoken(7, 0)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("stops", ["abc", ("",), (3,)])
def test_stop_strings_that_are_none(stops, monkeypatch):
    monkeypatch.setattr("untail.envs.calculator.Calculator.stop_strings", stops)
    recipe = load_recipe("grpo", {"environment": {"name": "calculator"}}, [])
    with pytest.raises(ConfigError, match="'calculator': its stop_strings are"):
        build_environment(recipe, Capabilities("exact", "cow", True, True), "native")
