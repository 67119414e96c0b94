"""MuJoCo's timers, which cost a few per cent of a step."""

from __future__ import annotations

import ctypes

import mujoco
import mujoco._callbacks


def stop_timers() -> bool:
    """Stop the timers of every simulation in this process; whether they are stopped.

    MuJoCo reads the clock before and after each part of a step, and a training reads none of its timers. Results do not
    change; `MjData.timer` still counts calls, and its durations stay as they are. `mujoco.set_mjcb_time(None)` starts
    them again. A clock that the user has set stays.
    """
    if mujoco.get_mjcb_time() is not None:
        return False
    try:
        # The library that the bindings are linked to: set_mjcb_time can replace the clock, but not remove it.
        clock = ctypes.c_void_p.in_dll(ctypes.CDLL(mujoco._callbacks.__file__), "mjcb_time")
    except (OSError, ValueError):  # Windows does not find it this way; only speed is lost
        return False
    clock.value = None
    return True
