"""Whether the actions of a trained policy, or of recorded behaviour, mean here what they meant there."""

from __future__ import annotations

import numpy as np

from robolearn.core.columns import units_of
from robolearn.core.contract import Contract
from robolearn.core.env import Env
from robolearn.core.learner_env import LearnerEnv
from robolearn.errors import ConfigError, quote
from robolearn.learners.saved import find_run

FILE = "contract.json"
FEW = 1e-3
"""Relative difference up to which two control periods or two scales of actions are the same."""


def require_same_units(path: str, env: LearnerEnv, shown: str) -> None:
    """Check that actions of the policy of a run, `path`, have the same scale, offset and control period in `env`.

    A run without a contract, and environments that are not simulated here, are not checked. `shown` begins the message.

    Raises:
        ConfigError: they have not; or the contract is damaged.
    """
    file = find_run(path)[0] / FILE
    if not isinstance(env, Env) or not file.is_file():
        return
    try:
        contract = Contract.load(file)
        scale, offset = ([float(each[name]) for each in contract.actions] for name in ("scale", "offset"))
        period = float(contract.control_dt)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{quote(str(file), 120)} is damaged ({type(error).__name__} {error})") from error
    require_same(period, np.asarray(scale), np.asarray(offset), env, shown)


def require_same(
    period: float, scale: np.ndarray | None, offset: np.ndarray | None, env: LearnerEnv, shown: str
) -> None:
    """Check a control period [s] and where they are known scale and offset (A,) against those of `env`.

    Raises:
        ConfigError: they are others; names the first one.
    """
    if env.dt and abs(period - env.dt) > FEW * env.dt:
        raise ConfigError(
            f"{shown} acts every {period:g} s, and this task every {env.dt:g} s: the same actions do something else; "
            f"set task.control_dt={period:g}, or use one of this task"
        )
    if not isinstance(env, Env):
        return
    here = dict(zip(("scale", "offset"), units_of(env), strict=True))
    for name, theirs in (("scale", scale), ("offset", offset)):
        if theirs is None or np.allclose(theirs, here[name], rtol=FEW, atol=1e-5):
            continue
        i = int(np.argmax(np.abs(theirs - here[name])))
        raise ConfigError(
            f"{shown} was made with the {name} {theirs[i]:g} of action {i}, and this task has {here[name][i]:g}: the "
            "same actions do something else; use the same task.action_scale and robot"
        )
