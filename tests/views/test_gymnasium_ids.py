"""Tasks as gymnasium ids, used by gymnasium and stable-baselines3."""

from __future__ import annotations

import random
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from stable_baselines3 import PPO
from stable_baselines3.common.env_checker import check_env as sb3_check_env
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from robolearn.config import registry
from robolearn.errors import ConfigError, MissingError
from robolearn.sb3 import as_sb3
from robolearn.views import gymnasium_ids, gymnasium_tasks
from tests.conftest import install

CARTPOLE, HUMANOID = "robolearn/CartpoleBalance-v0", "robolearn/HumanoidWalk-v0"
BY_MODULE = f"robolearn.gymnasium_ids:{CARTPOLE}"
HEAVY = ("torch", "mujoco", "warp", "newton", "rsl_rl", "hydra")


def run_python(code: str, env: dict[str, str] | None = None) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def made() -> Iterator[Any]:
    """gymnasium.make and make_vec (where num_envs is given), closed after the test."""
    envs: list[Any] = []

    def make(name: str, **keywords: Any) -> Any:
        maker = gymnasium.make_vec if "num_envs" in keywords else gymnasium.make
        envs.append(maker(name, **keywords))
        return envs[-1]

    yield make
    for env in envs:
        env.close()


@pytest.fixture
def ids_kept() -> Iterator[None]:
    """gymnasium's registry, as it was."""
    before = dict(gymnasium.registry)
    yield
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


# ---------------------------------------------------------------------------------------- ids


def test_every_task_has_an_id() -> None:
    ours = {name for name, entry in registry.entries("tasks").items() if entry.source == registry.OURS}
    found = gymnasium_ids.register()
    assert ours <= set(found.values())
    assert found[HUMANOID] == "humanoid_walk"
    assert found[CARTPOLE] == "cartpole_balance"
    assert set(found) <= set(gymnasium.registry)


def test_an_id_with_the_module_needs_no_import_and_registering_imports_no_torch() -> None:
    light = (
        "import sys, robolearn.gymnasium_ids\n"
        f"heavy = [m for m in {HEAVY!r} if m in sys.modules]; assert not heavy, heavy\n"
    )
    assert run_python(light) == ""
    code = (
        "import gymnasium\n"
        f"env = gymnasium.make({BY_MODULE!r}, settings={{'task.episode_length_s': 0.04}})\n"
        "env.reset(seed=1); env.step(env.action_space.sample()); print(env.step([0.0])[3])\n"
    )
    assert run_python(code) == "True\n"


def test_tasks_of_other_packages_have_ids_too(outside: dict[str, str]) -> None:
    name = "robolearn.gymnasium_ids:robolearn/LongpoleBalance-v0"
    code = f"import gymnasium; print(gymnasium.make({name!r}).reset(seed=1)[0].shape)"
    assert run_python(code, outside) == "(4,)\n"


def test_a_broken_package_does_not_affect_other_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ids_kept: None, made: Any
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[project]\nname = "broken"\nversion = "1"\ndescription = "No good"\n'
        '[project.entry-points."robolearn.tasks"]\nsunk_ship = "nowhere:Ship"\n"no id" = "nowhere:Ship"\n'
    )
    install(tmp_path / "site", project)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    registry.refresh()
    try:
        for name in gymnasium_ids.register():
            gymnasium.registry.pop(name)
        found = gymnasium_ids.register()
        assert found["robolearn/SunkShip-v0"] == "sunk_ship"
        assert "no id" not in found.values()
        with pytest.raises(ConfigError, match="sunk_ship cannot be used: there is no module nowhere"):
            made("robolearn/SunkShip-v0")
        made(CARTPOLE)
    finally:
        monkeypatch.undo()
        registry.refresh()


