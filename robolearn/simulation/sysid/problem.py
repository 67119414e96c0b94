"""The robot as the logs see it: a model that hangs, simulated with the joint targets of a log, compared with what was
measured; by MuJoCo's `mujoco.sysid`."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
import torch
from mujoco import rollout

from robolearn.config.placement import usable_cores
from robolearn.envs.actuators.model import by_model
from robolearn.envs.elements import compiled
from robolearn.envs.robot import Robot
from robolearn.errors import ConfigError, MissingError
from robolearn.simulation.excite import held_spec
from robolearn.simulation.sysid.log import BASE_COLUMNS, Log, unit_rows
from robolearn.simulation.sysid.unknowns import CLOCK, Unknown

WARM = 0.5
"""Beginning of a log that is simulated but not compared [s]: where it starts is measured with noise."""
EARLY = 0.15
"""Part of a log from which it is told where it begins [s]."""
STILL = {"rad": 0.02, "m": 0.002}
"""Largest motion of a joint that does not move."""
AFTER = 0.5
"""Time before and after a joint's target changes in which it is compared [s]."""
STEP = 1e-3
"""Finite difference of a parameter, as a share of its scale."""
MEMORY = 300e6
"""Largest memory of the rollouts that run at once [bytes]."""
TOUCH = 0.1
"""Interval at which a log is searched for parts of the robot that touch [s]."""
TILTED = 0.05
"""Largest change of a base's orientation in a log [rad]."""


def toolbox() -> Any:
    """MuJoCo's package for system identification.

    Raises:
        MissingError: it or what it needs is not installed.
    """
    # By name: mypy would take a package with types of its own for the whole of mujoco.
    sysid = importlib.import_module("mujoco.sysid")
    if not hasattr(sysid, "optimize"):  # it swallows the error of a missing package
        try:
            importlib.import_module("mujoco.sysid._src.parameter")
        except ImportError as error:
            raise MissingError(f"sysid needs {error.name}: pip install 'robolearn[sysid]'") from error
        raise MissingError("sysid needs the extra of MuJoCo: pip install 'robolearn[sysid]'")
    return sysid


def require_servos(robot: Robot) -> None:
    """Check that the torque of every motor is the PD law of its gains at once, which is what is simulated here.

    Delay, lag, backlash, curve and network of other motors would be left out without a word; of MuJoCo's DC motor the
    gains are elsewhere, and where `set_field` writes kp is its winding.

    Raises:
        ConfigError: one is not; it names the first such joint, what its motor has, and what makes a PD law of it.
    """
    for actuator in robot.actuators:
        joint, motor = actuator.joint, actuator.motor
        if actuator.kind != "position":
            raise ConfigError(f"robot {robot.name}: the motor of {joint} takes torques; sysid is for servos")
        if motor is not None and not motor.is_pd:
            raise ConfigError(
                f"robot {robot.name}: the motor of {joint} is {next(iter(by_model([(joint, motor.stated())])))}, and "
                "sysid simulates only the PD law of its kp and kd; identify with "
                "'robot.actuators={*:{model:implicit}}', in place of * the more particular entry of robot.yaml that "
                "states the model, or robot.actuators.JOINT.model=implicit"
            )


def hanging(robot: Robot, timestep: float | None = None, base: np.ndarray | None = None) -> mujoco.MjSpec:
    """A robot that hangs, with the orientation (4,) wxyz of its base, and physics steps of `timestep` [s], of the
    robot's own where None; without sensors."""
    spec = held_spec(robot)
    for sensor in list(spec.sensors):
        spec.delete(sensor)
    if base is not None and robot.base is not None:
        spec.body(robot.base).quat = base
    elif base is not None:  # one that cannot move stays, and gravity turns the other way
        turned, back = np.zeros(3), np.asarray(base, dtype=float) * (1, -1, -1, -1)
        mujoco.mju_rotVecQuat(turned, np.array(spec.option.gravity, dtype=float), back)
        spec.option.gravity = turned
    spec.option.timestep = timestep or spec.option.timestep
    return spec


