"""What the policy observes beside the truth: noise, bias, delay, drop-out, errors of the sensors, history."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch

from robolearn import config
from robolearn.core.arrival import Arrival
from robolearn.core.env import Env
from robolearn.core.noise import EpisodeNoise
from robolearn.core.sensor_errors import rotation
from robolearn.envs.state import quat_rotate
from robolearn.errors import ConfigError
from robolearn.tasks.cartpole import CartpoleBalance
from robolearn.tasks.mdp.context import Random
from robolearn.tasks.mdp.observations import VOCABULARY, Observation
from robolearn.tasks.mdp.sensing import Sensing
from robolearn.tasks.mdp.sensors import Sensor
from robolearn.training.build import make_env as built
from tests.no_sync import no_host_sync
from tests.toy import DT, Home, toy_env

CPU = torch.device("cpu")

EVERYTHING: dict[str, Any] = {
    "noise": {"joint_pos_rel": 0.01, "joint_vel_rel": 0.1},
    "sensing": {
        "joint_pos_rel": Sensing(slow=(0.02, 0.5), bias=(-0.1, 0.1), delay=(0, 3), dropout=0.3),
        "joint_vel_rel": Sensing(slow=(0.1, 0.1), delay=(1, 2)),
    },
    "history": {"policy": 3, "critic": 2},
    "randomize": {"encoder_bias": (-0.02, 0.02)},
    "action_delay": (0, 2),
    "observation_delay": (0, 2),
    "packet_loss": 0.2,
}
"""Every error of sensors and messages that a cartpole can have."""


def points(num_envs: int = 2, **settings: Any) -> Env:
    """Points that start at 1 and move by 0.1 in a step with action 1; the policy observes (x, 0), and (x, 0) and the
    last action the critic."""
    task = Home(**settings)
    task.validate()
    return toy_env(task, num_envs, gradients=False)[0]


def moved(env: Env, steps: int) -> list[list[float]]:
    """The policy's observations of the first point at the start and after each step with action 1, rounded."""
    rows = [env.observations["policy"]] + [
        env.step(torch.ones(env.num_envs, 1)).observations["policy"] for _ in range(steps)
    ]
    return [[round(x, 4) for x in row[0].tolist()] for row in rows]


def test_a_delay_of_two_steps_arrives_exactly_two_steps_late_and_at_the_critic_at_once():
    env = points(sensing={"joint_pos_rel": Sensing(delay=(2, 2))})
    assert [row[0] for row in moved(env, 5)] == [1.0, 1.0, 1.0, 1.1, 1.2, 1.3]
    assert env.observations["critic"][0, 0].item() == pytest.approx(1.5)


PLACE = Sensor("place", "m", compute=lambda state: state.robot.joint_pos[:, 0])


@dataclass
class Placed(Home):
    """The policy observes a sensor whose reading is one number."""

    sensors: ClassVar[tuple[Sensor, ...]] = (PLACE,)
    observations: ClassVar[dict[str, tuple[str | Observation, ...]]] = {
        "policy": (Observation("place", lambda state, ctx: PLACE(state)[:, None], "same"),),
        "critic": ("joint_pos_rel",),
    }


def test_a_sensor_of_one_number_arrives_late():
    env = toy_env(Placed(sensing={"place": Sensing(delay=(2, 2))}), 2, gradients=False)[0]
    assert [row[0] for row in moved(env, 4)] == [1.0, 1.0, 1.0, 1.1, 1.2]


def test_lags_are_within_their_range_all_of_it_and_kept_for_an_episode():
    env = points(400, sensing={"joint_pos_rel": Sensing(delay=(1, 3))}, episode_length_s=0.6)
    first = env.state.episode.sensing["lag"][:, 0].clone()
    assert first.unique().tolist() == [1, 2, 3]
    for _ in range(5):
        env.step(torch.ones(400, 1))
    assert torch.equal(env.state.episode.sensing["lag"][:, 0], first)
    env.step(torch.ones(400, 1))  # the episode's last step
    assert not torch.equal(env.state.episode.sensing["lag"][:, 0], first)


