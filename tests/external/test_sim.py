"""`sim` of external environments: its gates and checksum."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from robolearn.cli import main
from tests.external.test_export import trained

ACTORS = Path(__file__).with_name("actors.py")
COUNTERS = Path(__file__).with_name("counters.py")


def sim(capsys, *words: str) -> tuple[int, dict[str, str], str]:
    """Exit code, the verdict of each gate, and everything said."""
    capsys.readouterr()
    code = main(["sim", "--num-envs", "4", "--min-real-time-factor", "0", *words])
    said = capsys.readouterr()
    rows = [line.split()[:2] for line in said.out.splitlines() if line[:4] in ("PASS", "FAIL", "SKIP")]
    return code, {name: verdict for verdict, name in rows}, said.out + said.err


def checksum(said: str) -> str:
    return said.rpartition("sha256:")[2].split()[0]


def test_the_gates_are_checked_and_reported(tmp_path, capsys):
    report = tmp_path / "out.xml"
    code, gates, said = sim(
        capsys, "--task", "gymnasium:Pendulum-v1", "--steps", "50", "--junit", str(report)
    )
    assert code == 0
    assert gates == {
        "divergence": "SKIP", "finite": "PASS", "real_time_factor": "PASS", "survival": "SKIP", "deterministic": "PASS",
    }  # fmt: skip
    assert "gymnasium:Pendulum-v1: 4 environments, 50 of 50 steps, policy zero" in said
    (suite,) = ET.parse(report).getroot()
    assert (suite.get("tests"), suite.get("skipped"), suite.get("failures")) == ("5", "2", "0")
    told = {p.get("name"): p.get("value") for p in suite.iter("property")}
    assert (told["task"], told["checksum"]) == ("gymnasium:Pendulum-v1", checksum(said))


def test_the_checksum_differs_between_policies_even_at_the_start_of_all_episodes(capsys):
    """400 steps are two whole episodes: what is seen then depends on the seed alone."""
    words = ["--task", "gymnasium:Pendulum-v1", "--steps", "400"]
    zero, again, other = (
        checksum(sim(capsys, *words, *more)[2]) for more in ([], [], ["--policy", "random"])
    )
    assert zero == again
    assert zero != other


def test_an_environment_that_is_not_reproducible_fails(capsys):
    code, gates, said = sim(capsys, "--task", f"gymnasium:{ACTORS}:Dice", "--steps", "10")
    assert (code, gates["deterministic"], gates["finite"]) == (1, "FAIL", "PASS")
    assert "the checksum of the observations is" in said


@pytest.mark.parametrize(
    ("name", "share", "verdict"), [("Push", "1.000", "PASS"), ("Short", "0.000", "FAIL")]
)
def test_a_termination_is_a_failure_only_with_min_survival(name, share, verdict, tmp_path, capsys):
    task = f"gymnasium:{ACTORS}:{name}"
    run = trained(tmp_path / "run", task)
    words = ["--task", task, "--policy", str(run), "--steps", "30"]
    code, gates, said = sim(capsys, *words)
    assert (code, gates["survival"]) == (0, "SKIP")
    (line,) = (line for line in said.splitlines() if " survival " in line)
    assert line.split()[2] == share
    assert "a termination may mean success" in line
    code, gates, said = sim(capsys, *words, "--min-survival", "0.5")
    assert (code, gates["survival"]) == (int(verdict == "FAIL"), verdict)


def test_a_non_finite_observation_fails_and_is_named(capsys):
    code, gates, said = sim(capsys, "--task", f"gymnasium:{COUNTERS}:Broken", "--steps", "5")
    assert (code, gates["finite"], gates["deterministic"]) == (1, "FAIL", "SKIP")
    assert "observation 'observation[0]'" in said


def test_speed_is_not_checked_with_an_unknown_control_period(capsys):
    words = ["--task", f"gymnasium:{ACTORS}:Timeless", "--steps", "10"]
    assert sim(capsys, *words)[1]["real_time_factor"] == "SKIP"
    assert sim(capsys, *words, "task.control_dt=0.02")[1]["real_time_factor"] == "PASS"


@pytest.mark.parametrize("command", ["bench", "grad-check"])
def test_commands_that_need_a_robolearn_task_refuse_in_one_line(command, capsys):
    assert main([command, "task=gymnasium:Pendulum-v1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "brings its own simulator" in line
