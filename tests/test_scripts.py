"""The scripts run, at sizes too small for meaningful results."""

from __future__ import annotations

import ast
import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from robolearn import config
from robolearn.cli import main

SCRIPTS = Path(__file__).parent.parent / "scripts"


def test_plot_run_writes_the_curves_of_a_run_as_png(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "task=cartpole_balance", "num_envs=16", "max_iterations=2", "output=run"]) == 0
    subprocess.run([sys.executable, str(SCRIPTS / "plot_run.py"), "run", "docs/curve.png"], check=True)
    assert (tmp_path / "docs" / "curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_walking_reports_the_curve_and_conditions_of_a_robot_that_falls(tmp_path):
    run = tmp_path / "run"
    assert main(["train", "task=humanoid_walk", "num_envs=16", "max_iterations=1", f"output={run}"]) == 0
    picture = tmp_path / "pictures" / "curve.png"

    def walking(*words: str) -> str:
        script = [sys.executable, str(SCRIPTS / "walking.py"), *words, "--episodes", "8"]
        return subprocess.run(script, capture_output=True, text=True, check=True).stdout

    out = walking("curve", str(run), "--picture", str(picture))
    assert "iteration_000001" in out
    assert "fails survival" in out
    assert f"{run}: walks never" in out
    assert picture.read_bytes().startswith(b"\x89PNG")
    rows = walking("conditions", str(run)).splitlines()
    assert len(rows) == 12
    assert all(row.count("|") == 7 for row in rows)


def test_finer_physics_have_half_the_time_step_of_a_runs_simulator(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import walking

    assert walking.half_step("pretrained:humanoid_walk", []) == "backend.timestep=0.005"
    assert (
        walking.half_step("pretrained:humanoid_walk", ["backend.timestep=0.004"]) == "backend.timestep=0.002"
    )


def test_gates_are_without_whatever_pushes_delays_and_physics_a_run_trained_with(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import walking

    stated = [
        "task=humanoid_walk", "task.pushes.force=[100,200]", "task.observation_delay=[1,2]", "task.packet_loss=0.1",
        "task.randomize={com_x: [-0.03,0.03], torque_scale: [0.8,1], robot/armature_scale: [0.5,2], imu_tilt: [0,0.1]}",
    ]  # fmt: skip
    config.save(config.resolve(stated), tmp_path / "config.yaml")
    (tmp_path / "latest.pt").touch()
    words = [*walking.unrandomized(str(tmp_path)), *walking.NOMINAL]
    task = config.load(tmp_path, words).task
    assert not task.pushes.active
    assert task.action_delay == task.observation_delay == (0, 0)
    assert task.packet_loss == 0
    found = {name: tuple(each.range) for name, each in task.randomize.items()}
    assert found.pop("imu_tilt") == (0, 0.1)  # what sensors do stays
    assert found.pop("friction") == (0.8, 0.8)
    assert found == {"mass_scale": (1, 1), "gain_scale": (1, 1), "com_x": (0, 0), "torque_scale": (1, 1),
                     "robot/armature_scale": (1, 1)}  # fmt: skip


def refused(script, words, monkeypatch, capsys):
    """What a script prints that is started with these words, and ends with exit code 2."""
    import runpy

    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setattr(sys, "argv", [script, *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPTS / script), run_name="__main__")
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("script", ["walking.py", "climbing.py", "ablate.py", "ship.py"])
@pytest.mark.parametrize("episodes", ["0", "-1", "all"])
def test_no_script_judges_a_policy_by_no_episodes(script, episodes, monkeypatch, capsys):
    words = {"walking.py": ["gates", "RUN"], "climbing.py": ["RUN"], "ablate.py": ["--output", "OUT"],
             "ship.py": ["unitree_go1"]}[script]  # fmt: skip
    assert "--episodes" in refused(script, [*words, "--episodes", episodes], monkeypatch, capsys)


def test_the_direction_of_a_push_is_seen_from_the_robot_and_only_its_first_episode_counts(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from walking import pushed_from

    half = math.sqrt(0.5)
    facing_left = torch.tensor([half, 0.0, 0.0, half])  # along y of the world
    jumps = [
        [0.0, 1.0, 0.0],
        [1.0, 0.0, 0.0],
        [0.0, -0.5, 0.0],
        [0.0, 1.0, 0.0],
    ]  # ahead, right, back, too late
    ends = [[3], [0, 1], [1, 2, 3]]  # which episodes end in each step
    falls = [[], [0], [1, 2]]

    class Scripted:
        num_envs, max_episode_steps, observations, device = 4, 3, None, "cpu"
        backend = SimpleNamespace(
            state=SimpleNamespace(robot=SimpleNamespace(base_quat=facing_left.repeat(4, 1)))
        )
        state = SimpleNamespace(transit={"jump": torch.zeros(4, 3)})

        def reset(self):
            self.steps = 0

        def step(self, action):
            if self.steps == 1:
                self.state.transit["jump"] = torch.tensor(jumps)
            among = [torch.tensor([i in rows[self.steps] for i in range(4)]) for rows in (ends, falls)]
            self.steps += 1
            return SimpleNamespace(done=among[0], terminated=among[1])

    direction, fell = pushed_from(Scripted(), lambda observations: None)
    assert direction[:2].tolist() == pytest.approx([0.0, -math.pi / 2], abs=1e-6)
    assert direction[2].abs().item() == pytest.approx(math.pi, abs=1e-6)
    assert direction[3].isnan()
    assert fell.tolist() == [True, False, True, False]


def test_an_ablation_of_nothing_is_refused(monkeypatch, capsys):
    assert "--num-envs" in refused("ablate.py", ["--output", "OUT", "--num-envs", "0"], monkeypatch, capsys)


def test_an_ablation_measures_a_run_once_and_prints_a_row_a_variant(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import ablate

    asked = []

    def measure(run, scenario, extra, episodes, physics):
        asked.append((run, scenario))
        seed = int(run[-1])
        return {"survival_rate": 0.9 + seed / 100, "linear_velocity_error": seed / 10, "foot_slip": seed / 100,
                "forward_distance": 8.0 + seed}  # fmt: skip

    monkeypatch.setattr(ablate, "measure", measure)
    runs = {("a fall", seed): tmp_path / f"a_fall_{seed}" for seed in (1, 2)}
    for (_, seed), run in runs.items():
        run.mkdir()
        rows = [{"metric/level_pushes": level} for level in [9.0, *[0.5 * seed] * ablate.LAST]]
        (run / ablate.METRICS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    for _ in range(2):
        found = ablate.walked(runs, [], 128)
    assert len(asked) == len(set(asked)) == 2 * (len(ablate.SCENARIOS) + len(ablate.PUSHES))
    assert [row["level"] for row in found] == [0.5, 1.0]
    assert capsys.readouterr().out.splitlines()[-1] == (
        "| a fall | 0.50, 1.00 | 91, 92 | 0.10, 0.20 | 9.0, 10.0 | 0.010, 0.020 | 91, 92; 91, 92 | 91, 92; 91, 92 |"
    )
    ablate.walked(runs, ["task.episode_length_s=5"], 128)
    assert len(asked) == 4 * (len(ablate.SCENARIOS) + len(ablate.PUSHES))


@pytest.mark.parametrize("script", ["walking.py", "climbing.py", "ablate.py"])
def test_measurements_that_could_not_be_written_are_not_begun(script, monkeypatch, capsys, tmp_path):
    words = {"walking.py": ["gates", "RUN"], "climbing.py": ["RUN"], "ablate.py": ["--output", "OUT"]}[script]
    missing = tmp_path / "missing" / "out.json"
    assert str(missing) in refused(script, [*words, "--json", str(missing)], monkeypatch, capsys)


@pytest.mark.slow
def test_a_policy_that_ships_may_begin_with_the_weights_of_an_earlier_run(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import ship

    task = ["task=cartpole_balance", "num_envs=8", "learner.num_steps=4"]
    stages = [[*task, "max_iterations=1"], ["learner.gamma=0.9", "max_iterations=2"],
              [ship.WEIGHTS, *task, "seed=3", "max_iterations=3"]]  # fmt: skip
    run = tmp_path / "run"
    ship.train(stages, run)
    first = tmp_path / "run_1"
    assert config.load(first).learner.gamma == 0.9
    made = config.load(run)
    assert (made.weights, made.seed) == (str(first), 3)
    assert set(config.changed(made, config.resolve(ship.settings(stages)))) <= ship.OF_THE_MACHINE
    assert ship.spent(str(run))["environment_steps"] == 8 * 4 * (2 + 3)
    assert not ship.spent(str(run))["earlier_commits"]
    (first / ship.MADE).write_text('{"environment_steps": 1000, "minutes": 2, "commit": "c0ffee"}')
    assert ship.spent(str(run))["environment_steps"] == 1000 + 8 * 4 * 3
    assert ship.spent(str(run))["earlier_commits"] == ["c0ffee"]
    with pytest.raises(SystemExit, match="exists already"):
        ship.train(stages, run)


THEIRS = {"compare_update.py", "gradient_speed.py", "theirs.py", "task.py"}
"""Scripts that time others' code, under torch's own settings, and what those load."""
OURS = sorted(path for path in SCRIPTS.rglob("*.py") if path.name not in THEIRS)


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_scripts_import_robolearn_before_torch_so_that_its_threads_do_not_spin(path):
    names = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            names += [alias.name.split(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(str(node.module).split(".")[0])
    if "torch" in names:
        assert "robolearn" in names[: names.index("torch")]


def test_a_missing_run_is_one_line():
    script = [sys.executable, str(SCRIPTS / "walking.py"), "gates", "runs/nowhere"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("walking.py: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_hopper_is_judged_by_how_near_it_is_to_the_wanted_velocity(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["task=hopper_run", "num_envs=16", "max_iterations=3", "torch_threads=1", "output=run"]
    words += [
        "learner.preferences=answers",
        f"learner.preference_script={SCRIPTS / 'hop_backwards.py'}:judge",
    ]
    assert main(["train", *words, "learner.preference_interval=1", "learner.preference_seconds=0.2"]) == 0
    assert (tmp_path / "answers" / "preferences.jsonl").read_text().count('"answer": ') >= 20
    task = f"task={SCRIPTS / 'hop_backwards.py'}:HopBackwards"
    assert main(["train", task, "num_envs=16", "max_iterations=1", "torch_threads=1", "output=true"]) == 0


def test_every_variant_of_the_ablation_is_a_training_of_other_settings():
    sys.path.insert(0, str(SCRIPTS))
    try:
        from ablate import GROUPS, TASK, VARIANTS, settings
    finally:
        sys.path.pop(0)
    for table in (VARIANTS, GROUPS):
        found = {name: settings([f"task={TASK}", *words]) for name, words in table.items()}
        assert [name for name in found if found[name] == found["nothing"]] == ["nothing"]
        assert len({str(found[name]) for name in found}) == len(table)
    for words in GROUPS.values():
        settings(["task=velocity", "robot=unitree_g1", *words])


def test_an_obstacle_to_climb_is_alone_on_its_terrain_whatever_the_run_stated():
    sys.path.insert(0, str(SCRIPTS))
    try:
        from climbing import OBSTACLES
    finally:
        sys.path.pop(0)
    stated = ["task=humanoid_rough", "task.terrain.kinds={boxes: 2, stairs_up: 1}"]
    for obstacle in OBSTACLES:
        terrain = config.resolve([*stated, *obstacle.overrides]).task.terrain
        assert terrain.shares == {obstacle.kind: 1}


@pytest.mark.slow
def test_climbing_counts_tries_of_a_policy_that_never_saw_steps():
    sys.path.insert(0, str(SCRIPTS))
    try:
        from climbing import OBSTACLES, passes, share
    finally:
        sys.path.pop(0)
    by_name = {each.name: each for each in OBSTACLES}
    changes = ["task=humanoid_rough", "task.history.policy=1", "backend=mujoco", "torch_threads=1"]
    found = {
        name: share("pretrained:humanoid_walk", by_name[name], changes, 16, 0.6)
        for name in ("level ground", "stairs up, 15 cm")
    }
    assert found["level ground"]["succeeded"] > 0.9
    assert found["stairs up, 15 cm"]["succeeded"] < 0.3
    assert not passes(by_name["stairs up, 10 cm"], {"succeeded": 0.79})
    assert passes(by_name["stairs up, 10 cm"], {"succeeded": 0.81})