def test_a_sensor_that_always_drops_out_holds_its_first_value_until_the_reset():
    env = points(
        sensing={"joint_pos_rel": Sensing(dropout=1.0)}, noise={"joint_pos_rel": 0.5}, episode_length_s=0.5
    )
    start = env.observations["policy"].clone()
    for _ in range(4):
        result = env.step(torch.ones(2, 1))
    assert torch.equal(result.observations["policy"], start)  # with the noise of the first sample
    result = env.step(torch.ones(2, 1))
    assert bool(result.truncated.all())
    assert torch.equal(result.terminal_observations["policy"], start)
    assert not torch.equal(result.observations["policy"], start)


def test_drop_outs_have_their_probability_and_then_the_newest_value_arrives():
    env = points(2000, sensing={"joint_pos_rel": Sensing(dropout=0.3)})
    env.step(torch.ones(2000, 1))
    seen = env.step(torch.ones(2000, 1)).observations["policy"][:, 0]
    shares = [(seen - x).abs().lt(1e-5).float().mean().item() for x in (1.0, 1.1, 1.2)]
    # Both lost 0.09; the first alone arrived 0.21; the second arrived 0.7.
    assert shares == [pytest.approx(p, abs=0.035) for p in (0.09, 0.21, 0.7)]
    assert sum(shares) == pytest.approx(1.0)


def test_a_held_value_is_delayed_as_it_is():
    arrival, seen = Arrival([((1, 1), 0.5)], [0], 1, CPU), []
    line = arrival.start(arrival.empty(1, CPU), Random(0, CPU), torch.tensor([[1.0]]))
    for value, dropped in ((2.0, False), (3.0, True), (4.0, False), (5.0, False)):
        now, line = arrival.push(line, torch.tensor([[value]]), torch.tensor([[dropped, False]]))
        seen.append(now.item())
    assert seen == [1.0, 2.0, 2.0, 4.0]  # 3 never came


def test_a_history_holds_the_oldest_sample_first_and_copies_of_the_first_after_a_reset():
    env = points(history={"policy": 3}, episode_length_s=0.5)
    assert moved(env, 2) == [[1, 0, 1, 0, 1, 0], [1, 0, 1, 0, 1.1, 0], [1, 0, 1.1, 0, 1.2, 0]]
    assert [width for _, width in env.columns["policy"]] == [6]
    for _ in range(3):
        result = env.step(torch.ones(2, 1))
    assert result.terminal_observations["policy"][0, ::2].tolist() == [
        pytest.approx(x) for x in (1.3, 1.4, 1.5)
    ]
    assert result.observations["policy"][0].tolist() == [1, 0, 1, 0, 1, 0]


def test_a_history_of_delayed_samples_is_kept_where_they_arrive():
    env = points(history={"policy": 3}, sensing={"joint_pos_rel": Sensing(delay=(2, 2))})
    assert [row[::2] for row in moved(env, 4)][2:] == [[1, 1, 1], [1, 1, 1.1], [1, 1.1, 1.2]]


def test_the_delay_of_the_whole_group_gives_the_same_as_that_of_its_only_sensor():
    one = points(history={"policy": 3}, observation_delay=(2, 2))
    other = points(history={"policy": 3}, sensing={"policy": Sensing(delay=(2, 2))})
    assert moved(one, 5) == moved(other, 5)


def test_histories_are_of_a_group_or_an_item_and_leave_the_critic_alone():
    task = Home(history={"policy": 4, "joint_pos_rel": 2})
    assert [item.history for item in task.items("policy")] == [2]
    assert [item.history for item in task.items("critic")] == [1, 1]
    assert [item.history for item in Home(history={"critic": 3}).items("critic")] == [3, 3]

    class Past(Home):
        observations: ClassVar = {
            "policy": (Observation("past", VOCABULARY["joint_pos_rel"].compute, "joints", history=4),),
            "critic": ("joint_pos_rel",),
        }

    assert [item.history for item in Past().items("policy")] == [4]  # what the class states
    assert [item.history for item in Past(history={"policy": 1}).items("policy")] == [1]