def orientation(logs: Sequence[Log]) -> np.ndarray | None:
    """The orientation in which the base is held, (4,) wxyz; None where no log has it.

    Raises:
        ConfigError: it moves within a log, or differs between logs, or no quaternion of a log has a norm near 1.
    """
    rows = []
    for log in logs:
        if log.base is None:
            continue
        valid, wrong = unit_rows(log.base)
        if len(wrong) and not valid.any():
            found = ", ".join(f"{value:.3g}" for value in log.base[wrong[0]])
            raise ConfigError(
                f"{log.name}: {BASE_COLUMNS} of row {wrong[0] + 1} are {found}, and no row has a norm near 1, as the "
                "quaternion of an orientation has"
            )
        rows.append((log.name, log.base[valid]))
    rows = [(name, part / np.linalg.norm(part, axis=1, keepdims=True)) for name, part in rows if len(part)]
    if not rows:
        return None
    first = rows[0][1][0]
    signed = [(name, part * np.where(part @ first < 0, -1.0, 1.0)[:, None]) for name, part in rows]
    mean = np.concatenate([part for _, part in signed]).mean(axis=0)
    mean /= np.linalg.norm(mean)
    for name, part in signed:
        angle = 2 * np.arccos(np.clip(np.quantile(np.abs(part @ mean), 0.01), 0, 1))
        if angle > TILTED:
            raise ConfigError(
                f"{name}: the base turns by {np.degrees(angle):.1f} degrees; it must be held still, see docs/sysid.md"
            )
    return np.asarray(mean)


@dataclass
class Sequence_:
    """A log, prepared for one model."""

    log: Log
    stamps: np.ndarray
    """(T,) [s]."""
    regular: np.ndarray | None
    """(T,) times of a regular clock."""
    commands: np.ndarray
    """(T, A) in the order of the robot's actuators."""
    measured: dict[str, np.ndarray]
    """position, velocity, torque: (T, J) in the order of the model's joints; NaN where not measured."""
    grid: np.ndarray
    """(S,) times of the physics steps [s]; the first is the initial state's."""
    state: np.ndarray
    """Initial state."""
    used: dict[str, np.ndarray]
    """(T, J) whether a value is compared in the fit."""
    held: dict[str, np.ndarray]
    """(T, J) whether a value is compared in the held-out check."""
    weights: dict[str, np.ndarray]
    """(T, J) one over the standard deviation of its noise."""

    def times(self, share: float) -> np.ndarray:
        """(T,) the stamps, the regular clock, or between."""
        return self.stamps if self.regular is None else self.stamps + share * (self.regular - self.stamps)


