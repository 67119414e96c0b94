"""robolearn's side: the exported robot, with a task as close to mjlab's as possible."""

from __future__ import annotations

import importlib.metadata
import platform
import time
from pathlib import Path
from typing import Any

import robolearn  # noqa: F401 - before torch: it sets how torch's threads wait

# isort: split
import fingerprint
import torch
from channel import Stopwatch, serve
from robot import read_export, settings, write_robot

from robolearn import config
from robolearn.envs import mjcf
from robolearn.training.build import make_env
from robolearn.training.train import make_learner, set_threads

PACKAGES = ("robolearn", "mujoco", "mujoco-warp", "warp-lang", "torch", "rsl-rl-lib")


class Robolearn:
    """robolearn's task and learner, built as its training loop does."""

    def __init__(self, folder: str, num_envs: int, device: str, threads: int, words: list[str]) -> None:
        self.folder = Path(folder)
        write_robot(self.folder)
        overrides = [
            *settings(self.folder, num_envs),
            f"device={device}",
            f"torch_threads={threads}",
            *words,
        ]
        self.cfg = config.resolve(overrides)
        set_threads(self.cfg)
        if device.startswith("cuda"):
            torch.backends.cuda.matmul.allow_tf32 = True  # as in mjlab's training script
        self.env = make_env(self.cfg)
        self.learner = make_learner(self.cfg, self.env)
        self.falls = torch.zeros((), device=self.env.device)
        self._count_falls()
        self.watch = Stopwatch(lambda: None)
        self.cpu = self.env.device.type == "cpu"
        if self.cpu:  # on a GPU calls return before their work is done
            self.watch.watch(self.env.backend, "step", "stepping")
            for name in ("step", "reset", "push", "set_params"):
                self.watch.watch(self.env.backend, name, "physics")

    def _count_falls(self) -> None:
        step = self.env.step

        def counted(*args: Any) -> Any:
            result = step(*args)
            self.falls += result.terminated.sum()
            return result

        self.env.step = counted  # type: ignore[method-assign]

    def about(self) -> dict[str, Any]:
        """Versions, sizes, and differences between the two compiled models."""
        export, robot = read_export(self.folder), self.env.robot
        model = mjcf.build_model(robot, self.cfg.backend_name)
        versions = {"python": platform.python_version()}
        for package in PACKAGES:
            try:
                versions[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                continue
        return {
            "versions": versions,
            "backend": self.cfg.backend_name,
            "precision": self.learner.precision,
            "observations": {name: obs.shape[1] for name, obs in self.env.observations.items()},
            "rewards": list(self.env.task.rewards),
            "counts": {"geoms": int(model.ngeom), "sensors": int(model.nsensor)},
            "differences": fingerprint.differences(export["model"], fingerprint.take(model)),
            "gpu": None if self.cpu else torch.cuda.get_device_name(),
        }

    def iterate(self) -> dict[str, Any]:
        """One iteration: collect, then learn. The phases are measured by the learner's timers."""
        self.watch.seconds = {}
        self.falls.zero_()
        began, busy = time.perf_counter(), time.process_time()
        report = self.learner.iterate(self.env)
        if not self.cpu:
            torch.cuda.synchronize()
        total = time.perf_counter() - began
        return {
            "steps": report.steps,
            "total": total,
            "cpu": time.process_time() - busy,
            "falls": float(self.falls) / report.steps,
            "gradient_steps": report.losses["gradient_steps"],
            "simulate": report.seconds["simulate"],
            "infer": report.seconds["infer"],
            "learn": report.seconds["learn"] + report.seconds["synchronize"],
            **self.watch.seconds,
        }


if __name__ == "__main__":
    serve(Robolearn)
