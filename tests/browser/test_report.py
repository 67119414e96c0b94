"""The pages of `robolearn report` in a browser, at the widths of a laptop and of a phone, without a network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from robolearn import config
from robolearn.cli import main
from robolearn.training.train import train
from tests.browser.waiting import until
from tests.commands.runs import make_run

DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
SIZES = pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])


@pytest.fixture(scope="module")
def run_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a real training of a few iterations."""
    folder = tmp_path_factory.mktemp("report") / "run"
    small = ["num_envs=16", "max_iterations=6", "learner.actor_hidden=[8]", "learner.critic_hidden=[8]"]
    train(config.resolve(["task=cartpole_balance", *small, f"output={folder}"]))
    assert main(["eval", str(folder), "--episodes", "4", "task.episode_length_s=0.2"]) == 0
    assert main(["report", str(folder)]) == 0
    return folder / "report.html"


@pytest.fixture(scope="module")
def compare_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two groups, of two runs and of one."""
    folder = tmp_path_factory.mktemp("compare")
    more = {"metric/error": 0.5, "loss/value": 1.0}
    runs = [
        make_run(folder / "a", [1.0, 2.0, 3.0], seed=1, **more),
        make_run(folder / "b", [2.0, 3.0, 4.0], seed=2, **more),
        make_run(folder / "c", [0.0, 1.0, 1.5], "learner.gamma=0.9", seed=1, **more),
    ]
    out = folder / "compare.html"
    assert main(["report", "--compare", *map(str, runs), "--output", str(out)]) == 0
    return out


@contextmanager
def opened(chromium: Any, path: Path, size: dict[str, int], **settings: Any) -> Iterator[Any]:
    """The page in a new tab; at the end it must have asked for nothing outside of itself and complained of nothing."""
    context = chromium.new_context(viewport=size, **settings)
    page = context.new_page()
    asked: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on(
        "console", lambda line: complaints.append(line.text) if line.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(path.as_uri())
    yield page
    context.close()
    assert [url[:80] for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert complaints == []


def show_first(page: Any) -> Any:
    """The first curves, drawn: they are not before they come into view."""
    plot = page.locator(".plot").first
    plot.scroll_into_view_if_needed()
    plot.locator(".main-svg").first.wait_for(state="attached")
    return plot


def show_all(page: Any) -> None:
    """Open every fold and scroll through the page, so that every curve is drawn."""
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    for plot in page.query_selector_all(".plot"):
        plot.scroll_into_view_if_needed()
        plot.wait_for_selector(".main-svg", state="attached")


@SIZES
def test_the_page_of_a_run_opens_from_a_file_and_draws_every_curve(chromium, run_page, size):
    with opened(chromium, run_page, size) as page:
        show_all(page)
        count = page.locator(".plot").count()
        assert count > 15
        for i in range(count):
            lines = page.locator(".plot").nth(i).locator(".scatterlayer path.js-line, .scatterlayer .point")
            assert lines.count() > 0, page.locator(".plot figcaption").nth(i).inner_text()


@SIZES
def test_no_page_scrolls_sideways(chromium, run_page, compare_page, size):
    for path in (run_page, compare_page):
        with opened(chromium, path, size) as page:
            show_all(page)
            assert page.evaluate("document.documentElement.scrollWidth") == size["width"]


def test_a_wide_table_scrolls_by_itself_on_a_phone(chromium, compare_page):
    with opened(chromium, compare_page, PHONE) as page:
        box = page.locator("#runs .scroll").last
        assert box.evaluate(
            "(e) => e.scrollWidth > e.clientWidth && getComputedStyle(e).overflowX === 'auto'"
        )


@SIZES
def test_a_link_of_the_navigation_leads_to_its_section_below_the_bar(chromium, run_page, size):
    with opened(chromium, run_page, size, reduced_motion="reduce") as page:
        for name in ("evaluation", "rewards"):
            page.locator(f"nav a[href='#{name}']").click()
            until(page, f"document.querySelector('nav a.here').hash === '#{name}'")
            bar = page.locator("nav").bounding_box()
            heading = page.locator(f"#{name} h2").bounding_box()
            assert heading["y"] >= bar["y"] + bar["height"]
            assert heading["y"] < size["height"]


@SIZES
def test_the_switch_of_the_axis_changes_axis_title_and_points(chromium, compare_page, size):
    with opened(chromium, compare_page, size) as page:
        title = show_first(page).locator(".xtitle")
        assert title.text_content() == "environment steps"
        x = "document.querySelector('.plot .canvas').data.map((trace) => trace.x[trace.x.length - 1])"
        assert page.evaluate(x) == [
            300,
            300,
            300,
            300,
        ]  # two edges of the band, the mean, and the other group
        page.select_option("#axis", "seconds")
        until(page, "document.querySelector('.plot .xtitle').textContent === 'wall time [min]'")
        assert page.evaluate(x) == [3, 3, 3, 3]  # minutes


@SIZES
def test_the_legend_names_the_groups_and_hides_one(chromium, compare_page, size):
    with opened(chromium, compare_page, size) as page:
        plot = show_first(page)
        buttons = plot.locator(".legend button")
        assert buttons.all_inner_texts() == ["A", "B"]
        names = "document.querySelector('.plot .canvas').data.filter((t) => t.name).map((t) => t.name)"
        assert page.evaluate(names) == ["A", "B"]
        buttons.first.click()
        assert buttons.first.get_attribute("aria-pressed") == "false"
        assert page.evaluate(names) == ["B"]
        buttons.last.click()
        assert page.evaluate(names) == []  # the first stays hidden
        buttons.first.click()
        assert page.evaluate(names) == ["A"]
        buttons.last.click()
        assert page.evaluate(names) == ["A", "B"]


def test_a_group_of_several_seeds_has_a_band_from_its_lowest_to_its_highest(chromium, compare_page):
    with opened(chromium, compare_page, DESKTOP) as page:
        show_first(page)
        low, high, mean, other = page.evaluate("document.querySelector('.plot .canvas').data.map((t) => t.y)")
        assert (low[0], low[-1]) == (1, 3)
        assert (high[0], high[-1]) == (2, 4)
        assert (mean[0], mean[-1]) == (1.5, 3.5)
        assert other == [0, 1, 1.5]
        assert page.locator(".plot").first.locator("path.js-fill").count() == 1


def test_colours_follow_the_scheme_of_the_system(chromium, run_page):
    with opened(chromium, run_page, DESKTOP, color_scheme="light") as page:
        show_first(page)
        back = "getComputedStyle(document.body).backgroundColor"
        line = "document.querySelector('.plot .canvas').data[0].line.color"
        light = page.evaluate(f"[{back}, {line}]")
        page.emulate_media(color_scheme="dark")
        until(page, f"{line} !== '{light[1]}'")
        assert page.evaluate(back) != light[0]


def test_a_setting_that_closes_a_script_is_shown_and_not_run(chromium, tmp_path):
    evil = "</script><script>document.title = 'taken'</script><b>bold</b>"
    run = make_run(tmp_path / "run", [1.0, 2.0], **{f"reward/{evil}": 0.5})
    path = run / "config.yaml"
    path.write_text(path.read_text().replace("device: auto", f'device: "{evil}"'))
    assert main(["report", str(run), "--no-stills"]) == 0
    with opened(chromium, run / "report.html", DESKTOP) as page:
        show_all(page)
        assert page.title() == "cartpole_balance"
        assert page.locator("b").count() == 0
        assert evil in page.locator("#configuration code").text_content()
