"""Domain randomization: which physical parameters a scene has, and what each one changes.

A parameter is `field`, for the whole scene, or `entity/field`, or `entity/field/selector`: `friction`,
`cube/mass_scale`, `robot/gain_scale/*_knee`. Of a robot, a selector is a pattern for the names of bodies (friction and
mass_scale) or of joints (gain_scale), in its file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

import mujoco
import numpy as np

from robolearn.envs.backend import MOTOR_DELAY, PARAMETERS, Capabilities
from robolearn.envs.robot import Robot
from robolearn.envs.scene import Object, Scene
from robolearn.errors import ConfigError, did_you_mean, listing, quote


@dataclass(frozen=True)
class Parameter:
    """What one physical parameter changes in the simulator's model."""

    name: str
    """As in `task.randomize`."""
    field: str
    """friction, mass_scale or gain_scale; see `PARAMETERS`."""
    ids: np.ndarray
    """Ids of the geoms (friction), bodies (mass_scale) or actuators (gain_scale) that it changes."""
    everywhere: bool = False
    """Whether it is for the whole scene."""


def settable(what: Robot | Scene) -> frozenset[str]:
    """The parameters that apply to a scene: up to three for all of it, and those that it names itself."""
    scene = Scene.of(what)
    drives = [a for robot in scene.robots.values() for a in robot.actuators]
    gains = {"gain_scale"} if any(a.has_gains for a in drives) else set()
    if any(a.motor is not None and a.motor.delay[0] < a.motor.delay[1] for a in drives):
        gains |= {MOTOR_DELAY}
    masses = {"mass_scale"} if any(map(scene.moves, scene.entities)) else set()
    return frozenset({"friction"} | gains | masses | set(scene.params))


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


def require_same_params(snapshot: Iterable[str], here: Iterable[str]) -> None:
    """Check that a snapshot is of a scene with the same parameters.

    Raises:
        ConfigError: it is not; the message names the parameters that one of them lacks.
    """
    if other := set(snapshot) ^ set(here):
        raise ConfigError(
            f"the snapshot is of a scene with other parameters (different: {listing(sorted(other))}); "
            "task.randomize must name the same ones"
        )


def parameters(scene: Scene, model: mujoco.MjModel) -> dict[str, Parameter]:
    """Every parameter of a scene by name: those of the whole scene first, then by entity, then by selector, so that a
    later one may refine an earlier one.

    Raises:
        ConfigError: a name of `scene.params` has an entity, field or selector that does not exist.
    """
    found = [parameter(name, scene, model) for name in settable(scene)]
    return {each.name: each for each in sorted(found, key=lambda each: (each.name.count("/"), each.name))}


def parameter(name: str, scene: Scene, model: mujoco.MjModel) -> Parameter:
    """One parameter by its name.

    Raises:
        ConfigError: its entity, field or selector does not exist.
    """
    where = f"randomize.{name}"
    if name in PARAMETERS:
        counts = {"friction": model.ngeom, "mass_scale": model.nbody, "gain_scale": model.nu, MOTOR_DELAY: 0}
        ids = np.arange(counts[name])
        if name == "gain_scale":
            ids = ids[_servos(scene)]
        return Parameter(name, name, ids, everywhere=True)
    entity, _, rest = name.partition("/")
    field_, _, selector = rest.partition("/")
    thing = scene.known(where, entity)
    if field_ not in PARAMETERS:
        raise ConfigError(
            f"{where}: {quote(field_)} is not a parameter{did_you_mean(field_, PARAMETERS)} "
            f"(valid: {listing(PARAMETERS)})"
        )
    if field_ == MOTOR_DELAY:
        raise ConfigError(f"{where}: all motors share it; write {MOTOR_DELAY} alone")
    ids, names = _named(scene, entity, field_, model)
    if isinstance(thing, Object) and selector:
        raise ConfigError(f"{where}: the object {entity!r} has one body, so it takes no selector")
    if rest.count("/") and not selector:
        raise ConfigError(f"{where}: its selector is empty; write {entity}/{field_} for all of {entity!r}")
    if selector:
        chosen = [fnmatchcase(each, selector) for each in names]
        if not any(chosen):
            kind = "joint with a position actuator" if field_ == "gain_scale" else "body"
            raise ConfigError(
                f"{where}: no {kind} of {entity!r} is called {quote(selector)}{did_you_mean(selector, names)} "
                f"(valid: {listing(sorted(set(names)), 24)})"
            )
        ids = ids[np.array(chosen)]
    if not len(ids):
        raise ConfigError(f"{where}: {entity!r} has nothing that {field_} could change")
    return Parameter(name, field_, ids)


