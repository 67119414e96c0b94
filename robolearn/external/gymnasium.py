"""The door to gymnasium: any environment with Box spaces, single or vectorized, with any autoreset mode."""

from __future__ import annotations

import importlib
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode

from robolearn.config import registry
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, MissingError, RunFailed, did_you_mean, listing, one_line, quote
from robolearn.external.env import NO_LIMIT, Actions, ExternalEnv, Transition
from robolearn.external.failures import describe, failing
from robolearn.external.spaces import flatten, observation_columns, require_actions
from robolearn.external.task import ExternalTask


@dataclass
class GymnasiumTask(ExternalTask):
    """A gymnasium environment."""

    door: ClassVar[str] = "gymnasium"
    found: ClassVar[Any] = None
    """Class or function that makes an environment from a file; None for a registered environment."""
    defaults: ClassVar[dict[str, Any]] = {
        "num_envs": 16,
        "max_iterations": 200,
        "learner.num_steps": 128,
        "learner.minibatch_size": 512,
        "learner.num_epochs": 10,
        "learner.learning_rate": 3e-4,
        "learner.entropy_coef": 0.0,
    }

    kwargs: dict[str, Any] = field(default_factory=dict, metadata={"open": True})
    """Arguments of the environment's constructor, such as task.kwargs.reset_noise_scale=0.1."""
    vectorization: Literal["auto", "sync", "async"] = "auto"
    """sync: one environment after the other; async: each in a separate process; auto: the registered vector environment
    if there is one, else sync."""
    episode_steps: int = field(default=0, metadata={"min": 0, "max": 10_000_000})
    """Time limit of an episode in steps (time-out, not failure); 0: the environment's."""

    @classmethod
    def named(cls, id: str) -> type[Self]:
        """See `ExternalTask.named`; `id` is a registered id, module:ID, or path.py:NAME of a class or function."""
        made = super().named(id)
        if registry.is_file(id):
            made.found = staticmethod(registry.from_file(id))
            return made
        module, _, known = id.rpartition(":")
        if module:
            _import(module, id)
        try:
            gymnasium.spec(known)
        except gymnasium.error.Error as error:
            hint = did_you_mean(id, gymnasium.registry)
            why = f"{hint or '; ' + one_line(str(error))}"
            raise ConfigError(f"there is no gymnasium environment {quote(id)}{why}") from error
        return made

    def make(
        self, num_envs: int, device: torch.device, seed: int, rank: int = 0, render: bool = False
    ) -> GymnasiumEnv:
        """See `ExternalTask.make`."""
        return GymnasiumEnv(self, num_envs, device, seed, rank, render)


