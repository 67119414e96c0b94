"""Randomized parameters of an Env: from which distribution, when, at which level, and what the critic sees of them."""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from robolearn.config.run_config import resolve
from robolearn.core.env import Env
from robolearn.core.task_check import check_backend
from robolearn.errors import ConfigError
from robolearn.tasks.cartpole import CartpoleBalance
from robolearn.tasks.mdp.context import Random
from robolearn.tasks.mdp.randomization import Randomized
from robolearn.tasks.mdp.stated import level
from robolearn.tasks.velocity import Velocity
from robolearn.training.active import active
from robolearn.training.build import build_env, make_backend, make_env, make_robot, scene_of

CARTPOLE = [
    "task=cartpole_balance",
    "num_envs=64",
    "seed=3",
    "torch_threads=1",
    "backend.threads=1",
    "task.episode_length_s=0.1",
]


def env_with(statement: str):
    return make_env(resolve([*CARTPOLE, f"task.randomize={statement}"]))


def drawn(env, name: str) -> torch.Tensor:
    return env.backend.state.params[name].clone()


def step(env) -> None:
    env.step(torch.zeros(env.num_envs, env.num_actions))


def test_a_parameter_stays_within_an_episode_and_changes_with_the_next():
    env = env_with("{damping:[0.5,2.0]}")
    first = drawn(env, "damping")
    for _ in range(4):
        step(env)
    assert torch.equal(drawn(env, "damping"), first)
    step(env)  # 0.1 s have passed
    assert (drawn(env, "damping") != first).all()
    assert len(first.unique()) == 64


def test_a_parameter_drawn_at_the_start_survives_resets():
    env = env_with("{damping:{range:[0.5,2.0],when:start}}")
    first = drawn(env, "damping")
    for _ in range(12):
        step(env)
    assert torch.equal(drawn(env, "damping"), first)
    assert len(first.unique()) == 64


def test_a_parameter_drawn_at_intervals_changes_within_episodes():
    env = make_env(
        resolve(
            [
                *CARTPOLE,
                "task.episode_length_s=10",
                "task.randomize={damping:{range:[0.5,2.0],when:interval,seconds:[0.06,0.06]}}",
            ]
        )
    )
    seen = [drawn(env, "damping")]
    for _ in range(9):
        step(env)
        seen.append(drawn(env, "damping"))
    alive = env.episode_step == 9
    changes = torch.stack([before != after for before, after in itertools.pairwise(seen)])
    # A control step takes 0.02 s: the draws come with steps 3, 6 and 9.
    assert changes[:, alive].all(dim=1).nonzero().flatten().tolist() == [2, 5, 8]
    assert not changes[[0, 1, 3, 4, 6, 7]][:, alive].any()


def test_log_uniform_factors_are_as_likely_as_their_inverses():
    values = Randomized((0.25, 4.0), distribution="log_uniform").draw(20_000, Random(1, torch.device("cpu")))
    assert values.min() >= 0.25
    assert values.max() <= 4.0
    # Half of them are below 1; of uniform ones a fifth.
    assert (values < 1).float().mean().item() == pytest.approx(0.5, abs=0.02)


def test_gaussian_values_have_two_standard_deviations_to_the_ends_of_their_range():
    values = Randomized((-2.0, 6.0), distribution="gaussian").draw(50_000, Random(1, torch.device("cpu")))
    assert values.mean().item() == pytest.approx(2.0, abs=0.05)
    # 68 % lie within one standard deviation of 2, and what is beyond two is at the ends: 2.3 % each.
    assert ((values - 2).abs() < 2).float().mean().item() == pytest.approx(0.683, abs=0.01)
    assert (values == 6).float().mean().item() == pytest.approx(0.0228, abs=0.003)
    assert (values == -2).float().mean().item() == pytest.approx(0.0228, abs=0.003)


def test_the_critic_sees_what_is_visible_and_no_more():
    widths = []
    for visible in ("true", "false"):
        statement = f"task.randomize={{payload:{{range:[0,2],visible:{visible}}}}}"
        env = make_env(resolve(["task=humanoid_walk", "num_envs=2", "torch_threads=1", statement]))
        widths.append({item.name: width for item, width in env.columns["critic"]}["physics"])
    assert widths == [4, 3]  # friction, gains, masses, and the payload where it is visible