def test_slow_noise_has_the_stated_deviation_at_any_time_and_forgets_by_e_in_its_time_constant():
    noise = EpisodeNoise(
        {"joint_pos_rel": Sensing(slow=(0.5, 0.4))}, [(VOCABULARY["joint_pos_rel"], 2)], 0.1, 1, CPU
    )
    random = Random(0, CPU)
    state = noise.start(noise.empty(4000, CPU), random, noise.normal(random, 4000))
    first = state["slow"]
    for _ in range(4):
        state = noise.advanced(state, noise.normal(random, 4000))
    last = state["slow"]
    for x in (first, last):
        assert x.mean().item() == pytest.approx(0.0, abs=0.02)
        assert x.var().item() == pytest.approx(0.25, rel=0.06)
    # 4 steps of 0.1 s are one time constant: correlation exp(-1). Columns are independent.
    assert (first * last).mean().item() / 0.25 == pytest.approx(math.exp(-1), abs=0.04)
    assert (last[:, 0] * last[:, 1]).mean().item() / 0.25 == pytest.approx(0.0, abs=0.05)


def test_one_step_of_slow_noise_worked_by_hand():
    noise = EpisodeNoise(
        {"joint_pos_rel": Sensing(slow=(2.0, 0.1))}, [(VOCABULARY["joint_pos_rel"], 1)], 0.1, 1, CPU
    )
    after = noise.advanced({"slow": torch.tensor([[3.0]])}, torch.tensor([[-0.5]]))
    # a = exp(-1): 0.36788 x 3 - 0.5 x 2 sqrt(1 - 0.13534)
    assert after["slow"].item() == pytest.approx(1.10364 - 0.92987, abs=1e-4)


def test_a_bias_is_constant_in_an_episode_and_another_one_in_the_next():
    env = points(500, sensing={"joint_pos_rel": Sensing(bias=(-0.1, 0.3))}, episode_length_s=0.5)

    def bias() -> torch.Tensor:
        return env.observations["policy"] - env.observations["critic"][:, :2]

    first = bias()
    assert -0.1 <= first.min() < -0.09
    assert 0.29 < first.max() <= 0.3
    assert first[:, 0].mean().item() == pytest.approx(0.1, abs=0.02)
    for _ in range(4):
        env.step(torch.ones(500, 1))
        assert torch.allclose(bias(), first, atol=1e-6)
    result = env.step(torch.ones(500, 1))
    assert bool(result.truncated.all())
    assert (bias() - first).abs().min() > 0
    at_the_end = result.terminal_observations["policy"] - result.terminal_observations["critic"][:, :2]
    assert torch.allclose(at_the_end, first, atol=1e-6)


def test_bias_and_white_and_slow_noise_add_up():
    env = points(
        2000,
        sensing={"joint_pos_rel": Sensing(slow=(0.3, 1.0), bias=(0.5, 0.5))},
        noise={"joint_pos_rel": 0.6},
    )
    for _ in range(3):
        env.step(torch.zeros(2000, 1))
    off = env.observations["policy"] - torch.tensor([1.0, 0.0])
    assert off.mean().item() == pytest.approx(0.5, abs=0.03)
    assert off.var().item() == pytest.approx(0.6**2 / 3 + 0.3**2, rel=0.08)  # uniform: half-width squared / 3


def test_settings_that_have_no_effect_draw_nothing():
    plain = points(8, noise={"joint_pos_rel": 0.1})
    stated = points(
        8, noise={"joint_pos_rel": 0.1}, sensing={"joint_pos_rel": Sensing()}, history={"policy": 1}
    )
    for _ in range(25):
        a, b = (env.step(torch.ones(8, 1)) for env in (plain, stated))
        assert torch.equal(a.observations["policy"], b.observations["policy"])
    assert torch.equal(plain.random.state(), stated.random.state())
    assert stated.state.episode.sensing == stated.state.episode.held == {}


# ---------------------------------------------------------------------------------------- errors of the sensors


def measured(errors: dict[str, torch.Tensor], joint_pos: float = 0.0) -> Any:
    """The humanoid, upright and turning about its vertical axis by 1 rad/s, as its sensors measure it."""
    run = config.resolve(
        ["task=stand", "robot=humanoid", "task.randomize.imu_tilt=[0,0.1]", "task.randomize.imu_bias=[0,0.1]"]
    )
    env = built(run, num_envs=1)
    try:
        state, ctx = env.backend.state.clone(), env.ctx
        state.robot.base_quat[:] = torch.tensor([1.0, 0.0, 0.0, 0.0])
        state.robot.base_ang_vel[:] = torch.tensor([0.0, 0.0, 1.0])
        sensed = env._errors.sensed(state, errors)
        return [
            VOCABULARY[name].compute(sensed, ctx)[0].tolist()
            for name in ("projected_gravity", "base_ang_vel")
        ]
    finally:
        env.close()


