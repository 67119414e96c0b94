"""The backend `isaaclab`: Isaac Lab 3 on Newton's MuJoCo Warp, converted to RoboLearn's conventions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import mujoco
import numpy as np
import torch

from robolearn.envs import mjcf
from robolearn.envs.backend import FEATURES, MOTORS, Capabilities, Snapshot, require_features
from robolearn.envs.contacts import array_sizes
from robolearn.envs.isaaclab.entities import IsaacEntity
from robolearn.envs.isaaclab.fidelity import Match, differences
from robolearn.envs.parameters import BASIC
from robolearn.envs.randomize import InverseWeights, nominal, parameters, require_settable, settable
from robolearn.envs.robot import Robot
from robolearn.envs.scene import Scene
from robolearn.envs.state import (
    Initial,
    InitialState,
    State,
    Targets,
    Tensor,
    by_entity,
    home,
    quat_rotate,
    scene_state,
    tensor_name,
)
from robolearn.errors import ConfigError, RunFailed

ABSURD_SPEED = 1000.0
"""A velocity component beyond this [m/s or rad/s] counts as divergence."""

SETTABLE = (
    "timestep", "solver", "iterations", "ls_iterations", "ccd_iterations", "integrator", "cone", "impratio",
    "tolerance", "nconmax", "njmax", "self_contacts",
)  # fmt: skip
"""Options of `solver.isaaclab` that Isaac Lab accepts."""


@dataclass
class IsaacLabConfig:
    """Settings of the Isaac Lab backend."""

    timestep: float = field(default=0.0, metadata={"min": 0.0, "max": 0.1})
    """Physics step [s]; 0 takes the robot's value."""
    solver: Literal["robot", "cg", "newton"] = "robot"
    """Constraint solver; robot takes the robot's value."""
    iterations: int = field(default=0, metadata={"min": 0, "max": 1000})
    """Maximum number of solver iterations; 0 takes the robot's value."""
    nconmax: int = field(default=0, metadata={"min": 0, "max": 1_000_000})
    """Array size for contacts, per environment on average; 0 takes the robot's value, or computes it from its geoms."""
    njmax: int = field(default=0, metadata={"min": 0, "max": 1_000_000})
    """Array size for constraint rows of each environment; 0 takes the robot's value, or computes it from its geoms."""