def _servos(scene: Scene) -> np.ndarray:
    """For every actuator of the model, whether it has gains to scale."""
    return np.array([a.has_gains for robot in scene.robots.values() for a in robot.actuators], dtype=bool)


def _named(scene: Scene, entity: str, field_: str, model: mujoco.MjModel) -> tuple[np.ndarray, list[str]]:
    """Ids of everything of an entity that a field could change, and the name for each that a selector matches."""
    prefix = scene.prefix(entity)

    def belongs(name: str) -> bool:
        return name.startswith(prefix) and ("/" not in name.removeprefix(prefix)) and name != "world"

    if field_ == "gain_scale":
        chosen = [i for i in np.flatnonzero(_servos(scene)).tolist() if belongs(model.actuator(i).name)]
        return np.array(chosen, dtype=int), [model.actuator(i).name.removeprefix(prefix) for i in chosen]
    bodies = [model.body(i).name for i in range(model.nbody)]
    if field_ == "mass_scale":
        chosen = [i for i, name in enumerate(bodies) if belongs(name)]
        return np.array(chosen, dtype=int), [bodies[i].removeprefix(prefix) for i in chosen]
    of_geom = [bodies[b] for b in model.geom_bodyid]
    chosen = [i for i, name in enumerate(of_geom) if belongs(name)]
    return np.array(chosen, dtype=int), [of_geom[i].removeprefix(prefix) for i in chosen]


def nominal(parameter: Parameter, model: mujoco.MjModel) -> float:
    """A parameter's value in the model, before randomization: 1 of a factor, the largest friction of its geoms."""
    if parameter.field != "friction":
        return 1.0
    colliding = (model.geom_contype | model.geom_conaffinity).astype(bool)
    friction = np.where(colliding, model.geom_friction[:, 0], 0.0)
    return float(friction[parameter.ids].max(initial=0.0))


class InverseWeights:
    """MuJoCo's inverse weights (`dof_invweight0` and the like) as a function of a factor s on every mass and inertia of
    each kinematic tree.

    MuJoCo scales its constraints by the inverse inertia at the initial pose, J (s B + A)^-1 J' for bodies of
    inertia B and armatures A, and recomputes that (mj_setConst) when a mass changes. Here it is a closed form in s:
    with B = L L' and L^-1 A L^-T = Q diag(a) Q', the inverse is W diag(1 / (s + a)) W' for W = L^-T Q. One matrix
    product on the device gives the weights of all environments. Trees do not share inertia, so each has its s.
    """

    def __init__(self, model: mujoco.MjModel) -> None:
        """Compute the coefficients in float64 from the model's inertia at its initial pose."""
        data = mujoco.MjData(model)
        data.qpos[:] = model.qpos0
        mujoco.mj_forward(model, data)
        inertia = np.zeros((model.nv, model.nv))
        mujoco.mj_fullM(model, data, inertia)
        bodies = inertia - np.diag(model.dof_armature)
        self.poles = np.zeros(model.nv)
        """(nv,) a."""
        self.body_of_mode = np.asarray(model.dof_bodyid).copy()
        """(nv,) for each a a body of its tree."""
        modes = np.zeros((model.nv, model.nv))
        for first, count in zip(model.tree_dofadr, model.tree_dofnum, strict=True):
            tree = slice(int(first), int(first + count))
            root = np.linalg.inv(np.linalg.cholesky(bodies[tree, tree]))
            self.poles[tree], turn = np.linalg.eigh(root @ np.diag(model.dof_armature[tree]) @ root.T)
            modes[tree, tree] = root.T @ turn
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
        self.mean_inertia = np.diag(bodies) / model.nv, np.asarray(model.dof_armature) / model.nv
        """(nv,) b and a: the mean of the inertia's diagonal, stat.meaninertia in Isaac Lab's MuJoCo Warp 3.12, is the
        sum of b s + a."""

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
