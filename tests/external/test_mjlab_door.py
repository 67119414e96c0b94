"""task=mjlab:ID without mjlab: a fake environment and fake modules.

Robot number `at` observes [at, steps taken]; after a reset it is at 10 more. A step pays 1 + the action. An action of 1
or more ends the episode for good; without one its time is up after three steps.
"""

from __future__ import annotations

import math
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from robolearn import config
from robolearn.config import registry
from robolearn.errors import ConfigError, MissingError
from robolearn.training.build import build_external

LIMIT = 3


class Env:
    """ManagerBasedRlEnv's manners with auto_reset off: who does not reset what has ended may not go on."""

    device = "cpu"

    def __init__(self, cfg, device, render_mode=None):
        assert device == "cpu"
        self.cfg, self.num_envs, self.render_mode = cfg, cfg.scene.num_envs, render_mode
        self.step_dt, self.max_episode_length, self.closed = 0.02, LIMIT, False
        self.single_action_space = SimpleNamespace(shape=(1,), low=-math.inf, high=math.inf)
        self.action_manager = SimpleNamespace(
            active_terms=["motor"],
            action_term_dim=[1],
            get_term=lambda name: SimpleNamespace(target_names=["hinge"]),
        )
        self.at = 100.0 * torch.arange(self.num_envs)
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long)
        self.reward_buf = torch.zeros(self.num_envs)
        self.terminated = torch.zeros(self.num_envs, dtype=torch.bool)
        self.time_outs = torch.zeros(self.num_envs, dtype=torch.bool)
        self.ended = torch.zeros(self.num_envs, dtype=torch.bool)
        self.extras = {}

    def observe(self):
        rows = torch.stack([self.at, self.episode_length_buf.float()], dim=1)
        return {"actor": rows, "critic": torch.cat([rows, rows], dim=1)}

    def reset(self, env_ids=None):
        rows = torch.arange(self.num_envs) if env_ids is None else env_ids
        self.at[rows] += 10
        self.episode_length_buf[rows] = 0
        # Its managers clear what they handed out.
        for buffer in (self.reward_buf, self.terminated, self.time_outs, self.ended):
            buffer[rows] = 0
        self.extras["log"] = {"Episode_Termination/count": len(rows)}
        return self.observe(), self.extras

    def step(self, action):
        assert not self.ended.any()
        self.extras["log"] = {}
        self.episode_length_buf += 1
        self.reward_buf[:] = 1 + action[:, 0]
        self.terminated[:] = action[:, 0] >= 1
        self.time_outs[:] = self.episode_length_buf >= LIMIT
        self.ended = self.terminated | self.time_outs
        return self.observe(), self.reward_buf, self.terminated, self.time_outs, self.extras

    def render(self):
        return None if self.render_mode is None else np.zeros((4, 6, 3), np.uint8)

    def close(self):
        self.closed = True


@pytest.fixture
def mjlab(monkeypatch):
    """Modules where mjlab's are looked for, with one registered task; what it was made with is kept."""
    asked = SimpleNamespace(refuse=None, cfg=None)

    def load_env_cfg(name):
        asked.cfg = SimpleNamespace(
            scene=SimpleNamespace(num_envs=1), seed=42, auto_reset=True, episode_length_s=20.0, rewards={}
        )
        return asked.cfg

    def made(**named):
        if asked.refuse:
            raise asked.refuse
        return Env(**named)

    runner = SimpleNamespace(num_steps_per_env=8, obs_groups={"actor": ("actor",), "critic": ("critic",)})
    tables = {
        "list_tasks": lambda: ["Mjlab-Fake-Pole"],
        "load_env_cfg": load_env_cfg,
        "load_rl_cfg": lambda name: runner,
    }
    modules = {
        "mjlab": {},
        "mjlab.tasks": {},
        "mjlab.tasks.registry": tables,
        "mjlab.envs": {"ManagerBasedRlEnv": made},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(registry, "_installed", lambda name: True)
    return asked


def built(*words, num_envs=2, render=False):
    run = config.resolve(["task=mjlab:Mjlab-Fake-Pole", "device=cpu", *words])
    return build_external(run, num_envs, render=render)


def actions(*numbers):
    return torch.tensor(numbers)[:, None]


def test_only_ended_environments_are_reset_and_have_terminal_observations(mjlab):
    env = built()
    begun = env.reset()["policy"].clone()
    result = env.step(actions(1.5, 0.5))
    assert result.terminated.tolist() == [True, False]
    assert result.reward.tolist() == [2.5, 1.5]
    assert result.terminal_observations["policy"].tolist() == [[begun[0, 0], 1], [begun[1, 0], 1]]
    assert result.observations["policy"].tolist() == [[begun[0, 0] + 10, 0], [begun[1, 0], 1]]
    assert result.observations["critic"].shape == (2, 4)


def test_a_time_out_is_not_a_termination(mjlab):
    env = built()
    env.reset()
    for _ in range(LIMIT):
        result = env.step(actions(0.0, 0.0))
    assert result.truncated.all()
    assert not result.terminated.any()
    assert env.step(actions(0.0, 0.0)).observations["policy"][:, 1].tolist() == [1, 1]


def test_numbers_logged_by_a_reset_are_reported(mjlab):
    env = built()
    env.reset()
    env.drain()
    env.step(actions(1.0, 1.0))
    env.step(actions(0.0, 0.0))
    assert env.drain()["metric/Episode_Termination/count"] == 2.0


def test_num_envs_and_seed_are_set_by_robolearn_and_the_rest_by_task_cfg(mjlab):
    env = built("task.cfg.episode_length_s=5", num_envs=3)
    assert (env.num_envs, mjlab.cfg.auto_reset, mjlab.cfg.episode_length_s) == (3, False, 5.0)
    assert mjlab.cfg.seed != 42
    with pytest.raises(ConfigError, match="decided by num_envs="):
        built("task.cfg.scene.num_envs=3")
    with pytest.raises(ConfigError, match="did you mean episode_length_s"):
        built("task.cfg.episode_length=3")


def test_groups_names_and_images_come_from_mjlab(mjlab):
    env = built(render=True)
    assert {group: len(names) for group, names in env.columns.items()} == {"policy": 2, "critic": 4}
    assert env.contract().actions[0]["joint"] == "motor.hinge"
    assert env.render().shape == (4, 6, 3)
    with pytest.raises(ConfigError, match="does not render images"):
        built().render()


def test_a_misspelt_id_gets_a_suggestion_of_mjlab(mjlab):
    assert registry.load("tasks", "mjlab:Fake-Pole")().name == "mjlab:Mjlab-Fake-Pole"
    with pytest.raises(ConfigError, match="no mjlab task 'Mjlab-Fake-Pool': did you mean Mjlab-Fake-Pole"):
        registry.load("tasks", "mjlab:Mjlab-Fake-Pool")


def test_an_exception_of_the_constructor_is_one_line(mjlab):
    mjlab.refuse = RuntimeError("no\nmesh")
    with pytest.raises(ConfigError, match="cannot be made: RuntimeError: no mesh"):
        built()


def test_without_mjlab_the_answer_is_how_to_install_it(monkeypatch):
    monkeypatch.setattr(registry, "_installed", lambda name: name != "mjlab")
    with pytest.raises(MissingError, match=r"needs mjlab: .*mjlab==1\.6\.0"):
        registry.load("tasks", "mjlab:Mjlab-Cartpole-Balance")
