"""task=isaaclab:ID without Isaac Lab: ids, configuration, physics, defaults and refusals, with fake modules."""

from __future__ import annotations

import re
import sys
from types import ModuleType, SimpleNamespace

import gymnasium
import pytest

from robolearn import config
from robolearn.config import registry
from robolearn.errors import ConfigError, MissingError
from robolearn.learners.ppo.config import PPOConfig
from robolearn.training.build import build_external
from tests.external.lab import Config, Frame, Lab, Newton


@pytest.fixture
def lab(monkeypatch):
    """Modules where Isaac Lab's are looked for, and three registered tasks; what was asked of them is kept."""
    asked = SimpleNamespace(
        overrides=None, made=None, presets={"physics": ["newton_mjwarp", "physx"]}, refuse=None
    )

    def parse_env_cfg(name, overrides=()):
        asked.overrides = list(overrides)
        cfg = Config()
        if "physics=newton_mjwarp" in overrides:
            cfg.sim.physics = Newton("the task's own")
        if "Two" in name or "presets=two" in overrides:
            cfg.possible_agents = ["cart", "pole"]
        return cfg

    def load_cfg_from_registry(name, entry):
        if entry == "env_cfg_entry_point":
            return parse_env_cfg(name)
        return {"agent": {"rollouts": 12}} if entry.startswith("skrl") else runner

    def make(cfg, **_):
        if asked.refuse:
            raise asked.refuse
        asked.made = Lab(cfg, cfg.scene.num_envs)
        return asked.made

    runner = SimpleNamespace(
        num_steps_per_env=16,
        algorithm=SimpleNamespace(gamma=0.98, num_mini_batches=4, learning_rate=1.0),
        actor=SimpleNamespace(hidden_dims=[32, 32], activation="selu"),
        obs_groups={"actor": ["policy"]},
    )
    utils = {
        "parse_env_cfg": parse_env_cfg,
        "load_cfg_from_registry": load_cfg_from_registry,
        "resolve_presets": lambda cfg: cfg,
    }
    cli = {
        "enumerate_task_presets": lambda _: asked.presets,
        "PresetTarget": SimpleNamespace(PHYSICS="physics"),
    }
    newton = {"NewtonCfg": Newton, "MJWarpSolverCfg": lambda: "plain"}
    modules = {
        "isaaclab_tasks": {},
        "isaaclab_tasks.utils": utils,
        "isaaclab_tasks.utils.preset_cli": cli,
        "isaaclab_newton": {},
        "isaaclab_newton.physics": newton,
    }
    for name, content in modules.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(registry, "_installed", lambda name: True)
    entries = {"env_cfg_entry_point": "x:y", "rsl_rl_cfg_entry_point": "x:z"}
    ids = ["Isaac-Fake-Cart", "Isaac-Fake-Two", "IsaacContrib-Fake-Ant"]
    for id in ids:
        skrl = {"skrl_mappo_cfg_entry_point": "x:s.yaml"} if "Two" in id else {}
        gymnasium.register(id, entry_point=make, kwargs=entries | skrl)
    yield asked
    for id in ids:
        del gymnasium.registry[id]


def built(*words, num_envs=2):
    return build_external(config.resolve(["task=isaaclab:Isaac-Fake-Cart", "device=cpu", *words]), num_envs)


def test_a_task_gets_its_number_of_robots_its_device_and_its_own_settings_for_newton(lab):
    env = built(num_envs=5)
    cfg = lab.made.cfg
    assert lab.overrides == ["physics=newton_mjwarp"]
    assert (cfg.scene.num_envs, cfg.sim.device, cfg.sim.physics.solver_cfg) == (5, "cpu", "the task's own")
    assert cfg.compute_final_obs
    assert isinstance(cfg.seed, int)
    assert env.num_envs == 5
    env.close()
    assert lab.made.closed


def test_a_task_with_physx_only_gets_default_newton(lab):
    lab.presets = None
    built()
    assert lab.overrides == []
    assert lab.made.cfg.sim.physics.solver_cfg == "plain"


def test_physics_that_needs_isaac_sim_is_refused(lab):
    with pytest.raises(ConfigError, match="needs Isaac Sim"):
        built("task.physics=physx")
    with pytest.raises(ConfigError, match="has auto, newton_mjwarp, physx"):
        built("task.physics=newton")


def test_settings_are_applied_with_the_types_of_the_tasks_configuration(lab):
    built(
        "task.cfg.episode_length_s=7",
        "task.cfg.scene.robot.usd_path=here.usd",
        "task.cfg.scene.robot.scale=[2,2]",
        "task.cfg.rewards.alive.params.std=1",
        "task.cfg.frame=BASE",
        "task.cfg.terminations.fell=null",
    )
    cfg = lab.made.cfg
    assert (cfg.episode_length_s, type(cfg.episode_length_s)) == (7.0, float)
    assert (cfg.scene.robot.usd_path, cfg.scene.robot.scale) == ("here.usd", (2, 2))
    assert cfg.rewards["alive"].params == {"std": 1.0}
    assert (cfg.frame, cfg.terminations.fell) == (Frame.BASE, None)


