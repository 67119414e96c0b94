"""MuJoCo's timers, which the backend stops."""

from __future__ import annotations

from collections.abc import Iterator

import mujoco
import pytest

from robolearn import config
from robolearn.envs.mujoco.timers import stop_timers
from robolearn.training.build import make_backend

XML = (
    '<mujoco><worldbody><body><joint axis="0 1 0" pos="0 0 1"/><geom size="0.1"/></body></worldbody></mujoco>'
)
STEP = int(mujoco.mjtTimer.mjTIMER_STEP)


@pytest.fixture(autouse=True)
def default_clock() -> Iterator[None]:
    mujoco.set_mjcb_time(None)
    yield
    mujoco.set_mjcb_time(None)


def stepped() -> mujoco.MjData:
    model = mujoco.MjModel.from_xml_string(XML)
    data = mujoco.MjData(model)
    data.qvel[0] = 1.0
    mujoco.mj_step(model, data, nstep=500)
    return data


def test_a_backend_stops_the_timers_and_results_stay_the_same():
    timed = stepped()
    assert timed.timer[STEP].duration > 0
    make_backend(config.resolve(["task=cartpole_balance", "backend=mujoco"]), 2).close()
    untimed = stepped()
    assert (untimed.timer[STEP].duration, untimed.timer[STEP].number) == (0, 500)
    assert untimed.qpos == timed.qpos
    mujoco.set_mjcb_time(None)  # as the docs say
    assert stepped().timer[STEP].duration > 0


def test_a_clock_of_the_user_stays():
    def ticks() -> float:
        ticks.now += 1.0
        return ticks.now

    ticks.now = 0.0
    mujoco.set_mjcb_time(ticks)
    assert not stop_timers()
    assert stepped().timer[STEP].duration >= 500