def never_rises(state, ctx):
    return torch.zeros_like(ctx.episode_time)


def test_at_a_quarter_of_its_level_a_parameter_is_a_quarter_of_the_way_from_its_nominal_value():
    run = resolve(["task=humanoid_walk", "num_envs=16", "torch_threads=1", "backend.threads=1"])
    curricula = {**run.task.curricula, "randomize": level(never_rises, 0.25)}
    eased = replace(run, task=replace(run.task, curricula=curricula))
    full, quarter = (build_env(each, 16, training=True).backend.state.params for each in (run, eased))
    for name, nominal in (("friction", 0.8), ("mass_scale", 1.0), ("gain_scale", 1.0)):
        assert torch.allclose(quarter[name] - nominal, 0.25 * (full[name] - nominal), atol=1e-6)


@pytest.mark.parametrize(
    ("statement", "offender"),
    [
        ("{mass_scale:{when:reset}}", "range"),
        ("{mass_scale:{range:[1,2],when:sometimes}}", "when"),
        ("{mass_scale:{range:[1,2],distribution:normal}}", "distribution"),
        ("{mass_scale:{range:[1,2],sigma:1}}", "sigma"),
        ("{com_x:{range:[-0.1,0.1],distribution:log_uniform}}", "log_uniform"),
        ("{mass_scale:{range:[1,2],seconds:[1,2]}}", "seconds"),
        ("{payload:[0,1]}", "payload"),
        ("{robot/gravity_roll:[0,0.1]}", "gravity_roll"),
        ("{robot/armature_scale/elbow:[1,2]}", "elbow"),
    ],
)
def test_a_statement_that_cannot_be_drawn_names_the_offender(statement, offender):
    with pytest.raises(ConfigError, match=offender):
        env_with(statement)


def test_a_resumed_env_draws_on_as_if_it_had_not_stopped():
    statement = "{mass_scale:{range:[0.5,2.0],when:start},friction:[0.5,1],gain_scale:{range:[0.9,1.1],when:interval}}"
    run = resolve(
        [
            "task=humanoid_walk",
            "num_envs=8",
            "torch_threads=1",
            "backend.threads=1",
            f"task.randomize={statement}",
        ]
    )
    env, other = make_env(run), make_env(run)
    for _ in range(5):
        step(env)
    other.restore(env.snapshot())
    for _ in range(5):
        step(env)
        step(other)
    for name, values in env.backend.state.params.items():
        assert torch.equal(values, other.backend.state.params[name]), name
    assert torch.equal(env.observations["critic"], other.observations["critic"])
    assert math.isfinite(float(env.observations["critic"].sum()))


@pytest.mark.parametrize(
    ("lasting", "expected"),
    [
        # Pushes come with steps 5 and 10 of 0.02 s, and last for three steps.
        (0.06, [0, 0, 0, 0, 40, 40, 40, 0, 0, 40]),
        # The shortest acts for one.
        (0.005, [0, 0, 0, 0, 40, 0, 0, 0, 0, 40]),
    ],
)
def test_a_push_by_force_acts_as_long_as_it_says_and_no_longer(lasting, expected):
    settings = ["task=humanoid_walk", "num_envs=4", "torch_threads=1", "backend.threads=1"]
    settings += ["task.episode_length_s=10", "task.pushes.seconds=[0.1,0.1]", "task.pushes.force=[40,40]"]
    settings += [f"task.pushes.{part}" for part in ("speed=[0,0]", "box=[0,0,0]", "turn=[0,0,0]")]
    env = make_env(resolve([*settings, f"task.pushes.lasting=[{lasting},{lasting}]"]))
    acting = []
    for _ in range(10):
        step(env)
        acting.append(env.state.episode.shove["force"].norm(dim=1))
    wanted = torch.tensor(expected, dtype=torch.float32)[:, None].expand(10, 4)
    assert torch.allclose(torch.stack(acting), wanted, atol=1e-3)


