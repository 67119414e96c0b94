"""What a bundle states of the conditions of its training."""

from robolearn.config.run_config import resolve
from robolearn.export.bundle import conditions
from robolearn.export.deploy import simulated
from robolearn.export.report import ground_rows


def test_randomized_parameters_are_stated_as_their_ranges_and_what_differs_from_the_default():
    settings = ["task.randomize={imu_tilt:[0,0.05],payload:{range:[0,2],when:start}}", "task.packet_loss=0.1"]
    task = resolve(["task=humanoid_walk", *settings]).task
    stated = conditions(task)
    assert stated["randomize"]["friction"] == [0.3, 1.2]
    assert stated["randomize"]["payload"] == {"range": [0.0, 2.0], "when": "start"}
    assert stated["packet_loss"] == 0.1
    assert simulated(task) == "imu_tilt [0.0, 0.05]; packet loss 0.1"


def test_the_ground_is_stated_by_kind_and_a_flat_one_is_not():
    ground = "task.terrain={columns: 4, kinds: {stairs_up: 3, slope_down: 1}, difficulty: [0, 0.5]}"
    task = resolve(["task=humanoid_rough", ground]).task
    stated = conditions(task)["terrain"]
    assert stated == {
        # Half of the way from 2 to 15 cm, and from 2 to 25 degrees.
        "stairs_up": {"share": 0.75, "step_height": [0.02, 0.085], "step_width": 0.3},
        "slope_down": {"share": 0.25, "slope": [2.0, 13.5]},
    }
    assert ground_rows(stated)[0] == ("ground, slope down", "25 % of the columns, slope 2 to 13.5 degrees")
    assert "terrain" not in conditions(resolve(["task=humanoid_walk"]).task)
    assert "terrain" not in conditions(resolve(["task=humanoid_rough", "task.terrain.kinds={flat: 1}"]).task)
    # Of two columns there are two kinds, whatever the shares of the others.
    two = conditions(resolve(["task=humanoid_rough", "task.terrain.columns=2"]).task)["terrain"]
    assert {kind: entry["share"] for kind, entry in two.items()} == {"slope_up": 0.5, "stairs_down": 0.5}
