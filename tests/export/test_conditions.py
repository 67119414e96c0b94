"""What a bundle states of the conditions of its training."""

from robolearn.config.run_config import resolve
from robolearn.export.bundle import conditions
from robolearn.export.deploy import simulated


def test_randomized_parameters_are_stated_as_their_ranges_and_what_differs_from_the_default():
    settings = ["task.randomize={imu_tilt:[0,0.05],payload:{range:[0,2],when:start}}", "task.packet_loss=0.1"]
    task = resolve(["task=humanoid_walk", *settings]).task
    stated = conditions(task)
    assert stated["randomize"]["friction"] == [0.3, 1.2]
    assert stated["randomize"]["payload"] == {"range": [0.0, 2.0], "when": "start"}
    assert stated["packet_loss"] == 0.1
    assert simulated(task) == "imu_tilt [0.0, 0.05]; packet loss 0.1"
