"""What `robolearn robot` says of motors outside the simulator."""

from __future__ import annotations

from typing import Any

from robolearn.commands.robot import describe
from robolearn.envs import lint
from tests.envs.actuators.robots import arm


def test_a_pd_law_that_the_time_step_makes_unstable_is_an_error(tmp_path):
    def errors(kd: float) -> list[str]:
        found = lint.check(arm(tmp_path, {"model": "explicit", "kd": kd}))
        return [each.text for each in found if each.level == "error" and each.check == "gains"]

    assert not errors(2.0)
    # The shoulder feels at most its rotor, 0.05 kg m^2, and the arm, under 0.2: 500 x 0.002 / 0.25 is 4.
    (text,) = errors(500.0)
    assert "shoulder" in text
    assert not any(
        each.check == "gains" for each in lint.check(arm(tmp_path, {"kd": 500.0}))
    )  # the solver is stable


def test_the_home_pose_is_held_by_the_motors_themselves(tmp_path):
    def off(keys: dict[str, Any]) -> float:
        text = lint.hold(arm(tmp_path, keys)).text
        return float(text.removesuffix(" rad off").split()[-1])

    # Holding the shoulder at 0.2 rad takes about 1 Nm: kp 400 sags by a few mrad, a motor of 0.05 Nm lets it hang.
    strong = {"model": "explicit", "kp": 400.0}
    assert off(strong) < 0.02
    assert off({**strong, "model": "dc", "saturation": 0.05, "no_load_speed": 5.0}) > 0.1
    torn = lint.hold(arm(tmp_path, {"model": "explicit", "kd": 5000.0, "effort": 1e6}))
    assert not torn.held
    assert "diverges" in torn.text


def test_a_description_lists_the_motors(tmp_path):
    robot = arm(tmp_path, {"model": "explicit", "delay": 0.5}, {"model": "explicit", "delay": 0.5})
    text = describe(robot, lint.moved_inertia(robot))
    assert "explicit (delay 0.5): shoulder, elbow" in text
