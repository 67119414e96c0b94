"""Domain randomization: which physical parameters a scene has, and what each one changes.

A parameter is `field`, for the whole scene, or `entity/field`, or `entity/field/selector`: `friction`,
`cube/mass_scale`, `robot/gain_scale/*_knee`. Of a robot, a selector is a pattern for the names of bodies or of joints,
in its file; `robolearn.envs.parameters` has the fields.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

import mujoco
import numpy as np

from robolearn.envs.backend import MOTOR_DELAY, Capabilities
from robolearn.envs.parameters import BASIC, EVERY, PARAMETERS, changed_by
from robolearn.envs.robot import Robot
from robolearn.envs.scene import Object, Scene
from robolearn.errors import ConfigError, did_you_mean, listing, quote


@dataclass(frozen=True)
class Parameter:
    """What one physical parameter changes in the simulator's model."""

    name: str
    """As in `task.randomize`."""
    field: str
    """One of `PARAMETERS`."""
    ids: np.ndarray
    """Ids of the geoms, bodies, degrees of freedom or actuators that it changes, see `Field.of`."""
    everywhere: bool = False
    """Whether it is for the whole scene."""


ALWAYS = ("gain_scale", "mass_scale")
"""Parameters of every scene in which anything has them, without being named by it."""


def settable(what: Robot | Scene, fields: frozenset[str] = BASIC) -> frozenset[str]:
    """The parameters that apply to a scene, of a backend that has these `fields`: up to four for all of it, and those
    that it names itself."""
    scene = Scene.of(what)
    drives = [a for robot in scene.robots.values() for a in robot.actuators]
    gains = {"gain_scale"} if any(a.has_gains for a in drives) else set()
    if any(a.motor is not None and a.motor.delay[0] < a.motor.delay[1] for a in drives):
        gains |= {MOTOR_DELAY}
    masses = {"mass_scale"} if any(map(scene.moves, scene.entities)) else set()
    own = {name for name in scene.params if changed_by(name) in fields}
    return frozenset({"friction"} | gains | masses | own)


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


def parameters(scene: Scene, model: mujoco.MjModel, fields: frozenset[str] = EVERY) -> dict[str, Parameter]:
    """Every parameter of a scene by name, of a backend that has these `fields`: those of the whole scene first, then by
    entity, then by selector, so that a later one may refine an earlier one.

    Raises:
        ConfigError: a name of `scene.params` has an entity, field or selector that does not exist.
    """
    found = [parameter(name, scene, model) for name in settable(scene, fields)]
    return {each.name: each for each in sorted(found, key=lambda each: (each.name.count("/"), each.name))}


def parameter(name: str, scene: Scene, model: mujoco.MjModel) -> Parameter:
    """One parameter by its name.

    Raises:
        ConfigError: its entity, field or selector does not exist.
    """
    where = f"randomize.{name}"
    if name in PARAMETERS:
        ids = _everywhere(name, scene, model)
        if name in scene.params and not len(ids):
            raise ConfigError(f"{where}: the scene has nothing that {name} could change")
        return Parameter(name, name, ids, everywhere=True)
    entity, _, rest = name.partition("/")
    field_, _, selector = rest.partition("/")
    thing = scene.known(where, entity)
    if field_ not in PARAMETERS:
        raise ConfigError(
            f"{where}: {quote(field_)} is not a parameter{did_you_mean(field_, PARAMETERS)} "
            f"(valid: {listing(PARAMETERS)})"
        )
    if PARAMETERS[field_].of == "world":
        raise ConfigError(f"{where}: {field_} is of the whole scene; write randomize.{field_}")
    ids, names = _named(scene, entity, field_, model)
    if isinstance(thing, Object) and selector:
        raise ConfigError(f"{where}: the object {entity!r} has one body, so it takes no selector")
    if rest.count("/") and not selector:
        raise ConfigError(f"{where}: its selector is empty; write {entity}/{field_} for all of {entity!r}")
    if selector:
        chosen = [fnmatchcase(each, selector) for each in names]
        if not any(chosen):
            kind = _KINDS.get(field_, PARAMETERS[field_].of)
            raise ConfigError(
                f"{where}: no {kind} of {entity!r} is called {quote(selector)}{did_you_mean(selector, names)} "
                f"(valid: {listing(sorted(set(names)), 24)})"
            )
        ids = ids[np.array(chosen)]
    if PARAMETERS[field_].base_only and isinstance(thing, Robot) and not selector:
        if not thing.base:
            raise ConfigError(
                f"{where}: {entity!r} has no free base; name a body: {entity}/{field_}/BODY "
                f"(valid: {listing(sorted(set(names)), 24)})"
            )
        ids = ids[[names.index(thing.base)]]
    if not len(ids):
        raise ConfigError(f"{where}: {entity!r} has nothing that {field_} could change")
    return Parameter(name, field_, ids)


