"""`untail report`, as a user types it, and its page in a real browser."""

import random
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.conftest import untail
from tests.helpers.lively import Lively
from untail.observe.figures import run_figures

HOSTILE = (
    "2 < 3 & </script><script>document.title = 'run'</script><img src=x onerror=\"document.title = 'run'\"><b>bold</b>"
)


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> Path:
    """Three runs side by side in which everything happens; whoever wrote the texts means harm."""
    folder = tmp_path_factory.mktemp("runs")
    for number, name in enumerate(("grpo", "dygs", "adaseg"), 1):
        run = Lively(slots=24, groups=6, size=8, seed=number, prompt=HOSTILE, answer=HOSTILE)
        run.log.validation(0, 0.25)
        for step in range(1, 5 + number):  # not all have the same steps
            run.step(step, lively=name != "grpo")
        run.log.validation(run.t, 0.5)
        run.write(folder / f"{number}-{name}-seed0")
    outcome = untail("report", folder, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["path"] == str(folder / "report.html")
    return folder


@pytest.fixture(scope="module")
def chromium(trained) -> Iterator:
    """Its driver keeps an event loop running in this thread, in which no training can be started: that comes before."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(chromium, path: Path, width: int = 1280, scheme: str = "light") -> Iterator:
    """The page, drawn; on the way out it must have been quiet, and alone."""
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page, heard = context.new_page(), []
    page.on("console", lambda message: heard.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: heard.append(f"error: {error}"))
    page.on("request", lambda request: heard.append(f"request: {request.url}") if _is_elsewhere(request.url) else None)
    try:
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-step]", state="attached")
        yield page
        assert heard == []
    finally:
        context.close()


def _is_elsewhere(url: str) -> bool:
    return not url.startswith(("file:", "data:", "blob:"))


@pytest.fixture(scope="module")
def page(chromium, compared) -> Iterator:
    """One for all tests that say themselves what they want to see."""
    with opened(chromium, compared / "report.html") as page:
        yield page


def choose(page, selector: str, value: str) -> None:
    page.select_option(selector, value)
    if selector == "#step":
        page.wait_for_selector(f'html[data-step="{value}"]', state="attached")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_all_pictures_are_drawn_within_the_width(chromium, compared, width, scheme):
    with opened(chromium, compared / "report.html", width, scheme) as page:
        assert page.locator(".js-plotly-plot").count() == 4 * 3 + 1
        assert page.locator("#timeline .barlayer .point").count() > 100
        assert page.locator("#occupancy .scatterlayer .trace").count() == 9
        assert page.locator("#phases .barlayer .point").count() >= 6 * (5 + 6 + 7)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        for plot in page.locator(".js-plotly-plot").all():
            assert plot.bounding_box()["width"] <= width


def test_figures_shown_are_those_recomputed_from_the_events(page, compared):
    folders = sorted(folder for folder in compared.iterdir() if folder.is_dir())
    recomputed = [run_figures(folder / "events.jsonl") for folder in folders]
    assert page.locator(".figures thead th").all_inner_texts() == ["grpo", "dygs", "adaseg"]
    compared_figures = 0
    for column, figures in enumerate(recomputed):
        for cell in page.locator(f".figures tbody tr td:nth-child({column + 2})").all():
            key, shown = cell.get_attribute("data-figure"), cell.get_attribute("data-value")
            if key in figures:
                assert float(shown) == figures[key], key
                compared_figures += 1
    assert compared_figures >= 3 * 13
    tokens = page.locator('td[data-figure="tokens"]').all_inner_texts()
    assert tokens == [f"{figures['tokens']:,}" for figures in recomputed]


def test_it_opens_at_the_longest_tail_and_the_selectors_work_from_the_keyboard(chromium, compared):
    with opened(chromium, compared / "report.html") as page:
        tails = page.evaluate(
            "[...document.getElementById('step').options].map((o) => parseFloat(o.text.split('tail ')[1]))"
        )
        first = page.input_value("#step")
        assert tails[int(first) - 1] == max(tails)
        choose(page, "#step", "1")
        assert page.is_disabled("#earlier")
        page.focus("#later")
        page.keyboard.press("Enter")
        page.wait_for_selector('html[data-step="2"]', state="attached")
        page.focus("#step")
        page.keyboard.press("ArrowDown")
        page.wait_for_selector('html[data-step="3"]', state="attached")
        for selector in ("#earlier", "#step", "#later", "#run", "#group"):
            page.focus(selector)
            assert page.evaluate("document.activeElement.id") == selector[1:]


def test_a_run_that_has_not_come_so_far_says_so(page):
    choose(page, "#step", "7")
    notes = page.locator("#timeline h3 small").all_inner_texts()
    assert notes[:2] == ["has no such step"] * 2
    assert "of 24 slots used" in notes[2]


def test_a_group_is_drawn_with_its_forks(chromium, compared):
    with opened(chromium, compared / "report.html") as page:
        label = page.locator("#group option").first.inner_text()
        members, forks = map(int, re.search(r"(\d+) members, (\d+) forked", label).groups())
        assert forks >= 1
        assert page.locator("#tree .barlayer .point").count() == members
        assert page.locator("#tree .shapelayer path").count() == forks
        choose(page, "#run", "0")  # the one without
        choose(page, "#group", page.locator("#group option").last.get_attribute("value"))
        assert page.locator("#tree .barlayer .point").count() == 8
        assert page.locator("#tree .shapelayer path").count() == 0


def test_what_a_model_wrote_is_shown_and_not_run(page):
    choose(page, "#step", "2")
    assert page.locator("#prompt").inner_text() == HOSTILE
    plot = page.locator("#timeline .js-plotly-plot").first
    plot.scroll_into_view_if_needed()
    box = plot.locator(".barlayer .point").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    label = page.locator("#timeline .hoverlayer .hovertext").first
    label.wait_for()
    assert "</script><script>" in label.text_content()
    assert "tokens" in label.text_content()
    assert page.locator("img, #timeline script").count() == 0
    assert page.title() == "untail: grpo, dygs, adaseg"


def test_a_real_run_from_a_real_training(chromium, trained):
    folder, _ = trained
    outcome = untail("report", folder, "--out", folder / "mine.html", "--json")
    assert outcome.code == 0, outcome.err
    figures = run_figures(folder / "events.jsonl")
    with opened(chromium, folder / "mine.html") as page:
        ett = page.locator('td[data-figure="ett"]').get_attribute("data-value")
        assert float(ett) == figures["ett"]
        choose(page, "#step", "4")
        assert "=?" in page.locator("#prompt").inner_text()  # the tiny model's sums
        assert page.locator("#timeline .barlayer .point").count() >= 16


@pytest.mark.slow
def test_fifty_steps_of_three_recipes_fit_in_15_megabytes(chromium, tmp_path):
    """50 steps of 256 responses, no two texts the same, and that three times."""
    run = Lively(slots=128, groups=32, size=8)
    for step in range(1, 51):
        run.step(step)
    draw = random.Random(0)
    for event in run.log.events:
        if "text" in event:
            event["text"] = f"{draw.getrandbits(320):0160,d}"[:160]
    first = run.write(tmp_path / "1-first-seed0").parent
    for name in ("2-second-seed0", "3-third-seed0"):
        shutil.copytree(first, tmp_path / name)
    outcome = untail("report", tmp_path, "--json")
    assert outcome.code == 0, outcome.err
    path = Path(outcome.json["path"])
    assert path.stat().st_size < 15e6
    with opened(chromium, path) as page:
        assert page.locator("#step option").count() == 50
        assert page.locator("#timeline .barlayer .point").count() > 3 * 256


WRONG = {
    "no such run": (["nowhere"], "RUN nowhere: there is no such folder"),
    "no run in it": (["empty"], "RUN empty holds no run"),
    "no events": (["begun"], "holds no event"),
    "another schema": (["other"], "has events of schema 99"),
    "nothing named": ([], "Missing argument"),
}


@pytest.mark.parametrize("case", WRONG)
def test_one_sentence_and_exit_2(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, content in (("begun", ""), ("other", '{"e": "run", "t": 0, "schema": 99, "concurrency": 4}\n')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "events.jsonl").write_text(content)
    (tmp_path / "empty").mkdir()
    arguments, sentence = WRONG[case]
    outcome = untail("report", *arguments)
    assert outcome.code == 2, outcome.err
    assert sentence in outcome.err
    assert "Traceback" not in outcome.err
    assert not list(tmp_path.rglob("*.html"))