def test_a_spec_saved_as_json_makes_the_same_environment(made: Any) -> None:
    env = made(CARTPOLE, settings={"task.force": 10.0})
    again = made(gymnasium.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert again.unwrapped.env.task.force == 10.0


# ---------------------------------------------------------------------------------------- settings


def test_settings_are_a_dictionary_or_key_value_words(made: Any) -> None:
    rewards = {"upright": 1.0, "centred": 0.0, "effort": 0.0, "alive": np.float64(2.0)}
    envs = [
        made(CARTPOLE, backend="mujoco", settings={"task.start_angle": 0, "task.rewards": rewards}),
        made(CARTPOLE, settings=["task.start_angle=0", "task.rewards.centred=0", "task.rewards.effort=0",
                                 "task.rewards.alive=2"]),
    ]  # fmt: skip
    for env in envs:
        env.reset(seed=1)
        _, reward, *_ = env.step(np.zeros(1))
        assert reward == pytest.approx(3 * 0.02, rel=1e-4)  # upright and alive, 1 + 2 a second, for 20 ms
        assert env.unwrapped.env.backend.capabilities.name == "mujoco"


def test_settings_of_every_type_are_accepted(made: Any) -> None:
    settings = {
        "task.pushes": {"speed": [0, 0]},
        "task.action_delay": (0, 2),
        "task.randomize": {"friction": [0.5, np.float32(0.75)]},
        "task.robot": "humanoid",
        "backend.threads": 1,
        "device": "cpu",
    }
    task = made(HUMANOID, settings=settings).unwrapped.env.task
    assert tuple(task.randomize["friction"]) == (0.5, 0.75)
    assert tuple(task.action_delay) == (0, 2)
    assert tuple(task.pushes.speed) == (0.0, 0.0)
    assert gymnasium_tasks._word("a", None) == "a=null"
    assert gymnasium_tasks._word("a", True) == "a=true"
    assert gymnasium_tasks._word("a", "it's") == r"a='it\'s'"
    assert task.robot == "humanoid"


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"settings": {"task.rewards.aliv": 1}}, r"did you mean task\.rewards\.alive"),
        ({"settings": {"task.force": -1}}, r"task\.force.*0"),
        ({"settings": {"task.force": "it's"}}, r"task\.force"),
        ({"settings": ["task.force"]}, "write key=value"),
        ({"settings": "task.force=1"}, "settings= takes"),
        ({"settings": {"learner.gamma": 0.9}}, "not a setting of an environment"),
        ({"settings": {"max_iterations": 3}}, "not a setting of an environment"),
        ({"settings": {"num_envs": 3}}, "make_vec"),
        ({"settings": {"task": "humanoid_walk"}}, "set by the id"),
        ({"bakend": "mujoco"}, "did you mean backend"),
        ({"episode_length_s": 3}, "as settings="),
        ({"backend": "mojoco"}, "did you mean mujoco"),
        ({"action_bound": -1.0}, "above 0"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_invalid_arguments_are_refused_in_one_line(keywords: dict[str, Any], says: str) -> None:
    for make in (gymnasium.make, gymnasium.make_vec):
        with pytest.raises(ConfigError, match=says) as refused:
            make(CARTPOLE, **keywords)
        assert "\n" not in str(refused.value)


def test_unsupported_features_of_gymnasium_are_refused(made: Any) -> None:
    with pytest.raises(ConfigError, match="do not render"):
        gymnasium.make_vec(CARTPOLE, num_envs=2, render_mode="rgb_array")
    with pytest.raises(ConfigError, match="task"):  # our Env owns the time limits
        gymnasium.make_vec(CARTPOLE, num_envs=2, max_episode_steps=3)
    one, two = made(CARTPOLE).unwrapped, made(CARTPOLE, num_envs=2)
    for env in (one, two):
        with pytest.raises(ConfigError, match="no options, but was given reset_mask"):
            env.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(ConfigError, match="one whole number"):
        two.reset(seed=[1, 2])
    with pytest.raises(ConfigError, match=r"shape \(2,\); expected \(1,\)"):
        one.step(np.zeros(2))
    with pytest.raises(ConfigError, match=r"shape \(2,\); expected \(2, 1\)"):
        two.step(np.zeros(2))


# ---------------------------------------------------------------------------------------- episodes


def test_a_task_of_several_agents_is_no_gymnasium_environment(made: Any) -> None:
    for size in ({}, {"num_envs": 2}):
        with pytest.raises(ConfigError, match="Carry"):
            made("robolearn/Carry-v0", **size)


def test_time_limits_are_the_tasks(made: Any) -> None:
    env = made(CARTPOLE, settings={"task.episode_length_s": 0.06})
    assert "TimeLimit" not in repr(env)
    env.reset(seed=1)
    assert [env.step(np.zeros(1))[3] for _ in range(3)] == [False, False, True]
    # gymnasium's own, where it is asked for, comes on top: the shorter one counts.
    env = made(CARTPOLE, max_episode_steps=2)
    env.reset(seed=1)
    assert [env.step(np.zeros(1))[3] for _ in range(2)] == [False, True]


@pytest.mark.parametrize("name", [CARTPOLE, HUMANOID])
@pytest.mark.parametrize("size", [{}, {"num_envs": 3}], ids=["one", "many"])
def test_a_seed_makes_everything_after_it_reproducible(name: str, size: dict, made: Any) -> None:
    first, second = (made(name, settings={"task.episode_length_s": 0.5}, **size) for _ in range(2))
    shape = first.action_space.shape
    second.reset()  # `second` has a past that `first` has not
    for _ in range(7):
        second.step(np.full(shape, 0.5))
    actions = np.random.default_rng(0).uniform(-1, 1, (60, *shape))

    def life(env: Any) -> list[Any]:
        seen: list[Any] = [env.reset(seed=5)]
        for action in actions:  # two episodes of 25 steps and the beginning of a third
            seen.append(env.step(action))
            if not size and (seen[-1][2] or seen[-1][3]):
                seen.append(env.reset())
        return seen

    past = life(first)
    assert gymnasium.utils.env_checker.data_equivalence(past, life(second), exact=True)
    assert gymnasium.utils.env_checker.data_equivalence(past, life(first), exact=True)


def test_environments_without_a_seed_differ_and_with_one_agree(made: Any) -> None:
    def start(**keywords: Any) -> Any:
        return made(CARTPOLE, **keywords).reset()[0]

    assert not np.array_equal(start(), start())
    assert np.array_equal(start(seed=3), start(seed=3))
    assert np.array_equal(start(seed=3), start(settings={"seed": 3}))


def test_making_an_environment_keeps_the_global_generators(made: Any) -> None:
    def drawn() -> tuple[float, ...]:
        return random.random(), np.random.rand(), torch.rand(1).item()  # noqa: NPY002

    def seeded() -> None:
        random.seed(11)
        np.random.seed(11)  # noqa: NPY002
        torch.manual_seed(11)

    seeded()
    wanted = drawn()
    seeded()
    made(CARTPOLE, seed=4)
    made(CARTPOLE, num_envs=2)
    assert drawn() == wanted


# ---------------------------------------------------------------------------------------- many environments


def test_many_environments_are_one_simulation(made: Any) -> None:
    envs = made(CARTPOLE, num_envs=64)
    assert isinstance(envs, VectorEnv)
    assert envs.unwrapped.env.backend.num_envs == 64
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert envs.spec.id == CARTPOLE
    assert isinstance(made(CARTPOLE, num_envs=1), VectorEnv)


def layout(value: Any) -> Any:
    """What a learner can rely on: keys, types and shapes."""
    if isinstance(value, dict):
        return {key: layout(item) for key, item in value.items()}
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [layout(item) for item in value]
    return (value.shape, value.dtype) if isinstance(value, np.ndarray) else type(value)


@pytest.mark.parametrize("name", [CARTPOLE, HUMANOID])
def test_one_row_equals_gymnasiums_vector_environment_bit_for_bit(name: str, made: Any) -> None:
    settings = {"task.episode_length_s": 0.3}
    theirs = SyncVectorEnv([lambda: made(name, settings=settings)], autoreset_mode=AutoresetMode.SAME_STEP)
    ours = made(name, num_envs=1, settings=settings)
    assert ours.single_action_space == theirs.single_action_space
    assert ours.action_space == theirs.action_space
    assert ours.observation_space == theirs.observation_space
    a, b = ours.reset(seed=2), theirs.reset(seed=2)
    equal = gymnasium.utils.env_checker.data_equivalence
    assert equal(a, b, exact=True)
    ends = 0
    for step in range(40):
        action = np.sin(np.arange(ours.action_space.shape[1]) + step)[None]
        a, b = ours.step(action), theirs.step(action)
        assert layout(a[4]) == layout(b[4])
        assert equal(a, b, exact=True), step
        ends += "final_obs" in a[4]
    assert ends == 2  # after 15 and 30 steps


def test_ended_and_running_rows_are_laid_out_as_by_gymnasium(made: Any) -> None:
    theirs = SyncVectorEnv([lambda: made(CARTPOLE)] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    ours = made(CARTPOLE, num_envs=3)
    seen = {}
    for envs in (theirs, ours):
        assert layout(envs.reset(seed=4)[1]) == layout(envs.reset(seed=4)[1])
        for _ in range(100):
            # Only the middle cart is pushed off: it ends, and the others, which start near balance, may go on.
            *_, terminated, truncated, info = envs.step(np.array([[0.0], [3.0], [0.0]]))
            if (terminated | truncated).tolist() == [False, True, False]:
                break
        seen[envs] = info
        assert info["_final_obs"].tolist() == info["_final_info"].tolist() == [False, True, False]
        assert info["final_info"]["_pole_angle"].tolist() == [False, True, False]
        assert info["_pole_angle"].tolist() == [True, False, True]
        assert info["_critic"].tolist() == [True, True, True]
        assert info["final_info"]["pole_angle"][1] == pytest.approx(abs(info["final_obs"][1][1]), abs=0.1)
        assert info["final_info"]["pole_angle"][0] == 0
        assert info["pole_angle"][1] == 0
    assert layout(seen[ours]) == layout(seen[theirs])


# ---------------------------------------------------------------------------------------- checkers and pictures

ADVICE = ("symmetric and normalized", "minimum value is -infinity", "maximum value is infinity")
"""Warnings of the checkers that do not apply: sensors have no bounds, and actions have the bound 5."""


@pytest.mark.parametrize("name", [CARTPOLE, HUMANOID])
@pytest.mark.parametrize("bound", [5.0, 1.0])
def test_both_checkers_pass(name: str, bound: float, made: Any) -> None:
    env = made(name, action_bound=bound)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        check_env(env.unwrapped, skip_render_check=True)
        sb3_check_env(env)
    # With a bound of 1 the advice on actions is followed.
    left = ADVICE if bound > 1 else ADVICE[1:]
    texts = [str(warning.message) for warning in said if warning.category is not DeprecationWarning]
    assert {advice for advice in ADVICE if any(advice in text for text in texts)} == set(left)
    assert [text for text in texts if not any(advice in text for advice in left)] == []


def test_one_environment_draws_its_robot(made: Any) -> None:
    env = made(HUMANOID, render_mode="rgb_array")
    assert env.metadata["render_fps"] == pytest.approx(50)
    env.reset(seed=1)
    try:
        before = env.render()
    except MissingError as error:
        pytest.skip(str(error))
    assert before.shape == (480, 640, 3)
    assert before.dtype == np.uint8
    for _ in range(10):
        env.step(np.zeros(21))
    assert np.any(env.render() != before)
    assert made(CARTPOLE).unwrapped.render() is None


# ---------------------------------------------------------------------------------------- stable-baselines3


@pytest.mark.slow
def test_ppo_of_stable_baselines3_learns_to_balance(made: Any) -> None:
    torch.set_num_threads(1)
    envs = as_sb3(made(CARTPOLE, num_envs=64))
    ppo = PPO("MlpPolicy", envs, n_steps=32, batch_size=512, n_epochs=5, learning_rate=1e-3, gamma=0.98,
              device="cpu", seed=1)  # fmt: skip
    before, _ = evaluate_policy(ppo, envs, n_eval_episodes=64)
    ppo.learn(100_000)
    after, _ = evaluate_policy(ppo, envs, n_eval_episodes=64)
    # Upright and alive earn 1 a second each, an episode lasts 10 s: 20 is the most there is.
    assert before < 10
    assert after > 19
    assert len(ppo.ep_info_buffer) > 0  # returns and lengths are logged


def test_stable_baselines3_gets_terminal_observations(made: Any) -> None:
    envs = as_sb3(made(CARTPOLE, num_envs=2, settings={"task.episode_length_s": 0.04, "task.start_angle": 0}))
    envs.seed(1)
    envs.reset()
    assert envs.step(np.zeros((2, 1)))[3] == [{}, {}]
    observations, rewards, dones, infos = envs.step(np.zeros((2, 1)))
    assert rewards.dtype == np.float32
    assert dones.tolist() == [True, True]
    for row, info in enumerate(infos):
        assert info["TimeLimit.truncated"] is True
        assert info["episode"]["l"] == 2
        assert not np.array_equal(info["terminal_observation"], observations[row])
    envs = as_sb3(made(CARTPOLE, num_envs=1))
    envs.reset()
    infos = next(i for i in (envs.step(np.full((1, 1), 3.0))[3] for _ in range(100)) if i[0])
    assert infos[0]["TimeLimit.truncated"] is False  # the pole was lost


def test_a_seed_for_stable_baselines3_is_used_once(made: Any) -> None:
    envs = as_sb3(made(CARTPOLE, num_envs=2))
    starts = []
    for _ in range(2):
        envs.seed(6)
        starts += [envs.reset(), envs.reset()]
    assert np.array_equal(starts[0], starts[2])
    assert np.array_equal(starts[1], starts[3])
    assert not np.array_equal(starts[0], starts[1])


def test_environments_without_same_step_autoreset_are_refused(made: Any) -> None:
    with pytest.raises(ConfigError, match="does not reset in the step that ends"):
        as_sb3(SyncVectorEnv([lambda: made(CARTPOLE)]))


def test_stable_baselines3s_own_vector_environment_takes_the_id() -> None:
    envs = make_vec_env(BY_MODULE, n_envs=2, seed=1, env_kwargs={"settings": {"task.episode_length_s": 0.04}})
    start = envs.reset()
    assert not np.array_equal(start[0], start[1])
    envs.step(np.zeros((2, 1)))
    assert envs.step(np.zeros((2, 1)))[2].tolist() == [True, True]
    envs.close()
