"""mjlab's side: runs with the interpreter of mjlab's Python environment and imports nothing of robolearn."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import fingerprint
import mjlab.tasks  # noqa: F401  registers the tasks
import mujoco
import numpy as np
import torch
from channel import Stopwatch, serve
from mjlab.envs import ManagerBasedRlEnv
from mjlab.rl import RslRlVecEnvWrapper
from mjlab.tasks.registry import load_env_cfg, load_rl_cfg, load_runner_cls
from mjlab.utils.torch import configure_torch_backends

PACKAGES = ("mjlab", "mujoco", "mujoco-warp", "warp-lang", "torch", "rsl-rl-lib")
PREFIX = "robot/"
"""Name prefix of the robot's elements in mjlab's scene."""
FLAGS = {"disableflags": ("mjDSBL_", mujoco.mjtDisableBit), "enableflags": ("mjENBL_", mujoco.mjtEnableBit)}
NAMED = {
    "integrator": ("mjINT_", mujoco.mjtIntegrator),
    "solver": ("mjSOL_", mujoco.mjtSolver),
    "cone": ("mjCONE_", mujoco.mjtCone),
    "jacobian": ("mjJAC_", mujoco.mjtJacobian),
}
NUMBERS = (
    "iterations",
    "ls_iterations",
    "ccd_iterations",
    "tolerance",
    "ls_tolerance",
    "ccd_tolerance",
    "impratio",
)


class Mjlab:
    """mjlab's task and learner, built as in mjlab's training script."""

    def __init__(self, task: str, num_envs: int, device: str, seed: int, threads: int) -> None:
        torch.set_num_threads(threads)
        configure_torch_backends()
        self.task, self.device = task, device
        self.config, self.agent = load_env_cfg(task), load_rl_cfg(task)
        self.config.scene.num_envs = num_envs
        self.config.seed = self.agent.seed = seed
        self.env = ManagerBasedRlEnv(cfg=self.config, device=device)
        wrapped = RslRlVecEnvWrapper(self.env, clip_actions=self.agent.clip_actions)
        self.runner = load_runner_cls(task)(wrapped, asdict(self.agent), None, device)
        self.fresh = True
        self.falls = torch.zeros((), device=device)
        self.cuda = device.startswith("cuda")
        self.watch = Stopwatch(torch.cuda.synchronize if self.cuda else lambda: None)
        self.watch.watch(self.env.sim, "step", "stepping")
        for name in ("step", "forward", "reset", "sense"):
            self.watch.watch(self.env.sim, name, "physics")
        self._count_falls()
        self.watch.watch(wrapped, "step", "simulate")
        self.watch.watch(self.runner.alg, "act", "infer")
        for name in ("compute_returns", "update"):
            self.watch.watch(self.runner.alg, name, "learn")

    def _count_falls(self) -> None:
        step = self.env.step

        def counted(action: torch.Tensor) -> Any:
            result = step(action)
            self.falls += result[2].sum()
            return result

        self.env.step = counted

    def iterate(self) -> dict[str, Any]:
        """One iteration of mjlab's runner. On a GPU a second one, which waits after each call, times the phases."""
        found = self._iterate(waits=False)
        if self.cuda:
            waited = self._iterate(waits=True)
            found |= {
                name: waited[name] / waited["total"] * found["total"]
                for name in ("simulate", "infer", "learn")
            }
        else:
            found |= {name: self.watch.seconds[name] for name in ("physics", "stepping")}
        return found

    def _iterate(self, waits: bool) -> dict[str, Any]:
        self.watch.seconds, self.watch.waits = {}, waits
        self.falls.zero_()
        self.watch.sync()
        began, busy = time.perf_counter(), time.process_time()
        self.runner.learn(num_learning_iterations=1, init_at_random_ep_len=self.fresh)
        self.watch.sync()
        total, busy = time.perf_counter() - began, time.process_time() - busy
        self.fresh = False
        steps = self.env.num_envs * self.agent.num_steps_per_env
        phases = {name: self.watch.seconds[name] for name in ("simulate", "infer", "learn")}
        return {"steps": steps, "total": total, "cpu": busy, "falls": float(self.falls) / steps, **phases}

    def export(self, folder: str) -> dict[str, Any]:
        """Write the robot (robot.xml, assets/) and everything else that robolearn needs (mjlab.json) into `folder`."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        model, robot = self.env.sim.mj_model, self.env.scene["robot"]
        feet = self._write_mjcf(target)
        names = list(robot.joint_names)
        home = dict(zip(names, robot.data.default_joint_pos[0].tolist(), strict=True))
        start = float(robot.data.default_root_state[0, 2])
        height = start - self._clearance(model, home, start, feet)
        lift = self.config.events["reset_base"].params["pose_range"].get("z", (0.0, 0.0))
        action = self.env.action_manager.get_term("joint_pos")
        pose = self.env.reward_manager.get_term_cfg("pose").func
        order = list(self.env.observation_manager.group_obs_dim.items())
        content = {
            "task": self.task,
            "versions": {"python": platform.python_version(), **{p: importlib.metadata.version(p) for p in PACKAGES}},
            "base": robot.root_body.name.removeprefix(PREFIX),
            "feet": feet,
            "home": home,
            "home_height": height,
            "start_lift": [start + z - height for z in lift],
            "actuators": self._actuators(model),
            "action_scale": dict(zip(action.target_names, torch.atleast_2d(action.scale)[0].tolist(), strict=True)),
            "pose_std": {
                kind: dict(zip(names, getattr(pose, f"std_{kind}").tolist(), strict=True))
                for kind in ("standing", "walking", "running")
            },
            "decimation": self.config.decimation,
            "episode_length_s": self.config.episode_length_s,
            "options": self._options(model),
            "sizes": self._sizes(),
            "observations": {name: int(np.prod(shape)) for name, shape in order},
            "rewards": {
                name: self.env.reward_manager.get_term_cfg(name).weight
                for name in self.env.reward_manager.active_terms
            },
            "learner": {"steps": self.agent.num_steps_per_env, **asdict(self.agent)},
            "model": fingerprint.take(model, PREFIX),
            "counts": {"geoms": int(model.ngeom), "sensors": int(model.nsensor)},
        }  # fmt: skip
        (target / "mjlab.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        return {}

    def _write_mjcf(self, target: Path) -> list[str]:
        """Write the robot without the elements that robolearn adds; return the names of the foot bodies."""
        spec = self.config.scene.entities["robot"].build().spec
        for kind in ("actuators", "sensors", "keys", "cameras", "lights"):
            for element in list(getattr(spec, kind)):
                spec.delete(element)
        sites = self.config.rewards["foot_slip"].params["asset_cfg"].site_names
        feet = []
        for body in spec.bodies:
            for site in body.sites:
                if site.name in sites:
                    site.name = body.name  # robolearn finds a sole site by the name of its body
                    feet.append(body.name)
        source = Path(spec.modelfiledir) / spec.meshdir
        spec.meshdir = "assets"
        (target / "assets").mkdir(exist_ok=True)
        for mesh in spec.meshes:
            if mesh.file:
                shutil.copy(source / mesh.file, target / "assets")
        (target / "robot.xml").write_text(spec.to_xml(), encoding="utf-8")
        return feet

    @staticmethod
    def _clearance(model: mujoco.MjModel, home: dict[str, float], height: float, feet: list[str]) -> float:
        """Clearance of the soles above the floor [m] with the base at `height` in the home pose."""
        # A margin makes the collision functions report the distance of geoms that do not touch yet.
        margin, data = model.geom_margin.copy(), mujoco.MjData(model)
        model.geom_margin[:] = 1.0
        data.qpos[:] = model.qpos0
        data.qpos[:7] = [0, 0, height, 1, 0, 0, 0]
        for name, position in home.items():
            data.qpos[model.joint(PREFIX + name).qposadr[0]] = position
        mujoco.mj_forward(model, data)
        model.geom_margin[:] = margin
        soles = {model.body(PREFIX + foot).id for foot in feet}
        gaps = []
        for contact in data.contact:
            bodies = model.geom_bodyid[contact.geom]
            if soles & set(bodies.tolist()) and 0 in model.body_weldid[bodies]:
                gaps.append(float(contact.dist))
        return min(gaps)

    @staticmethod
    def _actuators(model: mujoco.MjModel) -> dict[str, dict[str, float]]:
        found = {}
        for i in range(model.nu):
            joint = model.joint(model.actuator_trnid[i, 0]).name.removeprefix(PREFIX)
            gain, bias = model.actuator_gainprm[i], model.actuator_biasprm[i]
            if not np.isclose(gain[0], -bias[1]) or bias[0]:
                raise ValueError(f"the actuator of {joint} is not a PD controller that robolearn supports")
            effort = float(model.actuator_forcerange[i, 1])
            found[joint] = {"kp": float(gain[0]), "kd": float(-bias[2]), "effort": effort}
        return found

    @staticmethod
    def _options(model: mujoco.MjModel) -> dict[str, Any]:
        """MuJoCo's options under their MJCF names."""
        found: dict[str, Any] = {"timestep": float(model.opt.timestep)}
        for key, (prefix, enum) in NAMED.items():
            found[key] = enum(getattr(model.opt, key)).name.removeprefix(prefix).lower()
        for key in NUMBERS:
            found[key] = getattr(model.opt, key)
        for key, (prefix, enum) in FLAGS.items():
            bits = [
                member.name.removeprefix(prefix).lower()
                for n, member in enum.__members__.items()
                if n.startswith(prefix) and getattr(model.opt, key) & int(member)
            ]
            if bits:
                found[key.removesuffix("flags")] = bits
        return found

    def _sizes(self) -> dict[str, int]:
        """Buffer sizes of MuJoCo Warp per environment: contacts (on average) and constraint rows."""
        data = self.env.sim.wp_data
        return {"nconmax": int(data.naconmax) // int(data.nworld), "njmax": int(data.njmax)}


if __name__ == "__main__":
    serve(Mjlab)
