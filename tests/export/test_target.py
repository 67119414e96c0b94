"""Export targets: marks and sources of figures, recognition of boards, errors in files."""

import math
import re
from pathlib import Path

import pytest

from robolearn.errors import ConfigError
from robolearn.export import target as targets
from robolearn.export.target import MARKS, Budget, Figure, here, load, names

SHIPPED = names()
JETSONS = [name for name in SHIPPED if name != "host"]
SOURCES = Path(targets.__file__).parent / "targets"

MINE = """\
schema: 1
title: my board
family: mine
detect: [My Board]
step_us: {value: 20, mark: measured, source: a clock}
cpu:
  fixed_us: {value: 0, mark: assumed, source: none known}
  fp32_gflops: {value: 10, mark: measured, source: a loop}
  memory_bandwidth_gbs: {value: 5, mark: measured, source: a loop}
budget:
  p50: {value: 0.1, mark: assumed, source: mine}
  p99: {value: 0.2, mark: assumed, source: mine}
  max: {value: 0.5, mark: assumed, source: mine}
  jitter: {value: 0.1, mark: assumed, source: mine}
"""


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "my-board.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_shipped_targets() -> None:
    assert names() == [
        "host",
        "jetson-agx-orin",
        "jetson-orin-nano",
        "jetson-orin-nx",
        "jetson-thor",
        "jetson-thor-t4000",
    ]


@pytest.mark.parametrize("name", SHIPPED)
def test_every_figure_has_a_mark_and_a_source(name: str) -> None:
    figures = load(name).figures()
    assert {"budget.p50", "budget.p99", "budget.max", "budget.jitter"} <= set(figures)
    for key, figure in figures.items():
        assert figure.mark in MARKS, key
        assert len(figure.source) > 3, key
        assert figure.value > 0, key
    assert all(release.mark in MARKS and release.source for release in load(name).software)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_number_in_a_file_has_a_mark(name: str) -> None:
    text = (SOURCES / f"{name}.yaml").read_text(encoding="utf-8")
    bare = [line for line in text.splitlines() if re.search(r":\s*[\d.]+\s*(#.*)?$", line)]
    assert bare == ["schema: 1"]


def test_figures_equal_the_published_ones() -> None:
    thor, orin, nano = load("jetson-thor"), load("jetson-agx-orin"), load("jetson-orin-nano")
    assert thor.gpu
    assert orin.gpu
    assert nano.gpu
    assert thor.gpu.l2_mb
    assert thor.memory_gb
    assert (thor.gpu.fp32_tflops.value, thor.gpu.fp32_tflops.mark) == (6.4, "measured")
    assert (thor.gpu.fp16_tflops.value, thor.gpu.bf16_tflops.value) == (121, 135)
    assert (thor.peak["fp16_tflops"].value, thor.peak["fp16_tflops"].mark) == (258, "derived")
    # 257 GB/s was measured on a part with 14 SMs; this one has 20.
    assert (thor.gpu.memory_bandwidth_gbs.value, thor.gpu.memory_bandwidth_gbs.mark) == (257, "assumed")
    assert (orin.gpu.memory_bandwidth_gbs.value, orin.gpu.memory_bandwidth_gbs.mark) == (152.8, "measured")
    assert (orin.gpu.bf16_tflops.value, orin.gpu.bf16_tflops.mark) == (34, "measured")
    assert (nano.peak["memory_bandwidth_gbs"].value, nano.peak["memory_bandwidth_gbs"].mark) == (
        68,
        "assumed",
    )
    assert (thor.memory_gb.value, thor.gpu.l2_mb.value) == (128, 32)
    assert (thor.compute_capability, thor.aliases) == ("11.0", ("sm_110", "sm_101"))
    assert (orin.compute_capability, orin.aliases) == ("8.7", ("sm_87",))
    assert [release.jetpack for release in thor.software] == ["7.0", "7.1", "7.2", "7.2.2"]
    assert [release.jetpack for release in orin.software] == ["7.2", "7.2.2"]
    t4000 = load("jetson-thor-t4000")
    assert [release.jetpack for release in t4000.software] == ["7.1", "7.2", "7.2.2"]
    assert t4000.gpu
    assert t4000.gpu.l2_mb is None  # not published


@pytest.mark.parametrize("name", JETSONS)
def test_figures_measured_on_another_board_are_assumed(name: str) -> None:
    target = load(name)
    assert target.gpu
    assert target.cpu
    for part in ("kernel_launch_us", "graph_us", "graph_node_us", "copy_us", "wake_us"):
        assert getattr(target.gpu, part).mark == "assumed"
    assert {figure.mark for figure in vars(target.cpu).values()} == {"assumed"}
    assert target.step_us
    # runtime.py on an x86 core, and twice that for the slower cores of the Orins.
    assert (target.step_us.value, target.step_us.mark) == (161 if target.family == "thor" else 322, "assumed")
    assert target.budget.p50.source == "our choice; none is published"