class Problem:
    """Logs of a robot and parameters: residuals and their Jacobian, as functions of the numbers of the parameters.

    Attributes:
        unknowns: P parameters, those of the clocks last.
        sequences: one for each log.
        fitted: those of them with values that the fit compares.
        model: of the robot, with nominal values.
        joints: names of the model's joints, J of them.
    """

    def __init__(
        self, robot: Robot, spec: mujoco.MjSpec, logs: Sequence[Log], unknowns: Sequence[Unknown]
    ) -> None:
        self.sysid = toolbox()
        self.robot, self.spec, self.model = robot, spec, compiled(robot, spec)
        model = self.model
        self.unknowns = list(unknowns)
        self.joints = [model.joint(k).name for k in range(model.njnt)]
        self.actuated = [self.joints.index(actuator.joint) for actuator in robot.actuators]
        self.qpos, self.dofs = model.jnt_qposadr.copy(), model.jnt_dofadr.copy()
        self.threads = min(usable_cores(), torch.get_num_threads())
        self.sequences = [self._prepared(log) for log in logs]
        self._scratch = mujoco.MjData(model)
        if not self._touches():
            model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
        self._trees = self._separate_trees()

    # ------------------------------------------------------------------------------------ parameters

    @property
    def fitted(self) -> list[Sequence_]:
        """The logs with values that the fit compares."""
        return [s for s in self.sequences if any(used.any() for used in s.used.values())]

    def parameters(self, values: Mapping[str, float], names: Sequence[str]) -> Any:
        """Some of the parameters as mujoco.sysid has them, with numbers to start from."""
        found = self.sysid.ParameterDict()
        for one in self.unknowns:
            if one.name in names:
                found.add(self.sysid.Parameter(one.name, values[one.name], one.low, one.high))
        return found

    def built(self, values: Mapping[str, float]) -> mujoco.MjModel:
        """A model with these numbers of the parameters."""
        model = copy.copy(self.model)
        for one in self.unknowns:
            for target, scale in zip(one.targets, one.scale, strict=True):
                set_field(model, one.field, target, scale * values[one.name])
        mujoco.mj_setConst(model, self._scratch)
        return model

    def per_joint(self, field: str, values: Mapping[str, float]) -> np.ndarray:
        """(A,) delay [s] or encoder bias [rad or m] of each motor."""
        found = np.zeros(len(self.robot.actuators))
        names = [actuator.joint for actuator in self.robot.actuators]
        for one in self.unknowns:
            if one.field == field:
                for target, scale in zip(one.targets, one.scale, strict=True):
                    found[names.index(target)] = scale * values[one.name]
        return found

    def share(self, sequence: Sequence_, values: Mapping[str, float]) -> float:
        """How far the times of a log are from its stamps to the regular clock."""
        return values.get(f"{CLOCK}/{sequence.log.name}", 0.0)

    # ------------------------------------------------------------------------------------ simulation

    def controls(self, sequence: Sequence_, values: Mapping[str, float]) -> np.ndarray:
        """(S, A) joint targets of each physics step, delayed, as the servos with biased encoders see them; a target
        that changes within a step counts for its share, see `of_steps`."""
        times = sequence.times(self.share(sequence, values))
        delays = self.per_joint("delay", values)
        out = np.empty((len(sequence.grid), sequence.commands.shape[1]))
        for delay in np.unique(delays):
            columns = np.flatnonzero(delays == delay)
            at, step = sequence.grid - delay, self.model.opt.timestep
            out[:, columns] = of_steps(times, sequence.commands[:, columns], at, step)
        return out - self.per_joint("encoder_bias", values)

    def roll(
        self, sequence: Sequence_, many: Sequence[Mapping[str, float]], models: Sequence[mujoco.MjModel]
    ) -> Any:
        """States (n, S, nstate) of the steps of a log, for several values of the parameters."""
        controls = np.stack([self.controls(sequence, values) for values in many])
        starts = []
        for values in many:
            state = sequence.state.copy()
            state[1 + self.qpos[self.actuated]] -= self.per_joint("encoder_bias", values)
            starts.append(state)
        datas = [mujoco.MjData(self.model) for _ in range(max(1, min(self.threads, len(many))))]
        states, _ = rollout.rollout(list(models), datas, np.stack(starts), controls[:, :-1])
        states = np.concatenate((np.stack(starts)[:, None], states), axis=1)
        states[..., 0] = sequence.grid  # a simulation that diverges starts its clock anew
        return states

    def predicted(
        self, sequence: Sequence_, values: Mapping[str, float], states: np.ndarray
    ) -> dict[str, np.ndarray]:
        """What would be measured at the stamps of a log, (T, J) of each signal; `states` (S, nstate).

        Between steps positions are cubic in time, from positions and velocities at both ends (Hermite), velocities
        their derivative. The velocity of a state is that of half a step before, see `of_steps`.
        """
        nq = self.model.nq
        place, speed = states[:, 1 + self.qpos], states[:, 1 + nq + self.dofs]
        speed = np.concatenate(((speed[:-1] + speed[1:]) / 2, speed[-1:]))
        times, step = sequence.times(self.share(sequence, values)), self.model.opt.timestep
        at = np.clip((times - sequence.grid[0]) / step, 0, len(sequence.grid) - 1 - 1e-9)
        k = at.astype(int)
        t = (at - k)[:, None]
        a, b, va, vb = place[k], place[k + 1], step * speed[k], step * speed[k + 1]
        rise = b - a
        position = a + t * (va + t * (3 * rise - 2 * va - vb + t * (va + vb - 2 * rise)))
        velocity = (va + t * (2 * (3 * rise - 2 * va - vb) + 3 * t * (va + vb - 2 * rise))) / step
        bias = np.zeros(len(self.joints))
        bias[self.actuated] = self.per_joint("encoder_bias", values)
        found = {"position": position + bias, "velocity": velocity}
        if "torque" in sequence.measured:
            motor = self.built(values)
            targets = self.controls(sequence, values)
            torque = np.full_like(position, np.nan)
            for n, joint in enumerate(self.actuated):
                gain, back = motor.actuator_gainprm[n, 0], motor.actuator_biasprm[n]
                pulled = gain * targets[:, n] + back[1] * place[:, joint] + back[2] * speed[:, joint]
                pulled = np.clip(pulled, *motor.actuator_forcerange[n])
                torque[:, joint] = np.interp(times, sequence.grid, pulled)
            found["torque"] = torque
        return found

    # ------------------------------------------------------------------------------------ residuals

    def residual_fn(self, held: Mapping[str, float], priors: Sequence[tuple[int, float, float]] = ()) -> Any:
        """The function of mujoco.sysid: (x, params) -> (list of weighted residuals, predictions, records), one of each
        a log; x (P,) or, for P points at once, (P, n).

        Args:
            held: numbers of the parameters that params lacks.
            priors: (index in x, centre, standard deviation) of what is known beforehand; each is a residual at the end.
        """
        parts = [self._of_one(sequence, held) for sequence in self.fitted]

        def together(x: np.ndarray, params: Any, **more: Any) -> tuple[list, list, list]:
            out: tuple[list, list, list] = ([], [], [])
            for part in parts:
                for whole, found in zip(out, part(x, params, **more), strict=True):
                    whole += found
            if priors:
                out[0].append(np.stack([(x[k] - centre) / spread for k, centre, spread in priors]))
            return out

        return together

    def _of_one(self, sequence: Sequence_, held: Mapping[str, float]) -> Any:
        sysid = self.sysid
        names = {one.name for one in self.unknowns}

        def whole(params: Any) -> dict[str, float]:
            return {**held, **{key: float(params[key].value[0]) for key in params.keys() if key in names}}  # noqa: SIM118

        def build(params: Any, _: mujoco.MjSpec) -> mujoco.MjModel:
            return self.built(whole(params))

        def roll(
            *, models: Any, param_dicts: Any, initial_states: Any, control_signal: Any, **_: Any
        ) -> list:
            many = [whole(params) for params in param_dicts]
            states = self.roll(sequence, many, models)
            return [
                sysid.SystemTrajectory(
                    model=model, control=control, sensordata=series, initial_state=start,
                    state=sysid.TimeSeries(sequence.grid, state),
                )
                for model, control, start, state in zip(models, control_signal, initial_states, states, strict=True)
            ]  # fmt: skip

        def compare(
            params: Any, _: Any, measured: Any, model: Any, everything: bool, state: Any, **__: Any
        ) -> Any:
            found = self.predicted(sequence, whole(params), state)
            rows = [
                ((sequence.measured[s] - found[s]) * sequence.weights[s])[sequence.used[s]]
                for s in sequence.measured
            ]
            return (
                np.nan_to_num(np.concatenate(rows), nan=1e6, posinf=1e6, neginf=-1e6)[:, None],
                series,
                series,
            )

        series = sysid.TimeSeries(sequence.stamps, np.zeros((len(sequence.stamps), 0)), {})
        control = sysid.TimeSeries(sequence.stamps, sequence.commands)
        group = sysid.ModelSequences(
            sequence.log.name, self.spec, sequence.log.name, sequence.state, control, series
        )
        return sysid.build_residual_fn(
            models_sequences=[group], build_model=build, custom_rollout=roll, modify_residual=compare,
            resample_true=False, n_threads=1,
        )  # fmt: skip

    def motion(self) -> np.ndarray:
        """(J,) root mean square of each joint's motion about its mean, where it is fitted [rad or m]; 0 without any."""
        total, count = np.zeros((2, len(self.joints)))
        for sequence in self.sequences:
            measured, used = sequence.measured["position"], sequence.used["position"]
            counted = np.maximum(used.sum(axis=0), 1)
            about = measured - np.where(used, measured, 0.0).sum(axis=0) / counted
            total += np.where(used, about**2, 0.0).sum(axis=0)
            count += used.sum(axis=0)
        return np.asarray(np.sqrt(total / np.maximum(count, 1)))

    def signals(self, sequence: Sequence_, values: Mapping[str, float]) -> dict[str, np.ndarray]:
        """What would be measured, of one set of numbers."""
        return self.predicted(sequence, values, self.roll(sequence, [values], [self.built(values)])[0])

    def rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For each residual: number of its joint, of its row in the log, and of its log."""
        joints, rows, logs = [], [], []
        for n, sequence in enumerate(self.fitted):
            for signal in sequence.measured:
                row, joint = np.nonzero(sequence.used[signal])
                joints.append(joint)
                rows.append(row)
                logs.append(np.full(len(row), n))
        return np.concatenate(joints), np.concatenate(rows), np.concatenate(logs)

    def jacobian(
        self,
        fn: Any,
        params: Any,
        x: np.ndarray,
        r: np.ndarray,
        priors: Sequence[tuple[int, float, float]] = (),
    ) -> np.ndarray:
        """(n, P) derivative of the residuals r (n,) with respect to the parameters of params, at x (P,).

        Central differences, at a bound one-sided ones of the second order: what a simulation bends within a step of a
        one-sided difference of the first order would look like information about parameters that act alike.

        Parameters of limbs that hang on a held base and do not touch are perturbed at once, each seen by the residuals
        of its own joints; the others, as the delay of all joints, one at a time.
        """
        x = x.ravel()
        chosen = [one for one in self.unknowns if one.name in params]
        steps = STEP * np.maximum(1.0, np.abs(x))
        low, high = (np.array([getattr(one, end) for one in chosen]) for end in ("low", "high"))
        sides = np.where(x - steps < low, 1, np.where(x + steps > high, -1, 0))
        moves = steps * np.where(
            sides == 0, [[1], [-1]], [[1], [2]] * np.where(sides == 0, 1, sides)
        )  # (2, P)
        trees = [self._tree_of(one) for one in chosen]
        colours: list[list[int]] = []
        for k, tree in enumerate(trees):
            free = (
                c
                for c in colours
                if tree >= 0 and all(trees[other] >= 0 and trees[other] != tree for other in c)
            )
            colour = next(free, None)
            if colour is None:
                colours.append([k])
            else:
                colour.append(k)
        of_row = self._trees[self.rows()[0]]
        of_row = np.append(of_row, np.full(len(r) - len(of_row), -2))  # priors
        size = (
            max(len(s.grid) for s in self.fitted) * (1 + self.model.nq + self.model.nv + self.model.nu) * 8.0
        )
        batch = max(1, self.threads // 2, int(MEMORY / size / 2))
        out = np.zeros((len(r), len(chosen)))
        for first in range(0, len(colours), batch):
            some = colours[first : first + batch]
            points = np.repeat(x[:, None], 2 * len(some), axis=1)
            for column, colour in enumerate(some):
                points[colour, 2 * column : 2 * column + 2] += moves[:, colour].T
            found = np.concatenate([np.atleast_2d(part.T).T for part in fn(points, params)[0]])
            for column, colour in enumerate(some):
                near, far = found[:, 2 * column], found[:, 2 * column + 1]
                for k in colour:
                    own = slice(None) if len(colour) == 1 else of_row == trees[k]
                    change = near - far if sides[k] == 0 else sides[k] * (4 * near - far - 3 * r.ravel())
                    out[own, k] = change[own] / (2 * steps[k])
        for row, (k, _, spread) in enumerate(priors, len(r) - len(priors)):
            out[row] = 0.0
            out[row, k] = 1 / spread
        params.update_from_vector(x)
        return out

    def _tree_of(self, one: Unknown) -> int:
        """The separate limb that a parameter is about; -1: several."""
        if one.field == CLOCK:
            return -1
        if one.field == "mass":
            found = {int(self.model.body_treeid[self.model.body(name).id]) for name in one.targets}
        else:
            found = {int(self.model.dof_treeid[self.model.joint(name).dofadr[0]]) for name in one.targets}
        return int(self._trees[self._first_joint(found.pop())]) if len(found) == 1 else -1

    def _first_joint(self, tree: int) -> int:
        return int(np.flatnonzero(self.model.dof_treeid[self.dofs] == tree)[0])

    def _separate_trees(self) -> np.ndarray:
        """(J,) number of the limb of each joint; one number for all where limbs act on each other."""
        trees = self.model.dof_treeid[self.dofs].copy()
        contacts = not self.model.opt.disableflags & int(mujoco.mjtDisableBit.mjDSBL_CONTACT)
        coupled = self.model.neq or self.model.ntendon or contacts
        return np.zeros_like(trees) if coupled else trees

    # ------------------------------------------------------------------------------------ logs

    def _touches(self) -> bool:
        """Whether parts of the robot touch each other in a log, as far as its positions tell."""
        data = self._scratch
        for sequence in self.sequences:
            known = sequence.measured["position"]
            for row in known[:: max(1, round(TOUCH / np.median(np.diff(sequence.stamps))))]:
                data.qpos[:] = sequence.state[1 : 1 + self.model.nq]
                there = np.flatnonzero(np.isfinite(row))
                data.qpos[self.qpos[there]] = row[there]
                mujoco.mj_kinematics(self.model, data)
                mujoco.mj_comPos(self.model, data)
                mujoco.mj_collision(self.model, data)
                if any(contact.dist < contact.includemargin for contact in data.contact):
                    return True
        return False

    def _prepared(self, log: Log) -> Sequence_:
        model, names = self.model, [actuator.joint for actuator in self.robot.actuators]
        home = dict(zip(self.robot.joints, self.robot.home, strict=True))
        recorded, commands = log.commands(), np.empty((len(log.time), len(names)))
        for n, name in enumerate(names):
            column = (
                recorded[:, log.joints.index(name)] if name in log.joints else np.full(len(log.time), np.nan)
            )
            commands[:, n] = column if np.isfinite(column).any() else home[name]
        measured: dict[str, np.ndarray] = {}
        for signal in ("position", "velocity", "torque"):
            matrix = np.full((len(log.time), len(self.joints)), np.nan)
            for k, name in enumerate(self.joints):
                if name in log.joints:
                    matrix[:, k] = getattr(log, signal)[:, log.joints.index(name)]
            if np.isfinite(matrix).any():
                measured[signal] = matrix
        qpos, qvel = model.qpos0.copy(), np.zeros(model.nv)
        for k, name in enumerate(self.joints):
            begin = self._begin(log.time, measured["position"][:, k], home.get(name, 0.0))
            qpos[self.qpos[k]], qvel[self.dofs[k]] = begin
        state = self.sysid.create_initial_state(model, qpos, qvel)
        # A step more at either end: times move between the stamps and a regular clock.
        step = model.opt.timestep
        grid = np.arange(-1, np.ceil((log.time[-1] + 0.05) / step) + 2) * step
        used = {s: np.isfinite(matrix) & (log.time > WARM)[:, None] for s, matrix in measured.items()}
        near = self._in_motion(log.time, commands, measured["position"])
        used = {s: mask & near for s, mask in used.items()}
        if "torque" in used:
            driven = np.zeros(len(self.joints), dtype=bool)
            driven[self.actuated] = True
            used["torque"] &= driven
        return Sequence_(
            log=log, stamps=log.time, regular=log.clock().regular, commands=commands, measured=measured,
            grid=grid, state=state, used=used, held={s: np.zeros_like(mask) for s, mask in used.items()},
            weights={s: np.ones_like(matrix) for s, matrix in measured.items()},
        )  # fmt: skip

    def _in_motion(self, time: np.ndarray, commands: np.ndarray, places: np.ndarray) -> np.ndarray:
        """(T, J) whether the target of a joint changes within AFTER, or its measured position (T, J) does by more than
        STILL, as of one that others shake; always of a joint without a motor.

        A joint at rest with dry friction stays where its motion happened to end: a thousand rows say that once, and
        would count a thousand times.
        """
        half = max(1, round(AFTER / float(np.median(np.diff(time)))))
        found = np.ones((len(time), len(self.joints)), dtype=bool)
        for n, joint in enumerate(self.actuated):
            changes = time[1:][np.diff(commands[:, n]) != 0]
            if len(changes):
                after = np.clip(np.searchsorted(changes, time), 1, max(1, len(changes) - 1))
                ends = changes[[after - 1, np.minimum(after, len(changes) - 1)]]
                found[:, joint] = np.abs(ends - time).min(axis=0) <= AFTER
            else:
                found[:, joint] = False
            known = np.flatnonzero(np.isfinite(places[:, joint]))
            if len(known):
                filled = np.interp(time, time[known], places[known, joint])
                near = np.lib.stride_tricks.sliding_window_view(
                    np.pad(filled, half, mode="edge"), 2 * half + 1
                )
                found[:, joint] |= np.ptp(near, axis=1) > self.still(joint)
        return found

    def still(self, joint: int) -> float:
        """Smallest motion that counts of a joint, by its place among `joints` [rad or m]."""
        return STILL["m" if self.model.jnt_type[joint] == int(mujoco.mjtJoint.mjJNT_SLIDE) else "rad"]

    @staticmethod
    def _begin(time: np.ndarray, column: np.ndarray, home: float) -> tuple[float, float]:
        """Position and velocity of a joint when a log begins, from what is measured first; a velocity that its noise
        could make is 0."""
        rows = np.flatnonzero(np.isfinite(column))
        if not len(rows):
            return home, 0.0
        early = rows[time[rows] <= time[rows[0]] + EARLY]
        values = column[early]
        if len(early) < 4:
            return float(values.mean()), 0.0
        (slope, begin), covariance = np.polyfit(time[early], values, 1, cov=True)
        if abs(slope) < 4 * np.sqrt(covariance[0, 0]):
            return float(values.mean()), 0.0
        return float(begin), float(slope)


def of_steps(times: np.ndarray, commands: np.ndarray, at: np.ndarray, step: float) -> np.ndarray:
    """Targets (S, A) for physics steps from targets (T, A), each of which holds from its time (T,) until the next.

    MuJoCo's step at t changes the velocity by the forces at the positions of t, and then the positions by that
    velocity: a leapfrog scheme, whose velocities are those of t - h/2 and t + h/2. The mean of the targets with the
    weights of a hat, from 0 at t - h to 1 at t and 0 at t + h, moves an inertia exactly as a force that changes between
    steps does, since hats reproduce linear functions. Positions so are a smooth function of when a target changes.

    Args:
        times: (T,) [s].
        commands: (T, A).
        at: (S,) times of the steps [s], a step apart.
        step: h [s].
    """
    held = np.diff(times)[:, None]
    once = np.concatenate((np.zeros((1, commands.shape[1])), np.cumsum(held * commands[:-1], axis=0)))
    twice = held * once[:-1] + held**2 * commands[:-1] / 2
    twice = np.concatenate((np.zeros((1, commands.shape[1])), np.cumsum(twice, axis=0)))
    edges = np.concatenate((at[:1] - step, at, at[-1:] + step))
    row = np.clip(np.searchsorted(times, edges, side="right") - 1, 0, None)
    past = (edges - times[row])[:, None]
    return np.asarray(
        np.diff(twice[row] + past * once[row] + past**2 * commands[row] / 2, 2, axis=0) / step**2
    )


def set_field(model: mujoco.MjModel, field: str, target: str, value: float) -> None:
    """Set a field of a joint, its motor or a body of a model; `mj_setConst` must follow. Delay, bias and clock are not
    of the model."""
    if field == "mass":
        body = model.body(target).id
        factor = value / model.body_mass[body]
        model.body_mass[body] *= factor
        model.body_inertia[body] *= factor
    elif field in ("kp", "kd"):
        motor = model.actuator(target).id
        if field == "kp":
            model.actuator_gainprm[motor, 0], model.actuator_biasprm[motor, 1] = value, -value
        else:
            model.actuator_biasprm[motor, 2] = -value
    elif field in ("armature", "friction", "damping"):
        dof = int(model.joint(target).dofadr[0])
        {"armature": model.dof_armature, "friction": model.dof_frictionloss, "damping": model.dof_damping}[
            field
        ][dof] = value
