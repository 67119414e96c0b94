"""What randomized parameters make of MuJoCo's model: its fields as functions of the parameters' values.

Both backends that step such a model, one with one row an environment of each changed field, take the rows from here, so
that a parameter means the same in both.
"""

from __future__ import annotations

from collections.abc import Mapping

import mujoco
import numpy as np
import torch

from robolearn.envs.parameters import PARAMETERS
from robolearn.envs.randomize import Parameter, nominal, parameters
from robolearn.envs.scene import Scene
from robolearn.envs.state import Tensor

GROUPS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "friction": (("friction",), ("geom_friction",)),
    "gains": (("gain_scale", "kp_scale", "kd_scale"), ("actuator_gainprm", "actuator_biasprm")),
    "masses": (("mass_scale", "inertia_scale", "payload"), ("body_mass", "body_inertia")),
    "centres": (("com_x", "com_y", "com_z"), ("body_ipos",)),
    "torques": (("torque_scale",), ("actuator_forcerange", "jnt_actfrcrange")),
    "armature": (("armature_scale",), ("dof_armature",)),
    "damping": (("damping",), ("dof_damping",)),
    "dry_friction": (("joint_friction",), ("dof_frictionloss",)),
    "gravity": (("gravity_roll", "gravity_pitch"), ("opt.gravity",)),
}
"""Parameters that change the same fields of the model, and these fields."""
WITH_CONSTANTS = ("masses", "centres", "armature")
"""Groups after which MuJoCo's derived constants (mj_setConst) have to follow."""