_SERVO = "joint with a position actuator"
_KINDS = {"friction": "body", "gain_scale": _SERVO, "kp_scale": _SERVO, "kd_scale": _SERVO}
"""What has a field, where it is not what `Field.of` says."""


def _everywhere(name: str, scene: Scene, model: mujoco.MjModel) -> np.ndarray:
    """Ids of everything that a parameter of the whole scene changes.

    Raises:
        ConfigError: it is a parameter of bases, and no robot of the scene has one.
    """
    field = PARAMETERS[name]
    if field.base_only:
        roots = [scene.prefix(each) + robot.base for each, robot in scene.robots.items() if robot.base]
        if not roots:
            raise ConfigError(
                f"randomize.{name}: no robot of the scene has a free base; name a body: ROBOT/{name}/BODY"
            )
        return np.array([model.body(root).id for root in dict.fromkeys(roots)])
    if field.of == "actuator" and name in _KINDS:
        return np.flatnonzero(_servos(scene))
    if field.of == "joint":
        return _dofs(model)[0]
    counts = {"geom": model.ngeom, "body": model.nbody, "actuator": model.nu, "world": 1}
    return np.arange(counts[field.of])


def _dofs(model: mujoco.MjModel) -> tuple[np.ndarray, list[str]]:
    """Index of the degree of freedom of each hinge and slide, and the names of these joints."""
    single = (int(mujoco.mjtJoint.mjJNT_HINGE), int(mujoco.mjtJoint.mjJNT_SLIDE))
    joints = np.flatnonzero(np.isin(model.jnt_type, single)).tolist()
    return np.array(model.jnt_dofadr)[joints], [model.joint(i).name for i in joints]


def _servos(scene: Scene) -> np.ndarray:
    """For every actuator of the model, whether it has gains to scale."""
    return np.array([a.has_gains for robot in scene.robots.values() for a in robot.actuators], dtype=bool)


def _named(scene: Scene, entity: str, field_: str, model: mujoco.MjModel) -> tuple[np.ndarray, list[str]]:
    """Ids of everything of an entity that a field could change, and the name for each that a selector matches."""
    prefix = scene.prefix(entity)

    def belongs(name: str) -> bool:
        return name.startswith(prefix) and ("/" not in name.removeprefix(prefix)) and name != "world"

    if PARAMETERS[field_].of == "actuator":
        all_of_them = np.flatnonzero(_servos(scene)) if field_ in _KINDS else np.arange(model.nu)
        chosen = [i for i in all_of_them.tolist() if belongs(model.actuator(i).name)]
        return np.array(chosen, dtype=int), [model.actuator(i).name.removeprefix(prefix) for i in chosen]
    if PARAMETERS[field_].of == "joint":
        dofs, joints = _dofs(model)
        picked = [i for i, name in enumerate(joints) if belongs(name)]
        return dofs[picked], [joints[i].removeprefix(prefix) for i in picked]
    bodies = [model.body(i).name for i in range(model.nbody)]
    if PARAMETERS[field_].of == "body":
        chosen = [i for i, name in enumerate(bodies) if belongs(name)]
        return np.array(chosen, dtype=int), [bodies[i].removeprefix(prefix) for i in chosen]
    of_geom = [bodies[b] for b in model.geom_bodyid]
    chosen = [i for i, name in enumerate(of_geom) if belongs(name)]
    return np.array(chosen, dtype=int), [of_geom[i].removeprefix(prefix) for i in chosen]


def nominal(parameter: Parameter, model: mujoco.MjModel) -> float:
    """A parameter's value in the model, before randomization: the one that changes nothing, or the largest friction of
    its geoms."""
    neutral = PARAMETERS[parameter.field].neutral
    if neutral is not None:
        return neutral
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