class GymnasiumEnv(ExternalEnv):
    """N gymnasium environments as one vector environment.

    They are made with same-step autoreset, which gives `final_obs`. Vector environments of their own class keep their
    mode: with `NEXT_STEP` the step that only resets is marked as invalid (`StepResult.valid`), with `DISABLED` this
    class resets the environments whose episode ended.
    """

    def __init__(
        self, task: GymnasiumTask, num_envs: int, device: torch.device, seed: int, rank: int, render: bool
    ) -> None:
        self.vector = _vector(task, num_envs, "rgb_array" if render else None)
        try:
            self._begin(task, num_envs, device, seed, rank, render)
        except BaseException:
            self.vector.close()
            raise

    def _begin(
        self, task: GymnasiumTask, num_envs: int, device: torch.device, seed: int, rank: int, render: bool
    ) -> None:
        self._mode = _mode_of(self.vector, task.name)
        self.resets_take_a_step = self._mode == AutoresetMode.NEXT_STEP
        space = self.vector.single_observation_space
        box = require_actions(self.vector.single_action_space, task.name)
        columns = observation_columns(space, task.name)
        spec = getattr(self.vector, "spec", None)
        limit = task.episode_steps or getattr(spec, "max_episode_steps", None) or NO_LIMIT
        super().__init__(
            task.name,
            num_envs,
            device,
            task.control_dt or _period(self.vector),
            limit,
            Actions.of(box.low, box.high, task.actions, device),
            columns,
        )
        self._space, self._box = space, box
        self._seed: int | None = int(np.random.SeedSequence((seed, rank)).generate_state(1)[0]) >> 1
        self._resetting = np.zeros(num_envs, bool)
        if render and "camera_name" not in task.kwargs:
            _follow(self.vector)
        self.reset()

    def _start(self, stagger: bool) -> dict[str, Tensor]:
        # Seeded once: all later random numbers follow from that.
        with failing("reset", self.name):
            rows, _ = self.vector.reset(seed=self._seed)
            self._seed = None
            self._resetting[:] = False
            return self._groups(rows)

    def _advance(self, actions: Tensor) -> Transition:
        given = actions.cpu().numpy().reshape(self.num_envs, *self._box.shape).astype(self._box.dtype)
        # Clipped again to the space's bounds: ours are rounded to float32.
        given = np.clip(given, self._box.low, self._box.high)
        with failing("step", self.name):
            rows, reward, terminated, truncated, info = self.vector.step(given)
            terminated, truncated = np.array(terminated, bool), np.array(truncated, bool)
            rewards = np.array(reward, np.float32).reshape(self.num_envs)
            observations = self._groups(rows)
        if "final_obs" in info and self._mode != AutoresetMode.SAME_STEP:
            raise RunFailed(
                f"task={self.name} has AutoresetMode.{self._mode.name} in its metadata, but gives info['final_obs'] as "
                "with SAME_STEP: correct its metadata['autoreset_mode']"
            )
        done = terminated | truncated
        terminal, valid = observations, None
        if self._mode == AutoresetMode.NEXT_STEP:
            # The step after an episode's end ignores the action and returns the new episode's first observation.
            real = ~self._resetting
            valid = self._tensor(real)
            self._resetting = done & real
        elif done.any() and self._mode == AutoresetMode.SAME_STEP:
            terminal = self._final(observations, info, done)
        elif done.any():
            observations = self._restarted(observations, done)
        return Transition(
            observations,
            self._tensor(rewards),
            self._tensor(terminated),
            self._tensor(truncated),
            terminal,
            valid,
        )

    def _final(self, observations: dict[str, Tensor], info: dict, done: np.ndarray) -> dict[str, Tensor]:
        """`observations` with those of the states that finished episodes ended in."""
        if "final_obs" not in info:
            raise RunFailed(
                f"task={self.name} has AutoresetMode.SAME_STEP and gives no info['final_obs'], so the state that an "
                "episode ended in is lost: add it, or use another autoreset mode"
            )
        final, ended = info["final_obs"], self._tensor(done)
        if isinstance(final, dict):
            rows = flatten(self._space, final, self.num_envs)
            return {
                g: torch.where(ended[:, None], self._tensor(rows[g]), observations[g]) for g in observations
            }
        terminal = {group: values.clone() for group, values in observations.items()}
        for i in np.flatnonzero(done):
            for group, row in flatten(self._space, final[i], 1).items():
                terminal[group][i] = self._tensor(row[0])
        return terminal

    def _restarted(self, observations: dict[str, Tensor], done: np.ndarray) -> dict[str, Tensor]:
        """Reset the environments in `done` (N,), and only those."""
        with failing("reset", self.name):
            rows, _ = self.vector.reset(options={"reset_mask": done.copy()})
        fresh, ended = self._groups(rows), self._tensor(done)[:, None]
        for group, values in fresh.items():
            if not torch.equal(torch.where(ended, 0.0, values), torch.where(ended, 0.0, observations[group])):
                raise RunFailed(
                    f"task={self.name} has AutoresetMode.DISABLED, and its reset ignores options['reset_mask']: "
                    "implement that, or use SAME_STEP"
                )
        return fresh

    def _groups(self, rows: Any) -> dict[str, Tensor]:
        made: dict[int, Tensor] = {}
        groups = flatten(self._space, rows, self.num_envs)
        return {group: made.setdefault(id(array), self._tensor(array)) for group, array in groups.items()}

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def render(self) -> np.ndarray:
        """See `ExternalEnv.render`."""
        images = self.vector.render()
        if not images or not isinstance(images[0], np.ndarray):
            return super().render()
        return np.array(images[0])

    def close(self) -> None:
        """Free the environments."""
        self.vector.close()


# ---------------------------------------------------------------------------------------- making environments


def _vector(task: GymnasiumTask, num_envs: int, render: str | None) -> gymnasium.vector.VectorEnv:
    """Make the vector environment, with same-step autoreset where that can be chosen.

    Raises:
        ConfigError: its constructor raises.
        MissingError: it needs a package that is not installed.
    """
    kwargs: dict[str, Any] = dict(task.kwargs)
    has_limit = (
        f"task.episode_steps: task={task.name} is a vector environment and has its own limit; leave it out"
    )
    if render is not None:
        kwargs["render_mode"] = render
    try:
        if task.found is not None:
            if task.episode_steps and _is_vector(task.found):
                raise ConfigError(has_limit)
            return _from_file(task, num_envs, kwargs)
        known = task.id.rpartition(":")[2]
        spec = gymnasium.spec(known)
        if task.episode_steps:
            kwargs["max_episode_steps"] = task.episode_steps
        # A time limit can be added to single environments only.
        vectorized = spec.vector_entry_point is not None and not (task.episode_steps and spec.entry_point)
        if spec.entry_point is None and task.vectorization != "auto":
            raise ConfigError(
                f"task=gymnasium:{task.id} is a vector environment only; use task.vectorization=auto"
            )
        if vectorized and (task.vectorization == "auto" or spec.entry_point is None):
            if task.episode_steps and spec.entry_point is None:
                raise ConfigError(has_limit)
            return gymnasium.make_vec(known, num_envs, "vector_entry_point", **kwargs)
        how = {"autoreset_mode": AutoresetMode.SAME_STEP}
        kind = "async" if task.vectorization == "async" else "sync"
        with _signals_ignored():
            return gymnasium.make_vec(known, num_envs, kind, vector_kwargs=how, **kwargs)
    except ConfigError:
        raise
    except (ModuleNotFoundError, gymnasium.error.DependencyNotInstalled) as error:
        raise MissingError(f"task={task.name} needs a package: {one_line(str(error), 240)}") from error
    except Exception as error:  # a constructor of another library may raise anything
        raise ConfigError(f"task={task.name} cannot be made: {describe(error)}") from error


