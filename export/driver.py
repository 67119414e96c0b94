"""BundleDriver: an exported bundle controls the simulated robots of an Env, as its runtime.py does on the robot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robolearn import config
from robolearn.config.overrides import parse
from robolearn.config.run_config import Config
from robolearn.core.env import Env
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, quote
from robolearn.export.closed_loop import in_order
from robolearn.export.deploy import own_runtime, require_its_robot, told
from robolearn.export.noisy_readings import NoisyReadings
from robolearn.export.record import arrays, on_robot, starts
from robolearn.training.runs import load_config

MANIFEST = "manifest.json"


def is_bundle(path: str | Path | None) -> bool:
    """Whether a path is a folder with a bundle's manifest."""
    return path is not None and (Path(path) / MANIFEST).is_file()


def config_of(folder: Path, overrides: Iterable[str] = ()) -> Config:
    """The configuration to simulate a bundle's robot with: that of its run, changed by overrides, with the task as on
    the robot, and its noise; see `robolearn.export.record.on_robot`. Actions are delayed only by what an override
    states.

    Raises:
        ConfigError: an override is invalid or delays all observations, which a bundle does not read; or the bundle is
            of a third-party environment.
        Refused: the bundle is damaged.
    """
    own_runtime(folder)  # compares config.yaml with its hash in the manifest
    overrides = list(overrides)
    saved = load_config(folder, overrides)
    if saved.backend_name == config.EXTERNAL:
        raise ConfigError(
            f"{quote(str(folder), 120)} is a bundle of a third-party environment, which has no sensors to read; run it "
            "with robolearn deploy"
        )
    stated = {each.dotted for each in parse(overrides)}
    if "task.observation_delay" in stated and max(saved.task.observation_delay):
        raise ConfigError(
            "task.observation_delay delays observations, and a bundle computes its own from its sensors: delay those, "
            "task.sensing.policy.delay=[LEAST,MOST]"
        )
    run = replace(on_robot(saved, noise=True), torch_threads=1)
    if "task.action_delay" not in stated:
        return run
    return replace(run, task=replace(run.task, action_delay=saved.task.action_delay))


class BundleDriver:
    """The controller of a bundle on each of the N robots of an Env: a Runtime a robot, all on one session.

    Before each step of the env, a call reads the sensors and gives what `Env.step` takes:

        env.step(*driver())
        driver.reset(env.state.outcome["renewed"])

    It executes the bundle's own runtime.py, after its hash was found to be the manifest's, and so the code that runs on
    the robot. Commands are those of the env.
    """

    def __init__(self, folder: Path, env: Env, runtime: str | None = None) -> None:
        """
        Args:
            folder: of the bundle.
            env: made with `config_of(folder)`; its robots are at the start of their episodes.
            runtime: onnxruntime or tensorrt; None: the first that can run here.

        Raises:
            ConfigError: the bundle is for another robot or task than those of the env, or for some of its agents.
            Refused: the bundle is damaged, its golden check failed, or no runtime can run it here.
        """
        ours = own_runtime(folder)
        self.env = env
        self.bundle: Any = told(ours, lambda: ours.Bundle.load(folder))
        if (policy := self.bundle.manifest["run"].get("policy")) is not None:
            raise ConfigError(
                f"{quote(str(folder), 120)} holds {policy}, one of the policies of several agents, which cannot drive "
                "all of them; name the run instead"
            )
        require_its_robot(env, self.bundle, delays=False)  # on the robot nothing is delayed on purpose
        self.name: str = runtime or told(ours, lambda: ours.available(self.bundle)[0])
        """onnxruntime or tensorrt."""
        self._session: Any = told(ours, lambda: ours.open_session(self.bundle, self.name))
        self._runtimes: list[Any] = told(
            ours, lambda: [ours.Runtime(self.bundle, self._session) for _ in range(env.num_envs)]
        )
        first = self._runtimes[0]
        self._read = [env.robot.joints.index(name) for name in first.joints]
        self._send = [first.actuators.index(actuator.joint) for actuator in env.robot.actuators]
        self._state = [name.removesuffix("_in") for name in first.feeds if name.endswith("_in")]
        self._readings = NoisyReadings(env)
        self.reset()

    @property
    def left_out(self) -> list[str]:
        """The observation items whose noise is not simulated: no single sensor reading can have it."""
        return self._readings.left_out

    def __call__(self) -> tuple[Tensor, Tensor]:
        """The actions and joint targets (N, A) of this control step, in the order of the env's actuators.

        Raises:
            ConfigError: a sensor reading or a result is not finite; the robot is named.
        """
        env = self.env
        sensors = in_order(arrays(self._readings(self._runtimes[0].sensors)), self._read)
        commands = env.ctx.command.cpu().numpy()
        actions = np.zeros((len(self._runtimes), len(self._send)), np.float32)
        targets = np.zeros_like(actions)
        for i, runtime in enumerate(self._runtimes):
            try:
                row = runtime.step({name: rows[i] for name, rows in sensors.items()}, commands[i])
            except ValueError as error:  # Runtime.step raises it; it must not import ConfigError
                raise ConfigError(f"the bundle cannot control robot {i}: {error}") from error
            actions[i], targets[i] = runtime.action[self._send], row[self._send]
        return torch.from_numpy(actions).to(env.device), torch.from_numpy(targets).to(env.device)

    def reset(self, mask: Tensor | None = None) -> None:
        """Start anew where an episode has begun, `mask` (N,) bool, with the task state that the simulation drew;
        without `mask`, everywhere."""
        rows = range(len(self._runtimes)) if mask is None else mask.nonzero().squeeze(-1).tolist()
        if not rows:
            return
        drawn = starts(self.env, self._state)
        for i in rows:
            self._runtimes[i].reset({name: values[i] for name, values in drawn.items()})

    def close(self) -> None:
        """Release the session."""
        self._session.close()