class ModelChanges:
    """The rows of the model's fields for given values of a scene's parameters.

    Raises:
        ConfigError: a name of `scene.params` has an entity, field or selector that does not exist.
    """

    def __init__(
        self,
        scene: Scene,
        model: mujoco.MjModel,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> None:
        self.parameters: dict[str, Parameter] = parameters(scene, model)
        self.fields = {parameter.field for parameter in self.parameters.values()}
        """The fields of these parameters, see `PARAMETERS`."""
        if "torque_scale" in self.fields:
            limit_torques(model, scene)
        self.nominal_values = {name: nominal(each, model) for name, each in self.parameters.items()}
        """The value of each parameter before randomization."""
        self.groups = {
            group: model_fields
            for group, (names, model_fields) in GROUPS.items()
            if not self.fields.isdisjoint(names)
        }
        """The fields of the model that each group of these parameters changes."""
        others = {name for group in WITH_CONSTANTS for name in GROUPS[group][0]} - {"mass_scale"}
        of_some = any(name.count("/") == 2 for name in self._of("mass_scale"))
        self.needs_constants = of_some or not self.fields.isdisjoint(others)
        """Whether derived constants depend on more than one factor on all masses and inertias of an entity."""

        def tensor(array: np.ndarray) -> Tensor:
            return torch.as_tensor(np.array(array), dtype=dtype, device=device)

        self._nominal = {
            name: tensor(model.opt.gravity if name == "opt.gravity" else getattr(model, name))
            for model_fields in self.groups.values()
            for name in model_fields
        }
        self._ids = {
            name: torch.as_tensor(each.ids, dtype=torch.long, device=device)
            for name, each in self.parameters.items()
        }
        # The joints that each scaled actuator moves have a limit of their own.
        moved = [
            [int(model.actuator_trnid[i, 0]) for i in parameter.ids]
            if parameter.field == "torque_scale"
            else []
            for parameter in self.parameters.values()
        ]
        self._moved = {
            name: torch.tensor(joints, dtype=torch.long, device=device)
            for name, joints in zip(self.parameters, moved, strict=True)
        }

    def group_of(self, name: str) -> str:
        """The group of a parameter."""
        field = self.parameters[name].field
        return next(group for group, (names, _) in GROUPS.items() if field in names)

    def rows(self, group: str, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The fields of the model that a group changes, (K, ...) each, for `values` (K,) of every parameter."""
        rows: dict[str, Tensor] = getattr(self, f"_{group}")(values)
        return rows

    def _of(self, field: str) -> list[str]:
        """The parameters of a field, in the order in which they apply."""
        return [name for name, parameter in self.parameters.items() if parameter.field == field]

    def _spread(self, values: Mapping[str, Tensor], field: str, count: int) -> Tensor:
        """(K, count): the product of all factors of a field on each item, or the sum of what they add."""
        adds = PARAMETERS[field].neutral == 0.0
        some = next(iter(values.values()))
        dtype, device = next(iter(self._nominal.values())).dtype, some.device
        out = torch.full((len(some), count), 0.0 if adds else 1.0, dtype=dtype, device=device)
        for name in self._of(field):
            value = values[name].to(dtype)[:, None]
            ids = self._ids[name]
            out[:, ids] = out[:, ids] + value if adds else out[:, ids] * value
        return out

    def _friction(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        start = self._nominal["geom_friction"]
        rows = start.expand(len(next(iter(values.values()))), *start.shape).clone()
        for name in self._of("friction"):
            # MuJoCo takes the larger of the two surfaces' friction, so that of the whole scene is set on both. A
            # nominal value, the largest of its geoms, changes none of them.
            value, geoms = values[name].to(rows.dtype)[:, None], self._ids[name]
            here = value != float(np.float32(self.nominal_values[name]))
            rows[:, geoms, 0] = torch.where(here, value, rows[:, geoms, 0])
        return {"geom_friction": rows}

    def _gains(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        count = len(self._nominal["actuator_gainprm"])
        both = self._spread(values, "gain_scale", count)
        stiffness = both * self._spread(values, "kp_scale", count) if "kp_scale" in self.fields else both
        damping = both * self._spread(values, "kd_scale", count) if "kd_scale" in self.fields else both
        rows = {}
        # The force is gain * target + bias[1] * position + bias[2] * velocity.
        for name, scales in (
            ("actuator_gainprm", {0: stiffness}),
            ("actuator_biasprm", {1: stiffness, 2: damping}),
        ):
            rows[name] = self._nominal[name].expand(len(both), -1, -1).clone()
            for column, scale in scales.items():
                rows[name][:, :, column] *= scale
        return rows

    def scaled_masses(self, values: Mapping[str, Tensor]) -> Tensor:
        """(K, nbody) the factor on the mass and inertia of each body."""
        return self._spread(values, "mass_scale", len(self._nominal["body_mass"]))

    def _masses(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        mass, inertia = self._nominal["body_mass"], self._nominal["body_inertia"]
        scale = self.scaled_masses(values)
        rows = {"body_mass": mass * scale}
        if "payload" in self.fields:
            rows["body_mass"] = rows["body_mass"] + self._spread(values, "payload", len(mass))
        if "inertia_scale" in self.fields:
            scale = scale * self._spread(values, "inertia_scale", len(mass))
        rows["body_inertia"] = inertia * scale[:, :, None]
        return rows

    def _centres(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        centres = self._nominal["body_ipos"]
        offsets = [self._spread(values, f"com_{axis}", len(centres)) for axis in "xyz"]
        return {"body_ipos": centres + torch.stack(offsets, dim=2)}

    def _torques(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        actuators, joints = self._nominal["actuator_forcerange"], self._nominal["jnt_actfrcrange"]
        scale = self._spread(values, "torque_scale", len(actuators))
        of_joints = torch.ones(len(scale), len(joints), dtype=scale.dtype, device=scale.device)
        for name, moved in self._moved.items():
            if len(moved):
                of_joints[:, moved] *= values[name].to(scale.dtype)[:, None]
        return {
            "actuator_forcerange": actuators * scale[:, :, None],
            "jnt_actfrcrange": joints * of_joints[:, :, None],
        }

    def _armature(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        armature = self._nominal["dof_armature"]
        return {"dof_armature": armature * self._spread(values, "armature_scale", len(armature))}

    def _damping(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        damping = self._nominal["dof_damping"]
        return {"dof_damping": (damping + self._spread(values, "damping", len(damping))).clamp(min=0.0)}

    def _dry_friction(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        friction = self._nominal["dof_frictionloss"]
        added = friction + self._spread(values, "joint_friction", len(friction))
        return {"dof_frictionloss": added.clamp(min=0.0)}

    def _gravity(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        x, y, z = self._nominal["opt.gravity"]
        roll, pitch = (self._spread(values, f"gravity_{turn}", 1)[:, 0] for turn in ("roll", "pitch"))
        # R_y(pitch) R_x(roll) g
        side = y * roll.cos() - z * roll.sin()
        down = y * roll.sin() + z * roll.cos()
        ahead = x * pitch.cos() + down * pitch.sin()
        return {"opt.gravity": torch.stack((ahead, side, down * pitch.cos() - x * pitch.sin()), dim=1)}


def limit_torques(model: mujoco.MjModel, scene: Scene) -> None:
    """Give every actuator of the model a limit of its force, that of the robot's file, which can then be scaled."""
    for name, robot in scene.robots.items():
        for actuator in robot.actuators:
            i = model.actuator(scene.prefix(name) + actuator.joint).id
            if actuator.kind == "force":
                model.actuator_ctrllimited[i] = 0  # the limit of the force counts, which can be raised, too
            if not model.actuator_forcelimited[i]:
                gear = abs(float(model.actuator_gear[i, 0])) or 1.0
                model.actuator_forcelimited[i] = 1
                model.actuator_forcerange[i] = np.array([-1.0, 1.0]) * actuator.effort / gear
