import pytest

from untail.rewards.extract import boxed, hashed, last_line, marked, tagged, truth


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so <answer> 4 </answer>.", "4"),
        ("<answer>1</answer> no, <answer>2</answer>", "2"),
        ("<answer>1</answer> and <answer>open", "1"),
        ("<answer>two\nlines</answer>", "two\nlines"),
        ("</answer> backwards <answer>", None),
        ("<answer>unclosed", None),
        ("none", None),
    ],
)
def test_tagged(text: str, answer: str | None) -> None:
    assert tagged(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{4}", "4"),
        (r"\boxed{\frac{1}{2}} done", r"\frac{1}{2}"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{never {closed}", None),
        ("none", None),
    ],
)
def test_boxed(text: str, answer: str | None) -> None:
    assert boxed(text) == answer


def test_hashed_is_the_rest_of_the_line() -> None:
    assert hashed("work\n#### 42\nThat is all.") == "42"
    assert hashed("no mark") is None


def test_last_line_passes_over_blank_ones() -> None:
    assert last_line("first\n second \n\n  ") == "second"
    assert last_line("") == ""


def test_marked_prefers_tags_to_boxes_to_hashes() -> None:
    assert marked(r"#### 1 \boxed{2} <answer>3</answer>") == "3"
    assert marked(r"\boxed{2} #### 1") == "2"
    assert marked("#### 1") == "1"
    assert marked("1") is None


def test_truth_of_a_worked_solution_is_its_result() -> None:
    assert truth("2 + 2 = 4\n#### 4") == "4"
    assert truth(" plain ") == "plain"
    assert truth(42) == "42"