def test_an_imu_tilted_about_x_sees_gravity_and_rotations_turned_the_other_way():
    gravity, gyro = measured({"imu_tilt": torch.tensor([[0.3, 0.0, 0.0]])})
    # sin 0.3 = 0.29552, cos 0.3 = 0.95534; the IMU's y axis points up by 0.3 rad.
    assert gravity == [pytest.approx(x, abs=1e-4) for x in (0.0, -0.29552, -0.95534)]
    assert gyro == [pytest.approx(x, abs=1e-4) for x in (0.0, 0.29552, 0.95534)]


def test_a_gyro_has_its_bias_in_its_own_axes():
    errors = {"imu_tilt": torch.tensor([[0.3, 0.0, 0.0]]), "imu_bias": torch.tensor([[0.1, 0.0, -0.2]])}
    gravity, gyro = measured(errors)
    assert gravity[1] == pytest.approx(-0.29552, abs=1e-4)
    assert gyro == [pytest.approx(x, abs=1e-4) for x in (0.1, 0.29552, 0.75534)]


def test_rotation_vectors_are_quaternions_also_near_zero():
    quarter = rotation(torch.tensor([[0.0, 0.0, math.pi / 2], [0.0, 0.0, 0.0]]))
    assert torch.allclose(quarter[1], torch.tensor([1.0, 0.0, 0.0, 0.0]))
    turned = quat_rotate(quarter[:1], torch.tensor([[1.0, 0.0, 0.0]]))
    assert torch.allclose(turned, torch.tensor([[0.0, 1.0, 0.0]]), atol=1e-6)


def test_tilts_have_their_range_and_any_axis_and_change_at_a_reset():
    run = config.resolve(["task=stand", "robot=humanoid", "task.randomize.imu_tilt=[0.02,0.1]"])
    env = built(run, num_envs=256)
    try:
        tilt = env.state.episode.sensor_errors["imu_tilt"].clone()
        angle = tilt.norm(dim=1)
        assert 0.02 <= angle.min() < 0.025
        assert 0.095 < angle.max() <= 0.1001
        assert (tilt / angle[:, None]).mean(dim=0).abs().max() < 0.15
        env.reset()
        assert not torch.equal(env.state.episode.sensor_errors["imu_tilt"], tilt)
    finally:
        env.close()


def test_a_biased_encoder_reads_b_more_and_its_joint_comes_to_rest_b_lower():
    words = ["task=arm_reach", "task.noise.joint_pos_rel=0", "task.start_noise=0"]
    plain, biased = (
        built(config.resolve([*words, *more]), num_envs=2)
        for more in ([], ["task.randomize.encoder_bias=[0.05,0.05]"])
    )
    try:
        for env in (plain, biased):
            for _ in range(150):
                env.step(torch.zeros(2, env.num_actions))
        bent = biased.backend.state.robot.joint_pos - plain.backend.state.robot.joint_pos
        held = [i for i, joint in enumerate(plain.robot.joints) if "finger" not in joint]
        assert bent[:, held].tolist() == [[pytest.approx(-0.05, abs=0.004)] * len(held)] * 2
        item = VOCABULARY["joint_pos_rel"].compute(biased.backend.state, biased.ctx)
        seen = biased.observations["policy"][:, : item.shape[1]]
        assert torch.allclose(seen - item, torch.full_like(item, 0.05), atol=1e-6)
    finally:
        plain.close()
        biased.close()


def test_a_critic_that_asks_for_physics_sees_the_errors_of_the_sensors():
    class Told(Home):
        observations: ClassVar = {**Home.observations, "critic": ("physics",)}

    env = toy_env(Told(randomize={"encoder_bias": (-0.2, 0.2)}), 3, gradients=False)[0]
    bias = env.state.episode.sensor_errors["encoder_bias"]
    names = sorted(f"encoder_bias/{joint}" for joint in env.robot.joints)
    order = [env.robot.joints.index(name.partition("/")[2]) for name in names]
    assert torch.equal(env.observations["critic"], bias[:, order])
    assert torch.equal(env.observations["policy"], env.backend.state.robot.joint_pos + bias)
    assert bias.abs().min() > 0