@pytest.mark.parametrize("name", JETSONS)
def test_an_assumed_rate_is_its_peak_times_the_efficiency_it_states(name: str) -> None:
    target = load(name)
    assert target.gpu
    checked = 0
    for key, figure in vars(target.gpu).items():
        if figure and (stated := re.match(r"peak ([\d.]+) x ([\d.]+),", figure.source)):
            peak, efficiency = map(float, stated.groups())
            assert peak == target.peak[key].value
            # Rounded to two digits.
            assert math.isclose(figure.value, peak * efficiency, rel_tol=0.025), key
            checked += 1
    assert checked == {"jetson-thor": 0, "jetson-agx-orin": 1, "jetson-thor-t4000": 3}.get(name, 4)


def test_host_has_no_figures_for_a_model() -> None:
    host = load("host")
    assert host.gpu is None
    assert host.cpu is None
    assert host.step_us is None
    assert set(host.figures()) == {"budget.p50", "budget.p99", "budget.max", "budget.jitter"}


def test_the_budget_is_a_share_of_the_period() -> None:
    # 50 Hz is 20 ms: 5, 10, 25 and 5 % of that. 200 Hz is 5 ms.
    assert load("jetson-thor").budget.ms(50) == pytest.approx(
        {"p50": 1.0, "p99": 2.0, "max": 5.0, "jitter": 1.0}
    )
    assert load("host").budget.ms(200)["p50"] == pytest.approx(0.25)


@pytest.mark.parametrize("rate", [0.0, -50.0, math.nan, math.inf])
def test_an_invalid_control_rate_is_refused(rate: float) -> None:
    share = Figure(0.1, "assumed", "mine")
    with pytest.raises(ConfigError, match="Hz; give a positive number"):
        Budget(share, share, share, share).ms(rate)


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("jetson-thro", "jetson-thor"),
        ("thor", "jetson-thor"),
        ("Jetson_Thor", "jetson-thor"),
        ("t4000", "jetson-thor-t4000"),
        ("nano", "jetson-orin-nano"),
        ("agx_orin", "jetson-agx-orin"),
        ("hots", "host"),
        ("or", "jetson-thor"),  # contained in `thor` and `orin`; by letters more similar to host
    ],
)
def test_an_unknown_target_lists_the_valid_ones_nearest_first(typed: str, first: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(typed)
    listed = str(error.value).partition("valid: ")[2].partition(", or the path")[0].split(", ")
    assert listed[0] == first
    assert sorted(listed) == SHIPPED


@pytest.mark.parametrize("typed", ["", "..", "../targets/host", "x" * 5000, "a\nb"])
def test_an_unknown_name_opens_no_file_and_the_message_is_one_line(typed: str) -> None:
    with pytest.raises(ConfigError, match="there is no target") as error:
        load(typed)
    assert "\n" not in str(error.value)


BOARDS = {
    "NVIDIA Jetson AGX Thor Developer Kit\0": "jetson-thor",
    "NVIDIA Jetson T5000\0": "jetson-thor",
    "NVIDIA Jetson T4000\0": "jetson-thor-t4000",
    "NVIDIA Jetson AGX Thor T4000\0": "jetson-thor-t4000",
    "NVIDIA Jetson AGX Orin Developer Kit\0": "jetson-agx-orin",
    "NVIDIA Jetson Orin NX Engineering Reference Developer Kit Super\0": "jetson-orin-nx",
    "NVIDIA Jetson Orin Nano Developer Kit\0": "jetson-orin-nano",
    "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super\0": "jetson-orin-nano",
    "NVIDIA Jetson AGX Xavier\0": None,
    "NVIDIA Jetson Nano Developer Kit\0": None,
    "Raspberry Pi 5 Model B Rev 1.0\0": None,
    "": None,
}


@pytest.mark.parametrize("board", BOARDS)
def test_each_board_matches_one_target(board: str) -> None:
    found = [name for name in JETSONS if here(load(name), board)]
    assert found == ([BOARDS[board]] if BOARDS[board] else [])


def test_every_machine_is_the_host_and_without_a_device_tree_no_board_matches() -> None:
    assert here(load("host"), None)
    assert here(load("host"), "NVIDIA Jetson AGX Thor Developer Kit")
    assert not any(here(load(name), None) for name in JETSONS)


def test_a_users_file_is_read(tmp_path: Path) -> None:
    mine = load(written(tmp_path, MINE))
    assert (mine.name, mine.title, mine.gpu) == ("my-board", "my board", None)
    assert mine.cpu
    assert mine.figures()["step_us"] == Figure(20.0, "measured", "a clock")
    assert mine.cpu.fixed_us == Figure(0.0, "assumed", "none known")
    assert mine.budget.ms(100) == pytest.approx({"p50": 1.0, "p99": 2.0, "max": 5.0, "jitter": 1.0})
    assert here(mine, "ACME my board rev 2")
    assert not here(mine, "NVIDIA Jetson AGX Thor Developer Kit")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"my-board\.yaml' cannot be read: No such file"):
        load(str(tmp_path / "my-board.yaml"))