def test_a_backend_without_forces_names_the_setting():
    run = resolve(["task=humanoid_walk", "num_envs=1", "torch_threads=1", "task.pushes.force=[1,2]"])
    env = make_env(run)
    with pytest.raises(ValueError, match="force"):
        check_backend(run.task, env.scene, replace(env.capabilities, features=frozenset()))


def test_settings_of_a_parameter_that_is_new_to_the_task_are_set_one_by_one():
    run = resolve(["task=humanoid_walk", "task.randomize.payload=[0,1]", "task.randomize.payload.when=start"])
    assert run.task.randomize["payload"] == Randomized((0.0, 1.0), when="start")


def test_a_parameter_drawn_once_cannot_wait_for_its_level_to_rise():
    run = resolve(["task=humanoid_walk", "num_envs=2", "task.randomize.friction.when=start"])
    curricula = {**run.task.curricula, "randomize": level(never_rises, 0.25)}
    with pytest.raises(ValueError, match="friction"):
        replace(run.task, curricula=curricula).validate()


def test_the_mass_of_a_robot_with_a_fixed_base_can_be_drawn_and_gains_that_no_motor_has_cannot():
    env = make_env(
        resolve(["task=arm_reach", "num_envs=4", "torch_threads=1", "task.randomize={mass_scale:[0.5,2]}"])
    )
    assert len(drawn(env, "mass_scale").unique()) == 4
    with pytest.raises(ConfigError, match="kp_scale"):
        make_env(resolve(["task=cartpole_swingup", "num_envs=2", "task.randomize={kp_scale:[0.5,2]}"]))


def test_a_task_states_a_parameter_by_its_settings_or_is_told_what_is_none():
    assert Randomized.of({"range": [0, 2], "when": "start"}) == Randomized((0.0, 2.0), when="start")
    for wrong in ({"rang": [0, 2]}, {"range": [0, 2], "whem": "start"}, {"range": 3}, (1, 2, 3), "wide"):
        with pytest.raises(ValueError, match="randomize"):
            Randomized.of(wrong)


def test_the_delay_of_motors_that_have_none_is_refused_with_what_to_state():
    run = resolve(["task=cartpole_balance", "task.randomize.motor_delay=[0,0.5]"])
    capabilities = SimpleNamespace(timestep=run.task.control_dt, name="mujoco", params={"friction"})
    with pytest.raises(ValueError, match=r"motor_delay.*robot\.actuators"):
        check_backend(run.task, scene_of(run), capabilities)


def test_a_task_whose_class_takes_arguments_needs_no_default_of_it():
    class Sized(CartpoleBalance):
        def __init__(self, size: float) -> None:
            super().__init__()

    run = resolve(["task=cartpole_balance"])
    env = Env(Sized(1.0), make_robot(run), make_backend(run, 2))
    env.step(torch.zeros(2, env.num_actions))


def test_gains_that_a_task_randomizes_by_default_are_left_out_where_no_motor_is_a_pd_law():
    motors = "robot.actuators={*: {model: dcmotor, resistance: 1, motor_constant: 1, voltage: 48}}"
    words = ["task=humanoid_walk", "num_envs=2", "torch_threads=1", motors]
    for stated in ([], ["task.randomize.gain_scale=[0.9,1.1]"], ["task.randomize.gain_scale=[1,1]"]):
        run = resolve([*words, *stated])
        env = make_env(run)
        step(env)
        assert set(env.backend.state.params) == {"friction", "mass_scale"}
        assert dict(active(run.task, scene=env.scene)["randomize"])["gain_scale"] == "off"
    with pytest.raises(ConfigError, match="gain_scale"):
        make_env(resolve([*words, "task.randomize.gain_scale=[0.8,1.2]"]))


@pytest.mark.parametrize("name", ["pushes", "commands"])
def test_pushes_and_commands_as_a_dictionary_are_refused_with_what_to_write(name):
    task = Velocity(**{name: {"speed": (0.0, 1.0)}})
    with pytest.raises(ValueError, match=rf"{name} is a dictionary"):
        task.validate()
