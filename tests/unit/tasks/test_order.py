"""The data order is a function of seed and step, and an epoch has no prompt twice."""

from untail.tasks.order import PromptOrder
from untail.types import Prompt

PROMPTS = [Prompt(str(n), "t", "", (n,)) for n in range(10)]


def test_an_epoch_has_no_prompt_twice_and_nobody_is_left_out_for_good():
    order = PromptOrder(PROMPTS, 4, seed=1)
    seen = [prompt.id for step in range(1, 21) for prompt in order.step(step)]
    for epoch in range(10):
        assert len(set(seen[8 * epoch : 8 * epoch + 8])) == 8
    assert set(seen) == {prompt.id for prompt in PROMPTS}
    assert seen[:8] != seen[8:16]


def test_a_step_does_not_depend_on_the_steps_before():
    assert PromptOrder(PROMPTS, 4, 1).step(17) == PromptOrder(PROMPTS, 4, 1).step(17)
    assert PromptOrder(PROMPTS, 4, 1).step(17) != PromptOrder(PROMPTS, 4, 2).step(17)
