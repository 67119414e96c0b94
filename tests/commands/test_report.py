"""`robolearn report`: the page of a run, of damaged runs, and of several runs compared."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from robolearn.cli import main
from robolearn.commands import exits
from robolearn.commands.report import compare, curves, pictures, reading, results, statistics
from robolearn.commands.report.blocks import BAD, GOOD, UNKNOWN
from robolearn.commands.report.page import plotly_js
from robolearn.commands.report.report import report
from robolearn.errors import MissingError
from robolearn.files import locked
from robolearn.learners import saved
from robolearn.simulation import sim2sim
from robolearn.training import origin
from tests.commands.runs import make_run
from tests.simulation.test_sim2sim import side

CAUSE = {"name": "delay", "excluded": True, "evidence": ""}


class Content(HTMLParser):
    """The text of a page by tag, and the addresses that it names."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.addresses: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text(encoding="utf-8").replace(plotly_js(), ""))  # it is long

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.texts.setdefault(tag, []).append("")
        values = dict(attributes)
        self.addresses += [values[name] or "" for name in ("src", "href") if name in values]
        self.ids |= {values["id"] or ""} if "id" in values else set()

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        for tag in self.open:
            self.texts[tag][-1] += data

    def text(self, tag: str = "body") -> str:
        return " ".join(self.texts.get(tag, []))

    @property
    def data(self) -> dict:
        return json.loads(self.texts["script"][0])


def ask(*words: object) -> int:
    return main([str(word) for word in words])


def page(run: Path | str, *words: object) -> Content:
    """The page that the command writes about a run, without stills."""
    out = Path("page.html")
    assert ask("report", run, "--no-stills", "--output", out, *words) == 0
    return Content(out)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# ---------------------------------------------------------------------- the page of a run


def test_the_page_of_a_training_has_its_curves_terms_settings_and_versions(trained):
    made = page(trained)
    assert {
        "overview",
        "learning",
        "rewards",
        "episodes",
        "losses",
        "time",
        "terms",
        "configuration",
    } <= made.ids
    rows = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    x = made.data["x"]
    assert x["steps"] == [row["steps"] for row in rows]
    assert x["seconds"] == pytest.approx([row["seconds"] / 60 for row in rows], rel=1e-6)
    titles = {figure["title"]: figure for figure in made.data["figures"]}
    (curve,) = titles["reward of a step"]["traces"]
    assert curve["y"] == pytest.approx([row["reward/total"] for row in rows], rel=1e-5)
    terms = {trace["name"] for trace in titles["weighted, mean of a step"]["traces"]}
    assert "upright" in terms
    assert (trained / "config.yaml").read_text() in made.texts["code"]
    assert "cartpole_balance" in made.text("h1")
    assert "robolearn eval" in made.text()  # there is no metrics.json yet, and the page says how to write one


def test_the_page_names_no_address_outside_of_itself(trained):
    made = page(trained)
    outside = [address for address in made.addresses if not address.startswith(("#", "data:"))]
    assert outside == []
    assert "default-src 'none'" in Path("page.html").read_text()


