"""What a bundle states of the conditions of its training."""

from pathlib import Path
from typing import Any

from robolearn.config.run_config import resolve
from robolearn.export.bundle import conditions
from robolearn.export.deploy import simulated
from robolearn.export.report import ground_rows
from robolearn.training.build import make_robot, make_scene


def stated(*settings: str) -> dict[str, Any]:
    run = resolve(list(settings))
    return conditions(run.task, make_scene(run, make_robot(run)))


def test_randomized_parameters_are_stated_as_their_ranges_and_what_differs_from_the_default():
    settings = [
        "task=humanoid_walk",
        "task.randomize={imu_tilt:[0,0.05],payload:{range:[0,2],when:start}}",
        "task.packet_loss=0.1",
    ]
    found = stated(*settings)
    assert found["randomize"]["friction"] == [0.3, 1.2]
    assert found["randomize"]["payload"] == {"range": [0.0, 2.0], "when": "start"}
    assert found["packet_loss"] == 0.1
    said = simulated(resolve(settings).task)
    assert said.startswith("base_ang_vel noise 0.1; ")
    assert said.endswith("joint_vel_rel noise 0.5; imu_tilt [0.0, 0.05]; packet loss 0.1")


def test_the_ground_is_stated_by_kind_and_a_flat_one_is_not():
    ground = "task.terrain={columns: 4, kinds: {stairs_up: 3, slope_down: 1}, difficulty: [0, 0.5]}"
    found = stated("task=humanoid_rough", ground)["terrain"]
    assert found == {
        # Half of the way from 2 to 15 cm, and from 2 to 25 degrees.
        "stairs_up": {"share": 0.75, "step_height": [0.02, 0.085], "step_width": 0.3},
        "slope_down": {"share": 0.25, "slope": [2.0, 13.5]},
    }
    assert ground_rows(found)[0] == ("ground, slope down", "25 % of the columns, slope 2 to 13.5 degrees")
    assert "terrain" not in stated("task=humanoid_walk")
    assert "terrain" not in stated("task=humanoid_rough", "task.terrain.kinds={flat: 1}")
    # Of two columns there are two kinds, whatever the shares of the others.
    two = stated("task=humanoid_rough", "task.terrain.columns=2")["terrain"]
    assert {kind: entry["share"] for kind, entry in two.items()} == {"slope_up": 0.5, "stairs_up": 0.5}


def test_the_ground_of_a_task_that_names_it_otherwise_is_stated(tmp_path: Path):
    file = tmp_path / "hilly.py"
    file.write_text(
        "from dataclasses import dataclass, field, replace\n"
        "from robolearn.envs.terrain import Terrain\n"
        "from robolearn.tasks.stand import Stand\n"
        "@dataclass\n"
        "class Hilly(Stand):\n"
        "    hills: Terrain = field(default_factory=lambda: Terrain(kinds={'rough': 1.0}, rows=2, columns=1))\n"
        "    def scene(self, robot):\n"
        "        return replace(super().scene(robot), terrain=self.hills)\n"
    )
    assert stated(f"task={file}:Hilly")["terrain"] == {
        "rough": {"share": 1.0, "roughness": [0.01, 0.08], "bump_width": 0.3}
    }