def test_task_state_that_the_policy_reads_follows_the_sensors_and_that_of_rewards_the_truth():
    def travelled(state: Any, ctx: Any) -> torch.Tensor:
        return ctx.task_state["travelled"][:, None]

    class Measuring(Home):
        observations: ClassVar = {
            **Home.observations,
            "policy": (Observation("travelled", travelled, "same"),),
        }

    env = toy_env(Measuring(randomize={"encoder_bias": (0.25, 0.25)}), 1, gradients=False)[0]
    env.step(torch.zeros(1, 1))
    assert env.observations["policy"].tolist() == [[1.25]]
    unread = toy_env(Home(randomize={"encoder_bias": (0.25, 0.25)}), 1, gradients=False)[0]
    unread.step(torch.zeros(1, 1))
    assert unread.state.episode.task["travelled"].tolist() == [1.0]


# ---------------------------------------------------------------------------------------- lost packets


def test_where_every_packet_is_lost_the_targets_of_action_zero_hold():
    class Offset(Home):
        def joint_targets(self, action: torch.Tensor, ctx: Any) -> torch.Tensor:
            return action - 0.5

    env = toy_env(Offset(packet_loss=1.0), gradients=False)[0]
    for _ in range(4):
        env.step(torch.ones(2, 1))
    assert env.backend.state.robot.joint_pos[0, 0].item() == pytest.approx(1.0 - 4 * 0.1 * 0.5)
    assert env.ctx.action.tolist() == [[1.0]] * 2  # the robot's computer does not know


def test_a_lost_packet_leaves_the_last_target_that_arrived():
    env = points(2000, packet_loss=0.25)
    env.step(torch.ones(2000, 1))
    env.step(2 * torch.ones(2000, 1))
    shares = [env.state.transit["joint_targets"].eq(x).float().mean().item() for x in (0.0, 1.0, 2.0)]
    assert shares == [pytest.approx(p, abs=0.03) for p in (0.0625, 0.1875, 0.75)]
    given = env.step(
        torch.zeros(2000, 1), torch.full((2000, 1), 3.0)
    )  # those of a robot's runtime are lost, too
    assert env.state.transit["joint_targets"].eq(3.0).float().mean().item() == pytest.approx(0.75, abs=0.03)
    assert torch.isfinite(given.reward).all()


# ---------------------------------------------------------------------------------------- the whole Env


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4, 5], [5, 5, 0, 1, 2, 3]], ids=["same", "moved"])
def test_a_restored_env_goes_on_bit_for_bit_with_everything_on(make_env, rows):
    task = CartpoleBalance(**EVERYTHING, episode_length_s=0.3)
    one, other = make_env(task, 6), make_env(task, 6, seed=2)
    for _ in range(10):
        one.step(torch.ones(6, 1))
    saved = one.snapshot()
    other.restore(saved, torch.tensor(rows))
    one.restore(saved, torch.tensor(rows))
    ended = 0
    for _ in range(25):
        a, b = (env.step(torch.ones(6, 1)) for env in (one, other))
        ended += int(a.done.sum())
        for group in a.observations:
            assert torch.equal(a.observations[group], b.observations[group])
        assert torch.equal(a.reward, b.reward)
    assert ended > 6
    assert {"episode.sensing.past", "episode.sensing.slow", "episode.held.targets"} <= set(saved["state"])


def test_the_old_place_of_a_delay_after_the_history_is_read(make_env):
    """Snapshots of before had the joined histories on their way."""
    task = CartpoleBalance(history={"policy": 3}, observation_delay=(2, 2), start_angle=0.1)
    env = make_env(task, 4)
    for _ in range(7):
        env.step(torch.ones(4, 1))
    saved = env.snapshot()
    histories = [env.step(torch.ones(4, 1)).observations["policy"].clone() for _ in range(3)]
    old = {**saved["state"]}
    env.restore(saved)
    on_their_way = [histories[1], histories[0], env.observations["policy"]]  # the newest first
    old["episode.observation_delay.past"] = torch.stack(on_their_way, dim=1)
    for name, width in (("policy/joint_pos_rel", 2), ("policy/joint_vel_rel", 2)):
        first = 0 if "pos" in name else 6
        old[f"episode.history.{name}"] = histories[1][:, first : first + 3 * width].view(4, 3, width)
    env.restore({**saved, "state": old})
    for expected in histories:
        assert torch.equal(env.step(torch.ones(4, 1)).observations["policy"], expected)