def test_new_settings_are_added_to_the_saved_ones(lab, tmp_path):
    run = config.resolve(
        ["task=isaaclab:Isaac-Fake-Cart", "device=cpu", "task.cfg.scene.robot.usd_path=here.usd"]
    )
    config.save(run, tmp_path / "config.yaml")
    build_external(config.load(tmp_path / "config.yaml", ["task.cfg.scene.robot.scale=[2,2]"]), 1)
    assert (lab.made.cfg.scene.robot.usd_path, lab.made.cfg.scene.robot.scale) == ("here.usd", (2, 2))


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("task.cfg.episode_lenght_s=1", "'task.cfg.episode_lenght_s': did you mean episode_length_s?"),
        ("task.cfg.scene.robt.scale=1", "'task.cfg.scene.robt': did you mean robot?"),
        ("task.cfg.episode_length_s=long", "task.cfg.episode_length_s takes a number, not 'long'"),
        ("task.cfg.episode_length_s.x=1", "task.cfg.episode_length_s is one value"),
        ("task.cfg.debug=3", "task.cfg.debug takes true or false"),
        ("task.cfg.frame=SKY", "task.cfg.frame takes one of WORLD, BASE"),
        ("task.cfg.scene.robot=1", "task.cfg.scene.robot has parts"),
        ("task.cfg.scene.num_envs=8", "task.cfg.scene.num_envs is decided by num_envs="),
        ("task.cfg.sim.physics=1", "task.cfg.sim.physics is decided by task.physics="),
    ],
)
def test_a_change_that_does_not_fit_the_configuration_is_refused_in_one_line(lab, word, answer):
    with pytest.raises(ConfigError, match=re.escape(answer)):
        built(word)


def test_the_published_settings_are_the_learners_defaults(lab):
    run = config.resolve(["task=isaaclab:Isaac-Fake-Cart", "device=cpu"])
    assert (run.learner.num_steps, run.learner.gamma, run.learner.actor_hidden) == (16, 0.98, (32, 32))
    assert run.learner.minibatch_size == 16 * 1024 // 4
    assert run.task.policy_groups == ["policy"]
    # An activation and a step size that our PPO has not are left as they were.
    assert (run.learner.activation, run.learner.learning_rate) == ("elu", PPOConfig().learning_rate)


def test_the_prefix_may_be_omitted_and_a_misspelt_id_gets_a_suggestion(lab):
    assert registry.load("tasks", "isaaclab:Fake-Cart")().name == "isaaclab:Isaac-Fake-Cart"
    with pytest.raises(
        ConfigError, match=r"no Isaac Lab task 'Isaac-Fake-Crat': did you mean Isaac-Fake-Cart"
    ):
        registry.load("tasks", "isaaclab:Isaac-Fake-Crat")
    with pytest.raises(ConfigError, match="no module 'nowhere_at_all'"):
        registry.load("tasks", "isaaclab:nowhere_at_all:Isaac-Fake-Cart")
    # An environment of gymnasium's own is none of Isaac Lab's.
    with pytest.raises(ConfigError, match="no Isaac Lab task"):
        registry.load("tasks", "isaaclab:Pendulum-v1")


def test_a_task_of_several_agents_has_settings_of_its_own_and_its_defaults_are_those_for_skrl(lab):
    run = config.resolve(["task=isaaclab:Fake-Two", "device=cpu", "task.agent_id=on"])
    assert (type(run.task).several, run.task.name) == (True, "isaaclab:Isaac-Fake-Two")
    assert run.learner.num_steps == 12
    with pytest.raises(ConfigError, match="agent_id"):
        config.resolve(["task=isaaclab:Isaac-Fake-Cart", "task.agent_id=on"])


def test_a_preset_that_makes_several_agents_of_one_is_refused(lab):
    with pytest.raises(ConfigError, match="presets=two"):
        built("task.presets=[two]")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError("https://far/away.usd"), "https://far/away.usd; set a local"),
        (
            RuntimeError("Simulation context\nalready exists."),
            "RuntimeError: Simulation context already exists.",
        ),
    ],
)
def test_an_exception_of_the_constructor_is_one_line_with_the_fix(lab, error, words):
    lab.refuse = error
    with pytest.raises(ConfigError, match=re.escape(words)):
        built()


def test_evaluations_have_another_seed_than_training(lab):
    run = config.resolve(["task=isaaclab:Isaac-Fake-Cart", "device=cpu"])
    build_external(run, 1)
    first = lab.made.cfg.seed
    build_external(run, 1, rank=1_000_000)
    assert lab.made.cfg.seed != first


def test_without_isaac_lab_the_answer_is_how_to_install_it(monkeypatch):
    monkeypatch.setattr(registry, "_installed", lambda name: not name.startswith("isaaclab"))
    with pytest.raises(MissingError, match=r"needs isaaclab_tasks, isaaclab_newton: .*isaaclab==3\.0\.0"):
        registry.load("tasks", "isaaclab:Isaac-Cartpole")


def test_isaac_lab_2_is_refused(monkeypatch):
    monkeypatch.setattr(registry, "_installed", lambda name: name != "isaaclab_newton")
    with pytest.raises(MissingError, match="needs isaaclab_newton"):
        registry.load("tasks", "isaaclab:Isaac-Cartpole")
