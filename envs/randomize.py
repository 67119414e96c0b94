"""Domain randomization: which physical parameters a robot has, and what each one changes."""

from __future__ import annotations

from collections.abc import Iterable

import mujoco
import numpy as np

from robolearn.envs.backend import Capabilities
from robolearn.envs.robot import Robot
from robolearn.errors import ConfigError


def settable(robot: Robot) -> frozenset[str]:
    """The parameters that apply to a robot; see `robolearn.envs.backend.PARAMETERS`."""
    gains = {"gain_scale"} if any(a.kind == "position" for a in robot.actuators) else set()
    return frozenset({"friction"} | gains | ({"mass_scale"} if robot.base else set()))


def require_settable(names: Iterable[str], capabilities: Capabilities) -> None:
    """Check that a backend can set these parameters.

    Raises:
        ConfigError: it cannot; the message names the parameter and the valid ones.
    """
    for name in names:
        if name not in capabilities.params:
            valid = ", ".join(sorted(capabilities.params))
            raise ConfigError(
                f"backend={capabilities.name} cannot set the parameter {name!r} (valid: {valid})"
            )


def nominal(name: str, model: mujoco.MjModel) -> float:
    """A parameter's value in the robot's model, before randomization."""
    if name != "friction":
        return 1.0
    colliding = model.geom_contype | model.geom_conaffinity
    return float(model.geom_friction[colliding.astype(bool), 0].max(initial=0.0))


class InverseWeights:
    """MuJoCo's inverse weights (`dof_invweight0` and the like) as a function of a factor s on every mass and inertia.

    MuJoCo scales its constraints by the inverse inertia at the initial pose, J (s B + A)^-1 J' for bodies of
    inertia B and armatures A, and recomputes that (mj_setConst) when a mass changes. Here it is a closed form in s:
    with B = L L' and L^-1 A L^-T = Q diag(a) Q', the inverse is W diag(1 / (s + a)) W' for W = L^-T Q. One matrix
    product on the device gives the weights of all environments.
    """

    def __init__(self, model: mujoco.MjModel) -> None:
        """Compute the coefficients in float64 from the model's inertia at its initial pose."""
        data = mujoco.MjData(model)
        data.qpos[:] = model.qpos0
        mujoco.mj_forward(model, data)
        inertia = np.zeros((model.nv, model.nv))
        mujoco.mj_fullM(model, data, inertia)
        bodies = inertia - np.diag(model.dof_armature)
        root = np.linalg.inv(np.linalg.cholesky(bodies))
        self.poles, turn = np.linalg.eigh(root @ np.diag(model.dof_armature) @ root.T)
        """(nv,) a."""
        modes = root.T @ turn
        self.dofs = self._averaged(model, modes**2)
        """(nv, nv): dof_invweight0 = dofs @ (1 / (s + a))."""
        self.bodies = np.zeros((model.nbody, 2, model.nv))
        """(nbody, 2, nv): body_invweight0 likewise, of translation and of rotation."""
        for body in range(1, model.nbody):
            if model.body_weldid[body] == 0:
                continue
            jacobians = np.zeros((2, 3, model.nv))
            mujoco.mj_jacBodyCom(model, data, jacobians[0], jacobians[1], body)
            self.bodies[body] = ((jacobians @ modes) ** 2).mean(axis=1)
        self.tendons = (_tendon_jacobian(model, data) @ modes) ** 2
        """(ntendon, nv): tendon_invweight0 likewise."""
        self.mean_inertia = float(np.trace(bodies)) / model.nv, float(model.dof_armature.sum()) / model.nv
        """(b, a): the mean of the inertia's diagonal, stat.meaninertia in Isaac Lab's MuJoCo Warp 3.12, is b s + a."""

    @staticmethod
    def _averaged(model: mujoco.MjModel, rows: np.ndarray) -> np.ndarray:
        """Average as MuJoCo does: one weight for a free joint's three translations, one for its three rotations."""
        rows = rows.copy()
        for joint in range(model.njnt):
            first = model.jnt_dofadr[joint]
            if model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_FREE:
                for part in (slice(first, first + 3), slice(first + 3, first + 6)):
                    rows[part] = rows[part].mean(axis=0)
        return rows


def _tendon_jacobian(model: mujoco.MjModel, data: mujoco.MjData) -> np.ndarray:
    """(ntendon, nv), from MuJoCo's sparse rows."""
    dense = np.zeros((model.ntendon, model.nv))
    for tendon in range(model.ntendon):
        first, count = model.ten_J_rowadr[tendon], model.ten_J_rownnz[tendon]
        dense[tendon, model.ten_J_colind[first : first + count]] = data.ten_J[first : first + count]
    return dense