def test_a_step_never_waits_for_a_gpu_with_everything_on(make_env):
    env = make_env(CartpoleBalance(**EVERYTHING, episode_length_s=0.1), 4)
    env.read_at_once = env._finite.at_once = False
    env.step(torch.ones(4, 1))
    with no_host_sync():
        for part in env._parts:
            part()


def test_agents_of_a_world_have_sensors_of_their_own():
    run = config.resolve(
        ["task=carry", "task.sensing.joint_vel_rel={bias: [-0.5,0.5], slow: [0.1,1.0], dropout: 0.5}"]
    )
    env = built(run, num_envs=8)
    try:
        bias = env.state.episode.sensing["bias"]
        used = bias.abs().sum(dim=0) > 0
        assert bias[::2][:, used].sub(bias[1::2][:, used]).abs().min() > 0
        env.step(torch.zeros(env.num_envs, env.num_actions))
        drops = env.state.transit["drops"][:, 0]
        assert not torch.equal(drops[::2], drops[1::2])
    finally:
        env.close()


def test_the_mirror_image_of_a_history_is_that_of_each_sample():
    run = config.resolve(["task=humanoid_walk", "task.history=3"])
    single = config.resolve(["task=humanoid_walk", "task.history.policy=1"])
    past, one = built(run, num_envs=2), built(single, num_envs=2)
    try:
        sample = torch.randn(2, sum(width for _, width in one.columns["policy"]))
        parts, mirrored, column = [], [], 0
        image = one.symmetry().groups["policy"](sample)
        for _, width in one.columns["policy"]:
            part = slice(column, column + width)
            parts += [sample[:, part], 2 * sample[:, part], 3 * sample[:, part]]
            mirrored += [image[:, part], 2 * image[:, part], 3 * image[:, part]]
            column += width
        reflection = past.symmetry().groups["policy"]
        assert torch.equal(reflection(torch.cat(parts, dim=1)), torch.cat(mirrored, dim=1))
    finally:
        past.close()
        one.close()


def test_gradients_flow_through_what_arrives():
    task = Home(sensing={"joint_pos_rel": Sensing(delay=(1, 1), bias=(0.1, 0.1))}, history={"policy": 2})
    env, _ = toy_env(task)
    action = torch.ones(2, 1, requires_grad=True)
    env.step(action)
    late = env.step(torch.zeros(2, 1)).observations["policy"]
    late[:, 2].sum().backward()  # the newest sample that has arrived is that after the first step
    assert action.grad is not None
    assert action.grad.tolist() == [[pytest.approx(DT)]] * 2


# ---------------------------------------------------------------------------------------- refusals


@dataclass
class Two(Home):
    """The policy reads the joints twice, and remembers its action."""

    rewards: dict[str, float] = field(default_factory=lambda: {"far": -1.0, "rate": 0.0})
    observations: ClassVar = {
        **Home.observations,
        "policy": (
            "joint_pos_rel",
            "last_action",
            Observation("sine", lambda s, c: s.robot.joint_pos.sin(), "same"),
        ),
    }


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"sensing": {"joint_pos": Sensing()}}, r"sensing\.joint_pos: .*did you mean joint_pos_rel"),
    ({"sensing": {"joint_pos_rel": Sensing(delay=(3, 1))}}, r"sensing\.joint_pos_rel\.delay"),
    ({"sensing": {"joint_pos_rel": Sensing(bias=(3.0, 1.0))}}, r"sensing\.joint_pos_rel\.bias"),
    ({"sensing": {"joint_pos_rel": Sensing(slow=(3.0, 0.0))}}, r"sensing\.joint_pos_rel\.slow"),
    ({"sensing": {"joint_pos_rel": Sensing(dropout=1.5)}}, r"sensing\.joint_pos_rel\.dropout"),
    ({"history": {"polcy": 3}}, r"history\.polcy: .*did you mean policy"),
    ({"history": {"policy": 0}}, r"history\.policy=0"),
    ({"packet_loss": 1.5}, "packet_loss=1.5"),
    ({"randomize": {"imu_tilt": (-0.1, 0.1)}}, r"randomize\.imu_tilt"),
    ({"randomize": {"encoder_bias": (0.1, -0.1)}}, r"randomize\.encoder_bias"),
    ({"randomize": {"encoder_bia": (0.1, 0.2)}}, "did you mean encoder_bias"),
    ({"randomize": {"imu_tilt": (0.0, 0.1)}}, r"randomize\.imu_tilt: the policy reads no quat or gyro"),
    ({"sensing": {"last_action": Sensing(delay=(1, 1))}}, r"sensing\.last_action: .*ctx\.action"),
    ({"sensing": {"joint_pos_rel": Sensing(delay=(1, 1))}}, r"sensing\.joint_pos_rel: sine .*joint_pos"),
    (
        {"sensing": {"joint_pos_rel": Sensing(delay=(1, 1)), "sine": Sensing(delay=(2, 2))}},
        "joint_pos_rel.*joint_pos",
    ),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_cannot_be_is_refused_by_name(settings, message):
    task = Two(**settings)

    def make() -> None:
        task.validate()
        toy_env(task, gradients=False)

    with pytest.raises((ValueError, ConfigError), match=message):
        make()