@contextmanager
def _signals_ignored() -> Iterator[None]:
    """Start child processes that ignore SIGINT and end at once on SIGTERM.

    A terminal sends Ctrl-C to all processes; the parent ends its children with SIGTERM after the checkpoint.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
        signal.SIGTERM: signal.signal(signal.SIGTERM, signal.SIG_DFL),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _import(module: str, id: str) -> None:
    """Import the user's module, which registers environments.

    Raises:
        ConfigError: there is no such module, or importing it raises.
    """
    if module.endswith(".py"):
        raise ConfigError(f"task=gymnasium:{id}: name a class or function of the file, path.py:NAME")
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(f"task=gymnasium:{id}: there is no module {quote(error.name)}") from error
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise ConfigError(f"task=gymnasium:{id}: {module} cannot be imported: {describe(error)}") from error


def _is_vector(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, gymnasium.vector.VectorEnv)


def _from_file(task: GymnasiumTask, num_envs: int, kwargs: dict[str, Any]) -> gymnasium.vector.VectorEnv:
    """Environments of a class (of an Env or a VectorEnv), or of a function that makes an Env."""
    found: Callable[..., Any] = task.found
    if _is_vector(found):
        vector: Any = found
        return vector(num_envs=num_envs, **kwargs)

    def make() -> gymnasium.Env:
        env = found(**kwargs)
        if not isinstance(env, gymnasium.Env):
            raise ConfigError(f"task={task.name} makes {type(env).__name__}, which is not a gymnasium.Env")
        if task.episode_steps:
            env = gymnasium.wrappers.TimeLimit(env, task.episode_steps)
        return env

    kind = (
        gymnasium.vector.AsyncVectorEnv if task.vectorization == "async" else gymnasium.vector.SyncVectorEnv
    )
    with _signals_ignored():
        return kind([make] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def _mode_of(vector: gymnasium.vector.VectorEnv, name: str) -> AutoresetMode:
    mode = (vector.metadata or {}).get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError:
        known = listing([f"AutoresetMode.{m.name}" for m in AutoresetMode])
        raise ConfigError(
            f"task={name}: its metadata['autoreset_mode'] is {mode!r}, not a gymnasium.vector.AutoresetMode; set it to "
            f"one of {known}"
        ) from None


def _period(vector: gymnasium.vector.VectorEnv) -> float:
    """Control period [s] of the environment: its `dt`, or one over its `render_fps`; 0 where it has neither."""
    for name in ("dt", "step_dt"):
        value = _attribute(vector, name)
        if _is_number(value) and value > 0:
            return float(value)
    rate: Any = (vector.metadata or {}).get("render_fps")
    return 1.0 / float(rate) if _is_number(rate) and rate > 0 else 0.0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _follow(vector: gymnasium.vector.VectorEnv) -> None:
    """Render with the camera `track`, if gymnasium's MuJoCo renderer has it: the default view does not follow."""
    renderer = _attribute(vector, "mujoco_renderer")
    if renderer is not None:
        camera = [renderer.model.camera(i).name for i in range(renderer.model.ncam)]
        renderer.camera_id = camera.index("track") if "track" in camera else renderer.camera_id


def _attribute(vector: gymnasium.vector.VectorEnv, name: str) -> Any:
    """An attribute of the first environment, or None."""
    inner = vector.unwrapped
    if isinstance(inner, gymnasium.vector.AsyncVectorEnv):
        probe = inner.env_fns[0]()  # the environments themselves are in other processes
        try:
            return getattr(probe.unwrapped, name, None)
        finally:
            probe.close()
    if isinstance(inner, gymnasium.vector.SyncVectorEnv):
        return getattr(inner.envs[0].unwrapped, name, None)
    return getattr(inner, name, None)