def test_the_page_is_written_to_the_run_folder_unless_another_file_is_named(trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    assert ask("report", run, "--no-stills") == 0
    assert (run / "report.html").is_file()


def test_a_page_of_a_page_does_not_grow(trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    sizes = []
    for _ in range(2):
        assert ask("report", run, "--no-stills") == 0
        sizes.append((run / "report.html").stat().st_size)
    assert abs(sizes[1] - sizes[0]) < 100


def test_a_shipped_policy_has_a_page_without_curves():
    made = page("pretrained:humanoid_walk")
    assert "rewards" not in made.ids
    assert "axis" not in made.ids
    assert "learner.skip_events=false" in made.text()  # of the commands in its made.json
    assert not (saved.PRETRAINED / "humanoid_walk" / "report.html").exists()


def test_the_page_of_a_checkpoint_is_that_of_its_run(trained):
    (first, *_) = sorted((trained / "checkpoints").iterdir())
    assert page(first).data == page(trained).data


@pytest.mark.slow
def test_stills_of_the_policy_are_part_of_the_page(trained):
    try:
        rows = pictures.film(reading.read(str(trained)))
    except MissingError as error:
        pytest.skip(str(error))
    assert [caption for _, caption in rows] == ["0 s", "1 s", "2.5 s", "5 s"]
    assert len({uri for uri, _ in rows}) == 4
    assert all(uri.startswith("data:image/jpeg;base64,") for uri, _ in rows)


def test_a_video_is_embedded_up_to_a_size_and_otherwise_named(tmp_path):
    run = make_run(tmp_path / "run", [1.0])
    (run / "play.mp4").write_bytes(b"not a real video")
    assert any(address.startswith("data:video/mp4;base64,") for address in page(run).addresses)
    with (run / "play.mp4").open("wb") as file:
        file.truncate(pictures.LARGEST_VIDEO + 1)
    made = page(run)
    assert not any(address.startswith("data:video") for address in made.addresses)
    assert "play.mp4" in made.text("p")


# ---------------------------------------------------------------------- hostile and damaged runs


def test_text_of_the_user_does_not_become_markup_or_script(tmp_path):
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"&"
    run = make_run(tmp_path / "run", [1.0, 2.0], **{f"reward/{evil}": 0.5})
    content = yaml.safe_load((run / "config.yaml").read_text())
    content["task"]["name"] = evil
    (run / "config.yaml").write_text(yaml.safe_dump(content))
    (run / "metrics.json").write_text(json.dumps({"metrics": {evil: 1.5}, "overrides": [evil]}))
    compared = comparison()
    compared["backends"]["a"]["measures"][evil] = 1.0  # type: ignore[index]
    compared["comparisons"] = {evil: {**compared["comparisons"]["b"], "causes": [CAUSE | {"evidence": evil}]}}  # type: ignore[index]
    (run / "sim2sim.json").write_text(json.dumps(compared))
    (run / "starts.json").write_text(json.dumps({"starts": [{"versions": {evil: evil}, "commit": evil}]}))
    made = page(run)
    assert len(made.texts["script"]) == 3  # the data, plotly.js and ours
    assert "img" not in made.texts
    assert evil.rpartition("/")[2].replace("_", " ") in [
        trace["name"] for figure in made.data["figures"] for trace in figure["traces"]
    ]
    assert evil in made.text("table")
    assert len(Content(Path("page.html")).texts["body"]) == 1


def test_an_incomplete_last_line_is_left_out_and_named(tmp_path):
    run = make_run(tmp_path / "run", [1.0, 2.0])
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 3, "steps": 30')
    made = page(run)
    assert made.data["x"]["steps"] == [100, 200]
    assert "incomplete" in made.text("li")


def test_lines_that_are_damaged_or_lack_a_column_leave_the_others(tmp_path):
    path = tmp_path / "metrics.jsonl"
    rows = [
        {"iteration": 1, "a": 1.0},
        {"iteration": 2, "a": 2.0, "b": 20.0, "c": "text", "d": True},
        {"iteration": 4},
    ]
    lines = [json.dumps(row) for row in rows]
    path.write_text(
        "\n".join([lines[0], "nonsense", lines[1], "[1]", "{}", '{"iteration": "x"}', lines[2]]) + "\n"
    )
    columns, notes = reading.read_columns(path)
    assert list(columns) == ["iteration", "a", "b"]
    np.testing.assert_array_equal(columns["iteration"], [1, 2, 4])
    np.testing.assert_array_equal(columns["a"], [1, 2, math.nan])
    np.testing.assert_array_equal(columns["b"], [math.nan, 20, math.nan])
    (note,) = notes
    assert "4 lines" in note
    assert "line 2" in note


@pytest.mark.parametrize("lost", ["metrics.jsonl", "latest.pt", "contract.json", "starts.json"])
def test_a_run_without_one_of_its_files_has_a_page(trained, tmp_path, lost):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    (run / lost).unlink(missing_ok=True)
    assert "configuration" in page(run).ids


@pytest.mark.parametrize(
    "damaged", ["metrics.jsonl", "config.yaml", "metrics.json", "starts.json", "sim2sim.json"]
)
@pytest.mark.parametrize("content", [b"", b"\x00\xff\xfe", b"[[[[", b"{}", b"[1, 2]", b"null"])
def test_a_damaged_file_leaves_a_page_of_the_rest(tmp_path, damaged, content):
    run = make_run(tmp_path / "run", [1.0, 2.0])
    (run / damaged).write_bytes(content)
    assert "overview" in page(run).ids


@pytest.mark.parametrize(
    "damage", [{"metrics": [1]}, {"overrides": 5}, {"return_mean": 1.0, "return_std": "x"}]
)
def test_an_evaluation_with_values_of_other_kinds_is_a_note(tmp_path, damage):
    run = make_run(tmp_path / "run", [1.0, 2.0])
    (run / "metrics.json").write_text(json.dumps({"episodes": 4, **damage}))
    made = page(run)
    assert "overview" in made.ids
    assert "metrics.json cannot be read" in made.text()


def test_a_folder_without_a_configuration_is_no_run(tmp_path, capsys):
    (tmp_path / "none").mkdir()
    assert ask("report", tmp_path / "none") == exits.BAD_INPUT
    assert "none" in capsys.readouterr().err
    assert ask("report", tmp_path / "absent") == exits.BAD_INPUT
    assert not list(tmp_path.glob("**/*.html"))


def test_a_run_that_is_training_now_is_named_as_such(tmp_path):
    run = make_run(tmp_path / "run", [1.0, 2.0], "max_iterations=5")
    program = (
        "import sys, pathlib; from robolearn.files import locked\n"
        "with locked(pathlib.Path(sys.argv[1])): print('locked', flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", program, str(run)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        made = page(run)
        process.communicate()
    assert "still training: iteration 2 of 5" in made.text("li")
    assert "2 of 5 iterations: it was stopped" in page(run).text("li")


def test_a_training_that_had_nothing_left_to_improve_was_not_stopped(tmp_path):
    run = make_run(tmp_path / "run", [1.0, 2.0], "max_iterations=5")
    origin.record_start(run, 0, {})
    assert "2 of 5 iterations" in page(run).text("li")
    origin.record_finish(run, 2)
    assert "2 of 5 iterations" not in page(run).text("li")
    origin.record_start(run, 2, {})  # it was resumed, and stopped
    assert "2 of 5 iterations" in page(run).text("li")


def test_files_that_are_being_written_are_no_results_of_a_run(tmp_path):
    run = make_run(tmp_path / "run", [1.0])
    for name in (".play.7.part.mp4", ".metrics.7.part.json"):
        (run / name).write_text("{}")
    found = reading.read(str(run))
    assert found.video is None
    assert not [name for name in found.results if "part" in name]


def test_reading_a_run_takes_no_lock(tmp_path):
    run = make_run(tmp_path / "run", [1.0])
    page(run)
    assert not (run / ".lock").exists()
    with locked(run):
        pass


def test_a_task_from_a_file_is_run_only_where_it_is_named(tmp_path):
    task = tmp_path / "mine.py"
    task.write_text(
        "from dataclasses import dataclass\nfrom pathlib import Path\n"
        "from robolearn.tasks.cartpole import CartpoleBalance\n"
        f"Path({str(tmp_path / 'ran')!r}).touch()\n"
        "@dataclass\nclass Mine(CartpoleBalance):\n    '''A task.'''\n"
    )
    run = make_run(tmp_path / "run", [1.0])
    content = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(content.replace("name: cartpole_balance", f"name: {task}:Mine"))
    assert "Mine" in page(run).text("p")
    assert not (tmp_path / "ran").exists()
    assert "upright" in page(run, f"task={task}:Mine").text("table")
    assert (tmp_path / "ran").exists()


def test_settings_do_not_change_a_report(tmp_path, capsys):
    run = make_run(tmp_path / "run", [1.0])
    assert ask("report", run, "seed=3") == exits.BAD_INPUT
    assert "seed=3" in capsys.readouterr().err


def test_without_plotly_one_line_says_what_to_install(tmp_path, monkeypatch, capsys):
    run = make_run(tmp_path / "run", [1.0])
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    assert ask("report", run) == exits.MISSING
    assert "robolearn[report]" in capsys.readouterr().err
    with pytest.raises(MissingError):
        report(str(run))
    assert not list(tmp_path.glob("**/*.html"))


def test_a_folder_as_output_is_refused(tmp_path):
    run = make_run(tmp_path / "run", [1.0])
    assert ask("report", run, "--no-stills", "--output", tmp_path) == exits.BAD_INPUT


# ---------------------------------------------------------------------- curves


def test_a_point_of_a_curve_is_the_mean_of_its_iterations():
    # 5 values, at most 2 points: 3 values a point.
    np.testing.assert_allclose(curves.binned(np.array([1.0, 2, 3, 4, 5]), 2), [2, 4.5])
    np.testing.assert_allclose(
        curves.binned(np.array([1.0, math.nan, 3, math.nan, math.nan]), 2), [2, math.nan]
    )
    np.testing.assert_allclose(curves.binned(np.array([1.0, 2]), 2), [1, 2])


def test_final_values_are_means_of_the_last_tenth(tmp_path):
    run = reading.read(str(make_run(tmp_path / "run", [0.0] * 18 + [3.0, 5.0])))
    assert run.final("episode/return") == 4.0
    assert run.final("nothing") is None
    assert run.last("episode/return") == 5.0


# ---------------------------------------------------------------------- results of other commands


def test_the_evaluation_is_a_column_of_the_page(trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    assert ask("eval", run, "--episodes", 8, "task.episode_length_s=0.2") == 0
    assert ask("eval", run, "--episodes", 8, "task.episode_length_s=0.2", "--output", run / "again") == 0
    found = json.loads((run / "metrics.json").read_text())
    text = page(run).text("table")
    assert f"{100 * found['survival_rate']:.1f} %" in text
    assert "again/metrics.json" in text
    assert "task.episode_length_s=0.2" in text


def rows_of(block):
    return [[c if isinstance(c, str) else c.text for c in row] for row in block.rows]


def comparison() -> dict[str, object]:
    """What `robolearn eval --backend a,b` writes."""
    other = side("b")
    other.episodes = {name: values + 0.25 for name, values in other.episodes.items()}
    other.facts = {**other.facts, "derived_lag": 0}
    found = sim2sim.compare(side(), other)
    content: dict[str, object] = json.loads(json.dumps(sim2sim.content(side(), [found], [other])))
    return content


def test_a_comparison_of_simulators_is_a_table_with_gaps_and_causes():
    table, lines = results.compared(comparison())
    assert list(table.head) == ["measure", "a", "b: difference (95 %)"]
    assert rows_of(table) == [
        ["survival", "0.75", "+0.25 (+0.25 to +0.25)"],
        ["torque", "0.2333", "+0.25 (+0.25 to +0.25), measured one physics step apart"],
    ]
    assert [row[-1].mark for row in table.rows] == [BAD, UNKNOWN]
    assert lines.rows[0].text == "b survives 1.333 times as often as a"
    assert {line.mark for line in lines.rows[1:]} == {GOOD}


def test_a_damaged_comparison_is_shown_as_names_and_values():
    (table,) = results.compared({"reference": "a", "comparisons": [{"a": 1.5}], "note": "text"})
    assert rows_of(table) == [["reference", "a"], ["comparisons.0.a", "1.5"], ["note", "text"]]


def test_a_junit_report_in_the_run_folder_is_a_table(tmp_path):
    run = make_run(tmp_path / "run", [1.0])
    (run / "sim.xml").write_text(
        "<testsuites><testsuite><testcase classname='sim' name='finite'/>"
        "<testcase name='fast'><failure message='0.5 &lt; 1'/></testcase>"
        "<testcase name='gpu'><skipped/></testcase></testsuite></testsuites>"
    )
    assert reading.junit(run / "sim.xml") == [
        ("sim.finite", "passed", ""),
        ("fast", "failed", "0.5 < 1"),
        ("gpu", "skipped", ""),
    ]
    assert "sim.finite" in page(run).text("td")


@pytest.mark.parametrize(
    "text",
    ["<!DOCTYPE a [<!ENTITY b 'c'>]><testsuite/>", "<robot/>", "<testsuite", "", "\x00"],
    ids=["entities", "another kind", "cut off", "empty", "binary"],
)
def test_xml_that_is_no_junit_report_is_left_out(tmp_path, text):
    (tmp_path / "a.xml").write_text(text)
    assert reading.junit(tmp_path / "a.xml") is None


@pytest.mark.slow
def test_a_bundle_is_shown_with_the_answers_of_its_report(trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    small = ["--starts", 4, "--seconds", 0.1, "--measure-seconds", 0.2]
    assert ask("export", run, *small) == 0
    made = page(run)
    assert "Is it the trained policy?" in made.text("th")
    assert "onnxruntime, whole step, paced" in made.text("th")
    assert "at least 500 needed" in made.text("li")


# ---------------------------------------------------------------------- statistics


def test_the_interval_of_a_mean_is_students():
    # s = 1, t(0.975, 2) = 4.302653: half the width is 4.302653 / sqrt(3) = 2.484138.
    found = statistics.mean_of([1.0, 2.0, 3.0])
    assert (found.mean, found.count) == (2.0, 3)
    assert (found.low, found.high) == pytest.approx((2 - 2.484138, 2 + 2.484138), abs=1e-6)
    assert math.isnan(statistics.mean_of([5.0]).low)


def test_welchs_test_of_groups_that_vary_alike():
    # The difference is 3, its error sqrt(1/3 + 1/3), t = 3.674235 with 4 degrees of freedom. There
    # F(t) = 1/2 + 3/8 u (1 - u^2 / 12) with u = t / sqrt(1 + t^2 / 4) = 1.756620: F = 0.989344, p = 2 (1 - F).
    found = statistics.welch([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
    assert found.difference == 3.0
    assert found.p == pytest.approx(0.021312, abs=2e-6)
    # t(0.975, 4) = 2.776445, times 0.816497.
    assert (found.low, found.high) == pytest.approx((3 - 2.266958, 3 + 2.266958), abs=1e-6)


def test_welchs_test_of_groups_that_vary_differently():
    # Only one group varies: 2 degrees of freedom; t = 3 / sqrt(1/3), F(t) = 1/2 + t / (2 sqrt(2 + t^2)) = 0.982451.
    found = statistics.welch([2.0, 2.0, 2.0], [4.0, 5.0, 6.0])
    assert found.p == pytest.approx(2 * (1 - (0.5 + 27**0.5 / (2 * 29**0.5))), rel=1e-9)
    assert math.isnan(statistics.welch([1.0, 1.0], [2.0, 2.0]).p)


def test_holms_correction():
    # In order: 3 x 0.01, 2 x 0.03, then 1 x 0.04, which may not be below the one before.
    assert statistics.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert statistics.holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])
    first, second = statistics.holm([math.nan, 0.02])
    assert math.isnan(first)
    assert second == 0.02  # a test that was not made does not count


# ---------------------------------------------------------------------- comparisons


def read_all(*folders: Path) -> list[reading.RunData]:
    return [reading.read(str(folder)) for folder in folders]


def test_runs_that_differ_only_by_the_seed_are_one_group(tmp_path):
    runs = read_all(
        make_run(tmp_path / "a", [1.0], seed=1),
        make_run(tmp_path / "b", [1.0], "learner.learning_rate=2e-3", seed=1),
        make_run(tmp_path / "c", [1.0], "checkpoint_interval=7", seed=2),
        make_run(tmp_path / "d", [1.0, 2.0], seed=2),
    )
    first, second = compare.grouped(runs)
    assert [run.folder.name for run in first.runs] == ["a", "d"]
    assert [run.folder.name for run in first.repeated] == ["c"]  # of one seed the longest run is counted
    assert [run.folder.name for run in second.runs] == ["b"]
    assert (first.letter, second.letter) == ("A", "B")
    assert second.label == "learner.learning_rate=0.002"
    assert compare.varying_settings([first, second]) == ["learner.learning_rate"]


def test_runs_without_a_column_of_episodes_have_a_comparison_without_them():
    groups = [SimpleNamespace(letter=letter, runs=[None]) for letter in "AB"]
    (table, *_) = compare.compared(groups, {}, set())
    assert table.rows == []


def test_the_band_spans_the_seeds_up_to_the_end_of_the_shortest(tmp_path):
    # Returns at 100, 200, 300 steps and at 100, 200.
    runs = read_all(
        make_run(tmp_path / "a", [0.0, 2.0, 4.0], seed=1), make_run(tmp_path / "b", [2.0, 6.0], seed=2)
    )
    found = compare.band(runs, "episode/return", "steps")
    assert (found["x"][0], found["x"][-1]) == (100, 200)
    assert [found[name][0] for name in ("low", "y", "high")] == [0, 1, 2]
    assert [found[name][-1] for name in ("low", "y", "high")] == [2, 4, 6]
    minutes = compare.band(runs, "episode/return", "seconds")
    assert (minutes["x"][0], minutes["x"][-1]) == (1, 2)  # minutes
    assert compare.band(runs, "nothing", "steps") == {}
    assert set(compare.band(runs[:1], "episode/return", "steps")) == {"x", "y"}


def blocks_of(section, kind):
    return [block for block in section.blocks if block.kind == kind]


def seeds(tmp_path, name, values, *words, **more):
    return [
        make_run(tmp_path / f"{name}{i}", [value], *words, seed=i, **more) for i, value in enumerate(values)
    ]


def test_groups_that_differ_beyond_chance_are_named(tmp_path):
    # Three seeds each: returns differ as in the test of Welch's test (p = 0.0213), the lengths do not vary at all.
    a = seeds(tmp_path, "a", [1.0, 2.0, 3.0], **{"episode/length": 5.0})
    b = seeds(tmp_path, "b", [4.0, 5.0, 6.0], "learner.gamma=0.9", **{"episode/length": 5.0})
    section = compare.final(compare.grouped(read_all(*a, *b)))
    means, tests = blocks_of(section, "table")
    assert rows_of(means)[0] == ["return of an episode", "2 (-0.4841 to 4.484)", "5 (2.516 to 7.484)"]
    returned, length = rows_of(tests)
    assert returned == ["return of an episode", "B - A", "3", "0.733 to 5.267", "0.0213", "0.0213", "differ"]
    assert length[-1] == "no seed varies: cannot be tested"
    assert "5 %" in tests.caption
    assert blocks_of(section, "lines") == []


def test_the_correction_counts_every_test_of_the_page(tmp_path):
    # Three groups: three pairs; the smallest p, 0.0213, becomes 3 x 0.0213 = 0.0639, which is not beyond chance.
    a = seeds(tmp_path, "a", [1.0, 2.0, 3.0])
    b = seeds(tmp_path, "b", [4.0, 5.0, 6.0], "learner.gamma=0.9")
    c = seeds(tmp_path, "c", [2.5, 3.5, 4.5], "learner.gamma=0.8")
    _, tests = blocks_of(compare.final(compare.grouped(read_all(*a, *b, *c))), "table")
    pairs = {row[1]: row for row in rows_of(tests)}
    assert set(pairs) == {"B - A", "C - A", "C - B"}
    assert pairs["B - A"][5:] == ["0.0639", "not shown"]


def test_with_few_seeds_nothing_is_said(tmp_path):
    a = seeds(tmp_path, "a", [1.0, 2.0, 3.0])
    b = seeds(tmp_path, "b", [100.0, 101.0], "learner.gamma=0.9")
    section = compare.final(compare.grouped(read_all(*a, *b)))
    assert len(blocks_of(section, "table")) == 1
    (lines,) = blocks_of(section, "lines")
    assert "Nothing can be said" in lines.rows[0].text
    assert "group B " in lines.rows[0].text


def test_returns_of_other_rewards_are_not_tested(tmp_path):
    a = seeds(tmp_path, "a", [1.0, 2.0, 3.0], **{"episode/length": 5.0})
    b = seeds(tmp_path, "b", [4.0, 5.0, 6.0], "task.rewards.effort=-0.5", **{"episode/length": 5.0})
    groups = compare.grouped(read_all(*a, *b))
    _, tests = blocks_of(compare.final(groups), "table")
    assert [row[0] for row in rows_of(tests)] == ["episode length"]
    assert any("task.rewards.effort" in block.text for block in blocks_of(compare.curves_of(groups), "text"))


def test_evaluations_are_compared_too(tmp_path):
    a, b = seeds(tmp_path, "a", [1.0, 2.0])
    for run, value in ((a, 0.9), (b, 1.0)):
        (run / "metrics.json").write_text(
            json.dumps({"survival_rate": value, "seed": 1, "metrics": {"foot": None}})
        )
    section = compare.final(compare.grouped(read_all(a, b)))
    *_, table = blocks_of(section, "table")
    # s = 0.0707107, t(0.975, 1) = 12.7062: half the width is 12.7062 x 0.0707107 / sqrt(2) = 0.63531.
    assert rows_of(table) == [["survival rate", "0.95 (0.3147 to 1.585)"]]


def test_evaluations_under_other_conditions_are_not_tested(tmp_path):
    a = seeds(tmp_path, "a", [1.0, 2.0, 3.0])
    b = seeds(tmp_path, "b", [1.0, 2.0, 3.0], "learner.gamma=0.9")
    for i, run in enumerate([*a, *b]):
        (run / "metrics.json").write_text(json.dumps({"survival_rate": float(i), "backend": "mujoco"}))
    groups = compare.grouped(read_all(*a, *b))
    assert compare.conditions(groups) == []
    assert blocks_of(compare.final(groups), "table")[-1].head[-1] == "beyond chance"
    (b[0] / "metrics.json").write_text(json.dumps({"survival_rate": 3.0, "backend": "mujoco_warp"}))
    groups = compare.grouped(read_all(*a, *b))
    section = compare.final(groups)
    assert blocks_of(section, "table")[-1].head == ("", "A (3)", "B (3)")
    assert "backend" in blocks_of(section, "lines")[-1].rows[0].text


def test_the_command_writes_a_page_with_differences_and_members(tmp_path):
    a, b = make_run(tmp_path / "a", [1.0, 2.0]), make_run(tmp_path / "b", [2.0, 3.0], "learner.gamma=0.9")
    empty = make_run(tmp_path / "empty", [])
    assert ask("report", "--compare", a, b, empty) == 0
    made = Content(tmp_path / "compare.html")
    assert made.ids >= {"runs", "curves", "final", "settings", "axis"}
    assert "learner.gamma" in made.text("th")
    assert re.search(r"empty.* left out", made.text("li"))
    assert [name for name, _ in made.data["axes"]] == ["steps", "seconds"]


@pytest.mark.parametrize("case", ["one", "twice", "absent", "setting", "no curves"])
def test_what_cannot_be_compared_is_refused_in_one_line(tmp_path, capsys, case):
    run, empty = make_run(tmp_path / "run", [1.0]), make_run(tmp_path / "empty", [])
    other = make_run(tmp_path / "other", [])
    words = {
        "one": [run],
        "twice": [run, tmp_path / "." / "run"],
        "absent": [run, tmp_path / "absent"],
        "setting": [run, "seed=3"],
        "no curves": [empty, other],
    }[case]
    assert ask("report", "--compare", *words) == exits.BAD_INPUT
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not list(tmp_path.glob("*.html"))


def test_a_name_of_a_group_is_short_however_many_settings_differ(tmp_path):
    a = make_run(tmp_path / "a", [1.0])
    b = make_run(
        tmp_path / "b", [1.0], "learner.gamma=0.9", "learner.lam=0.9", "learner.clip=0.3", "num_envs=7"
    )
    first, second = compare.grouped(read_all(a, b))
    assert "and 1 more" in second.label
    assert first.label != second.label