def test_the_group_policy_stands_for_every_item_of_sensors_alone():
    task = Two(sensing={"policy": Sensing(delay=(2, 2), bias=(0.5, 0.5))})
    env = toy_env(task, gradients=False)[0]
    for _ in range(3):
        env.step(torch.ones(2, 1))
    seen = env.observations["policy"][0].tolist()
    assert seen == [
        pytest.approx(x) for x in (1.6, 0.5, 1.0, math.sin(1.1) + 0.5, 0.5)
    ]  # the action is of this step


@dataclass
class Stated(CartpoleBalance):
    """States its own sensing and history, without the metadata of the fields."""

    randomize: dict[str, tuple[float, float]] = field(
        default_factory=dict, metadata={"keys": ("friction",), "open": ".+/.+"}
    )
    sensing: dict[str, Sensing] = field(default_factory=lambda: {"joint_pos_rel": Sensing(delay=(1, 1))})
    history: dict[str, int] = field(default_factory=lambda: {"policy": 2})


def test_the_settings_of_a_task_that_states_its_own_have_the_same_keys_and_bounds():
    words = [
        "task.sensing.joint_vel_rel.dropout=0.5",
        "task.history=4",
        "task.randomize.encoder_bias=[0,0.1]",
    ]
    task = config.resolve([f"task={__file__}:Stated", *words]).task
    assert task.sensing == {"joint_pos_rel": Sensing(delay=(1, 1)), "joint_vel_rel": Sensing(dropout=0.5)}
    assert (task.history, task.randomize) == ({"policy": 4}, {"encoder_bias": (0.0, 0.1)})
    with pytest.raises(ConfigError, match="history"):
        config.resolve([f"task={__file__}:Stated", "task.history=0"])


SETTINGS = [
    (["task.history=5"], {"policy": 5}),
    (["task.history=5", "task.history.joint_vel_rel=1"], {"policy": 5, "joint_vel_rel": 1}),
    (["task.history.critic=2"], {"critic": 2}),
    (["task.history={policy: 2, joint_pos_rel: 3}"], {"policy": 2, "joint_pos_rel": 3}),
]


@pytest.mark.parametrize(("words", "history"), SETTINGS, ids=[str(history) for _, history in SETTINGS])
def test_histories_are_settings_of_any_task(words, history):
    run = config.resolve(["task=cartpole_balance", *words])
    assert run.task.history == history


def test_sensing_is_a_setting_of_any_task_and_survives_its_file(tmp_path):
    words = ["task.sensing.joint_pos_rel.delay=[1,2]", "task.sensing.joint_pos_rel.dropout=0.1"]
    run = config.resolve(["task=cartpole_balance", *words, "task.randomize.encoder_bias=[-0.1,0.1]"])
    assert run.task.sensing == {"joint_pos_rel": Sensing(delay=(1, 2), dropout=0.1)}
    config.save(run, tmp_path / "config.yaml")
    assert config.load(tmp_path).task == run.task