class IsaacLabBackend:
    """The `isaaclab` backend; the contract is `robolearn.envs.backend.Backend`.

    Position actuators are drives inside the solver. All fields are at time t except `foot_force`, which is that of
    the last substep: contacts are computed at its beginning and act through it. After a reset it is that of the
    initial state. Several instances can exist at once, although Isaac Lab's classes allow one simulation per process.
    """

    config_class: ClassVar[type] = IsaacLabConfig
    features: ClassVar[frozenset[str]] = frozenset(FEATURES) - {
        "fixed_objects",
        "forces",
        "parts",
        "selected_masses",
        "dcmotor",
        MOTORS,
        "terrain",
    }
    """A fixed object would become part of Newton's world; the masses of single bodies change inverse weights that have
    no closed form."""

    def __init__(
        self,
        scene: Scene | Robot,
        num_envs: int,
        device: str = "cpu",
        config: IsaacLabConfig | None = None,
        bridge: Callable[..., Any] | None = None,
    ) -> None:
        """`bridge` is for tests: a class to use instead of `robolearn.envs.isaaclab.bridge.Bridge`."""
        config = config or IsaacLabConfig()
        # Newton takes no bits of contacts from USD, so the robot collides as in its file.
        self.scene = scene = replace(Scene.of(scene), collisions="all")
        self.robot, self.num_envs = scene.robot, num_envs
        require_features(scene, "isaaclab", self.features)
        self.model = _model(scene, config)
        if bridge is None:
            from robolearn.envs.warp_graphs import quiet, require_device

            quiet()  # before the import of Isaac Lab, which initializes Warp
            self.device = require_device(device, "isaaclab")
            from robolearn.envs.isaaclab.bridge import Bridge

            bridge = Bridge
        else:
            self.device = torch.device(device)
        self.capabilities = Capabilities(
            name="isaaclab",
            timestep=float(self.model.opt.timestep),
            derived_lag=0,
            pd="implicit",
            exact_restore=self.device.type == "cpu",  # on a GPU the order of summation varies
            params=settable(scene),
            features=self.features,
        )
        require_settable(scene.params, self.capabilities)
        sizes = mjcf.options(self.robot, "isaaclab")
        self._array_sizes = array_sizes(
            self.model,
            num_envs,
            config.nconmax or sizes.get("nconmax", 0),
            config.njmax or sizes.get("njmax", 0),
            sizes.get("self_contacts", 0),
        )
        self._bridge = bridge(scene, self.model, num_envs, self.device, self._array_sizes)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        robot, scene, n = self.robot, self.scene, self.num_envs
        try:
            match = Match(self.model, self._bridge.solver_model, self._bridge.solver_bodies)
        except ValueError as error:
            raise ConfigError(f"{robot.mjcf}: its conversion to USD changes the robot: {error}") from None
        lost = differences(self.model, self._bridge.solver_model, match)
        if lost:
            raise ConfigError(
                f"{robot.mjcf}: its conversion to USD changes the robot, which backend=isaaclab does not support: "
                + "; ".join(lost[:3])
            )
        efforts = {
            int(match.joints[self.model.joint(scene.prefix(name) + a.joint).id]): a.effort
            for name, each in scene.robots.items()
            for a in each.actuators
            if a.kind == "position"
        }
        self._bridge.limit_drives(efforts)
        self._origins: Tensor = self._bridge.origins
        self._converters = {
            name: IsaacEntity(scene, name, self.model, self._bridge, self.device) for name in scene.entities
        }
        self._named = parameters(scene, self.model, BASIC)
        self._nominal_values = {name: nominal(p, self.model) for name, p in self._named.items()}
        self._entities = scene_state(scene, n, self.device)
        params = {
            name: torch.full((n,), value, device=self.device) for name, value in self._nominal_values.items()
        }
        self._state = State(self._entities, params, torch.zeros(n, dtype=torch.bool, device=self.device))
        if self.robot.base:
            base = self._bridge.solver_bodies.index(self.robot.base)
            centre = self._bridge.solver_model.body_ipos[base]
            self._base_centre = torch.tensor(centre, dtype=torch.float32, device=self.device)
        self._joint_targets = {
            name: torch.zeros(n, len(each.actuators), device=self.device)
            for name, each in scene.robots.items()
        }
        self._match = match
        self._varied = self._parameters(match)
        self._home = {name: home(scene, name, n, self.device) for name in scene.entities}
        self.reset(torch.ones(n, dtype=torch.bool, device=self.device), {})

    # ------------------------------------------------------------------ the contract

    @property
    def state(self) -> State:
        """The current State; its tensors are reused by the next step."""
        return self._state

    def reset(self, mask: Tensor, initial: Initial) -> None:
        """See `Backend.reset`."""
        if not bool(mask.any()):
            return
        given = by_entity(initial, self.scene.entities)
        starts: dict[str, InitialState] = {name: given.get(name) or self._home[name] for name in self._home}
        for name, targets in self._joint_targets.items():
            held = self._converters[name].held(starts[name])
            self._joint_targets[name] = torch.where(mask[:, None], held, targets)
        self._write_targets()
        self._bridge.write(
            mask,
            {name: self._converters[name].written(start, self._origins) for name, start in starts.items()},
        )
        self._publish(mask)
        self._state.diverged.masked_fill_(mask, False)

    def step(self, joint_targets: Targets, substeps: int) -> None:
        """See `Backend.step`."""
        finite = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        for name, targets in by_entity(joint_targets, self.scene.robots).items():
            # Joint targets that are not finite count as divergence; that robot holds its last finite joint targets.
            sound = targets.isfinite().all(dim=1)
            last = self._joint_targets[name]
            self._joint_targets[name] = torch.where(sound[:, None], targets.detach(), last)
            finite &= sound
        self._write_targets()
        self._bridge.step(substeps)
        self._publish(None)
        entities = self._entities.values()
        fast = [part for e in entities for part in (e.base_lin_vel, e.base_ang_vel, e.joint_vel)]
        placed = [part for e in entities for part in (e.base_pos, e.joint_pos)]
        speeds = torch.cat(fast, dim=1).abs().amax(dim=1)
        finite &= torch.cat(placed, dim=1).isfinite().all(dim=1)
        self._state.diverged.copy_(~(speeds < ABSURD_SPEED) | ~finite)

    def push(self, mask: Tensor, jump: Tensor, turn: Tensor | None = None) -> None:
        """See `Backend.push`."""
        if self.robot.base:
            dof = self._bridge.roots[self.scene.first][1]
            velocity = self._bridge.rows()["joint_qd"][:, dof : dof + 6]
            if turn is not None:
                # The linear velocity is that of the centre of mass, which turns about the base's origin.
                lever = quat_rotate(self._state.robot.base_quat, self._base_centre.expand_as(turn))
                jump = jump + torch.linalg.cross(turn, lever)
                velocity[:, 3:] += torch.where(mask[:, None], turn, 0.0)
            velocity[:, :3] += torch.where(mask[:, None], jump, 0.0)

    def apply_force(self, force: Tensor) -> None:
        """See `Backend.apply_force`; it lacks this feature."""
        raise NotImplementedError("backend=isaaclab has no forces")

    def snapshot(self) -> Snapshot:
        """See `Backend.snapshot`."""
        rows = {name: row.clone() for name, row in self._bridge.rows().items()}
        self._shift_origins(rows["joint_q"], -1.0)
        return {
            "rows": rows,
            "targets": torch.cat(list(self._joint_targets.values()), dim=1),
            "diverged": self._state.diverged.clone(),
            "params": {k: v.clone() for k, v in self._state.params.items()},
            # The rows of the model that derive from the parameters; recomputing them could round differently.
            "model": {name: row.clone() for name, row in self._varied.items()},
            "published": {k: v.clone() for k, v in self._state.tensors().items()},
        }

    def restore(self, snapshot: Snapshot, source_rows: Tensor | None = None) -> None:
        """See `Backend.restore`."""
        source = torch.arange(self.num_envs, device=self.device) if source_rows is None else source_rows
        for name, row in self._bridge.rows().items():
            row.copy_(snapshot["rows"][name][source])
        self._shift_origins(self._bridge.rows()["joint_q"], 1.0)
        for name, row in self._varied.items():
            row.copy_(snapshot["model"][name][source])
        for name, known in self._state.params.items():
            known.copy_(snapshot["params"][name][source])
        widths = [targets.shape[1] for targets in self._joint_targets.values()]
        parts = snapshot["targets"][source].split(widths, dim=1)
        self._joint_targets = dict(zip(self._joint_targets, (part.clone() for part in parts), strict=True))
        self._state.diverged.copy_(snapshot["diverged"][source])
        for name, tensor in self._state.tensors().items():
            tensor.copy_(snapshot["published"][name][source])

    def set_params(self, mask: Tensor, params: dict[str, Tensor]) -> None:
        """See `Backend.set_params`."""
        require_settable(params, self.capabilities)
        for name, values in params.items():
            known = self._state.params[name]
            known.copy_(torch.where(mask, values, known))
        for changed in {self._named[name].field for name in params}:
            for field_name, rows in getattr(self, f"_{changed}_rows")().items():
                varied = self._varied[field_name]
                varied.copy_(torch.where(mask.view(-1, *[1] * (varied.dim() - 1)), rows, varied))

    def check(self) -> None:
        """See `Backend.check`."""
        lost = self._bridge.overflow()
        if lost:
            raise RunFailed(self._array_sizes.overflow_message(lost).replace("mujoco_warp", "isaaclab"))

    def close(self) -> None:
        """Free the simulator."""
        bridge, self._bridge = getattr(self, "_bridge", None), None
        if bridge is not None:
            bridge.close()

    @property
    def scratch_bytes(self) -> int:
        """Memory [bytes] outside of tensors: the solver's workspace within a step, and Isaac Lab's Python and USD
        objects of the environments (measured: about 5 kB per body).
        """
        square = (-(-self.model.nv // 16) * 16) ** 2
        workspace = 4 * (2 * square + 6 * self._array_sizes.rows + 12 * self.model.nv)
        return self.num_envs * (workspace + 5_000 * self.model.nbody)

    # ------------------------------------------------------------------ conversion

    def _write_targets(self) -> None:
        """Write positions for the drives, and forces for the force actuators."""
        self._bridge.command(
            {name: self._converters[name].commands(targets) for name, targets in self._joint_targets.items()}
        )

    def _shift_origins(self, joint_q: Tensor, sign: float) -> None:
        """Add the environments' origins to the positions of free roots, or subtract them with `sign` -1."""
        for name in self.scene.entities:
            if self.scene.moves(name):
                first = self._bridge.roots[name][0]
                joint_q[:, first : first + 3] += sign * self._origins

    def _publish(self, mask: Tensor | None) -> None:
        """Convert Isaac Lab's measurements to State, in all rows or those in `mask`."""
        shown = self._state.tensors()
        scale = self._scale("gain_scale", self.model.nu)
        none, first = torch.zeros(self.num_envs, 0, device=self.device), 0
        for entity, measured in self._bridge.read().items():
            targets = self._joint_targets.get(entity, none)
            last = first + targets.shape[1]
            found = self._converters[entity].state(measured, self._origins, targets, scale[:, first:last])
            first = last
            for name, value in found.items():
                published = shown[tensor_name(entity, name)]
                if mask is not None:
                    value = torch.where(mask.view(-1, *[1] * (value.dim() - 1)), value, published)
                published.copy_(value)

    # ------------------------------------------------------------------ parameters

    def _parameters(self, match: Match) -> dict[str, Tensor]:
        """The solver's rows that `set_params` writes; stores their nominal values."""
        names, changed = ["geom_friction"], {each.field for each in self._named.values()}
        if "gain_scale" in changed:
            names += ["actuator_gainprm", "actuator_biasprm"]
        if "mass_scale" in changed:
            names += ["body_mass", "body_inertia", "body_subtreemass", "body_invweight0", "dof_invweight0"]
            names += ["meaninertia"]
            weights = InverseWeights(self.model)

            def tensor(array: Any) -> Tensor:
                return torch.as_tensor(array, dtype=torch.float32, device=self.device)

            self._poles = tensor(weights.poles)
            self._mode_bodies = torch.as_tensor(weights.body_of_mode, device=self.device).long()
            self._mean_inertia = [tensor(part) for part in weights.mean_inertia]
            # One row per degree of freedom and body of Newton's model, in its order.
            self._dof_weights = tensor(weights.dofs[match.dofs.argsort()])
            self._body_weights = tensor(weights.bodies[match.bodies.argsort()])
        varied: dict[str, Tensor] = self._bridge.model_rows(*names)
        self._nominal = {name: row.clone() for name, row in varied.items()}
        return varied

    def _friction_rows(self) -> dict[str, Tensor]:
        rows = self._nominal["geom_friction"].clone()
        for name, parameter in self._named.items():
            if parameter.field != "friction":
                continue
            # MuJoCo takes the larger of the two surfaces' friction, so that of the whole scene is set on both. A
            # nominal value, the largest of its geoms, changes none of them.
            value = self._state.params[name][:, None]
            changed = value != float(np.float32(self._nominal_values[name]))
            geoms = list(range(rows.shape[1]))
            if not parameter.everywhere:
                bodies = np.unique(self._match.bodies[self.model.geom_bodyid[parameter.ids]])
                geoms = np.flatnonzero(np.isin(self._bridge.solver_model.geom_bodyid, bodies)).tolist()
            rows[:, geoms, 0] = torch.where(changed, value, rows[:, geoms, 0])
        return {"geom_friction": rows}

    def _gain_scale_rows(self) -> dict[str, Tensor]:
        # Every actuator in the solver is a position drive; forces bypass the solver's actuators.
        solver = self._bridge.solver_model
        scale = torch.ones(self.num_envs, solver.nu, device=self.device)
        ours, driven = self._scale("gain_scale", self.model.nu), solver.actuator_trnid[:, 0]
        for actuator in range(self.model.nu):
            joint = int(self._match.joints[self.model.actuator_trnid[actuator, 0]])
            scale[:, np.flatnonzero(driven == joint).tolist()] = ours[:, actuator, None]
        names = ("actuator_gainprm", "actuator_biasprm")
        return {name: self._nominal[name] * scale[:, :, None] for name in names}

    def _mass_scale_rows(self) -> dict[str, Tensor]:
        scale = self._scale("mass_scale", self.model.nbody)
        modes = scale[:, self._mode_bodies]
        gains = 1.0 / (modes + self._poles)
        slope, rest = self._mean_inertia
        rows = {
            "meaninertia": (modes * slope + rest).sum(dim=1),
            "dof_invweight0": gains @ self._dof_weights.T,
            "body_invweight0": torch.einsum("nv,bkv->nbk", gains, self._body_weights),
        }
        theirs = scale[:, self._match.bodies.argsort().tolist()]
        for name in ("body_mass", "body_inertia", "body_subtreemass"):
            rows[name] = self._nominal[name] * theirs.view(
                *theirs.shape, *[1] * (self._nominal[name].dim() - 2)
            )
        if not self.scene.alone:  # the world's: the sum of those of the trees
            rows["body_subtreemass"][:, 0] = rows["body_mass"].sum(dim=1)
        return rows

    def _scale(self, changed: str, count: int) -> Tensor:
        """(N, count) the product of the factors that each of our bodies or actuators has."""
        scale = torch.ones(self.num_envs, count, device=self.device)
        for name, parameter in self._named.items():
            if parameter.field == changed:
                scale[:, parameter.ids.tolist()] *= self._state.params[name][:, None]
        return scale


def _model(scene: Scene, config: IsaacLabConfig) -> mujoco.MjModel:
    """The MuJoCo model of a scene with the options of Isaac Lab's solver."""
    robot, model = scene.robot, mjcf.build_model(scene, "isaaclab")
    for name in mjcf.options(robot, "isaaclab"):
        if name not in SETTABLE:
            raise ConfigError(
                f"{robot.source}: solver.isaaclab.{name} cannot be set in Isaac Lab; remove it (valid: "
                f"{', '.join(SETTABLE)})"
            )
    mjcf.override_options(model, config.timestep, config.solver, config.iterations)
    if model.opt.solver == mujoco.mjtSolver.mjSOL_PGS:
        raise ConfigError(
            f"{robot.source}: solver.isaaclab.solver is PGS, which Isaac Lab lacks (valid: Newton, CG)"
        )
    return model