FAULTS = [
    ("mark: measured, source: a loop", "source: a loop", "cpu.fp32_gflops: mark is missing"),
    ("mark: measured, source: a loop", "mark: measured", "cpu.fp32_gflops: source is missing"),
    (
        "mark: measured, source: a loop",
        "mark: guessed, source: x",
        "mark is 'guessed'; valid: measured, derived",
    ),
    ("mark: measured, source: a loop", "mark: measured, source: ''", "cpu.fp32_gflops.source is ''"),
    ("value: 10, ", "", "cpu.fp32_gflops: value is missing"),
    ("value: 10", "value: -10", "cpu.fp32_gflops: value is '-10'; it must be a number, more than 0"),
    ("value: 10", "value: 0", "cpu.fp32_gflops: value is '0'"),
    ("value: 10", "value: .nan", "cpu.fp32_gflops: value is 'nan'"),
    ("value: 10", "value: .inf", "cpu.fp32_gflops: value is 'inf'"),
    ("value: 10", "value: true", "cpu.fp32_gflops: value is 'True'"),
    ("value: 10", "value: fast", "cpu.fp32_gflops: value is 'fast'"),
    ("value: 10", "value: 10, unit: x", "cpu.fp32_gflops: unknown key 'unit'; valid: value, mark, source"),
    ("value: 0,", "value: -1,", "cpu.fixed_us: value is '-1'; it must be a number, 0 or more"),
    ("{value: 10, mark: measured, source: a loop}", "10", "cpu.fp32_gflops is '10'; it must be a mapping"),
    ("  fp32_gflops", "  gflops", "cpu: unknown key 'gflops'; valid: fixed_us, fp32_gflops"),
    ("  fixed_us: {value: 0, mark: assumed, source: none known}\n", "", "cpu: fixed_us is missing"),
    (
        "step_us: {value: 20, mark: measured, source: a clock}\n",
        "",
        "step_us is missing",
    ),
    ("step_us: {value: 20", "step_us: {value: -1", "step_us: value is '-1'; it must be a number, 0 or more"),
    ("step_us: {value: 20, mark: measured, ", "step_us: {value: 20, ", "step_us: mark is missing"),
    ("family: mine", "family: mine\nrate: 50", "unknown key 'rate'"),
    ("family: mine\n", "", "family is missing"),
    ("family: mine", "family: 3", "family is '3'; it must be one line of text"),
    ("detect: [My Board]", "detect: My Board", "detect is 'My Board'; it must be a list"),
    # An empty word is contained in every name and would match every board.
    ("detect: [My Board]", "detect: ['']", "detect is ''; it must be one line of text"),
    ("detect: [My Board]", "any_machine: 1", "any_machine is '1'; it must be true or false"),
    ("detect: [My Board]", "any_machine: true", "any_machine excludes gpu, cpu, step_us and detect"),
    ("schema: 1\n", "", "schema must be 1"),
    ("schema: 1", "schema: 2", "schema must be 1"),
    ("value: 0.5", "value: 25", "budget.max is 25.0; a share of the control period is at most 1"),
    ("p50: {value: 0.1", "p50: {value: 0.3", "budget must have p50 <= p99 <= max"),
    (
        "budget:",
        "software: [{jetpack: 7.0, tensorrt: x, mark: derived, source: y}]\nbudget:",
        "software[0].jetpack",
    ),
    ("budget:", "peak: {fp32_tflops: 8}\nbudget:", "peak.fp32_tflops is '8'; it must be a mapping"),
]


@pytest.mark.parametrize(("old", "new", "said"), FAULTS, ids=[said[:40] for *_, said in FAULTS])
def test_an_invalid_file_is_refused_with_file_and_key(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in MINE
    with pytest.raises(ValueError, match=re.escape(said)) as error:
        load(written(tmp_path, MINE.replace(old, new, 1)))
    assert "my-board.yaml'" in str(error.value)
    assert "\n" not in str(error.value)


def test_any_machine_is_true_only_for_host(tmp_path: Path) -> None:
    host = (SOURCES / "host.yaml").read_text(encoding="utf-8")
    with pytest.raises(ConfigError, match="any_machine must be true for the target host"):
        load(written(tmp_path, host))
    (tmp_path / "host.yaml").write_text(MINE, encoding="utf-8")
    with pytest.raises(ConfigError, match="any_machine must be true for the target host"):
        load(str(tmp_path / "host.yaml"))


def test_a_rate_above_its_peak_is_refused(tmp_path: Path) -> None:
    text = (SOURCES / "jetson-agx-orin.yaml").read_text(encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape("gpu.bf16_tflops is 340.0, above its peak of 42.5")):
        load(written(tmp_path, text.replace("bf16_tflops: {value: 34,", "bf16_tflops: {value: 340,")))
