"""task=isaaclab:ID of several agents: Isaac Lab's cart with two links, and two cartpoles whose agents end one by one.

Isaac Lab would download its robot and floor from a server; these tests download nothing.
"""

from __future__ import annotations

import json

import pytest
import torch

from robolearn import config
from robolearn.cli import main
from robolearn.errors import ConfigError
from robolearn.learners.ppo.ppo import PPO
from robolearn.training.build import build_external
from tests.isaaclab import assets

pytest.importorskip("isaaclab_newton")
pytest.importorskip("isaaclab_tasks")
pytest.importorskip("mujoco_usd_converter")

PENDULUM, CARTS = "Isaac-Pendulum-MARL-Direct", "tests.isaaclab.carts:Test-Two-Carts-Direct"
ROBOTS = {PENDULUM: ["robot"], CARTS: ["left", "right"]}
"""The robots' names in each scene."""


@pytest.fixture(scope="session")
def files(tmp_path_factory) -> dict[str, str]:
    """USD files of the robot of each task, and of a floor."""
    folder = tmp_path_factory.mktemp("assets")
    return {
        PENDULUM: assets.robot(assets.double_pendulum(), folder / "pendulum"),
        CARTS: assets.robot(assets.cartpole(), folder / "cart"),
        "floor": assets.floor(folder),
    }


@pytest.fixture
def words(files):
    """Settings that select a task with those files."""

    def select(id: str, *more: str) -> list[str]:
        return [
            f"task=isaaclab:{id}",
            *(f"task.cfg.scene.{name}.spawn.usd_path={files[id]}" for name in ROBOTS[id]),
            f"task.cfg.scene.ground.spawn.usd_path={files['floor']}",
            "device=cpu",
            "torch_threads=1",
            *more,
        ]

    return select


@pytest.fixture
def make(words):
    made = []

    def build(id: str, *more: str, num_envs: int = 4):
        close()  # Isaac Lab allows one simulation per process
        made.append(build_external(config.resolve(words(id, *more)), num_envs))
        return made[-1]

    def close():
        while made:
            made.pop().close()

    yield build
    close()


def test_the_pendulums_agents_are_rows_and_a_time_out_continues_the_episode_it_ended(make):
    env = make(PENDULUM, "task.cfg.episode_length_s=0.15")
    assert (env.num_envs, env.agents, env.agent_names, env.num_actions) == (8, 2, ["cart", "pendulum"], 1)
    # The cart observes 4 numbers, the pendulum 3; two more tell which one it is.
    assert {group: rows.shape[1] for group, rows in env.observations.items()} == {"policy": 6, "critic": 10}
    env.reset()
    ended = 0
    for step in range(1, 17):
        before = env.observations["policy"][::2].clone()
        result = env.step(torch.zeros(8, 1))
        last = result.terminal_observations["policy"]
        # Isaac Lab's task counts 8 of 9 steps.
        assert result.truncated.all() == (step % 8 == 0)
        cart, pendulum, critic = last[::2], last[1::2], result.terminal_observations["critic"]
        # Cart and pole moved by their velocities, also in the step that ended the episode.
        moved, speed = cart[:, [0, 2]] - before[:, [0, 2]], cart[:, [1, 3]] + before[:, [1, 3]]
        assert moved == pytest.approx(env.dt * speed / 2, abs=0.01)
        # The pendulum observes the pole's angle plus its own, then its own.
        assert pendulum[:, 0] - pendulum[:, 1] == pytest.approx(cart[:, 2], abs=1e-5)
        assert torch.equal(critic[::2, :8], torch.cat([cart[:, :4], pendulum[:, :4]], dim=1))
        assert torch.equal(critic[1::2, :8], torch.cat([pendulum[:, :4], cart[:, :4]], dim=1))
        if result.truncated.any():
            ended += 1
            following = result.observations["policy"][::2]
            assert (following[:, :2] == 0).all()  # the cart starts at rest in the middle
            assert (following - cart).abs().max() > 0.05
        assert (last[::2, 4:] == torch.tensor([1.0, 0.0])).all()
        assert (last[1::2, 4:] == torch.tensor([0.0, 1.0])).all()
    assert ended == 2
    assert result.reward[::2].tolist() == result.reward[1::2].tolist()


def test_an_agent_that_ends_early_leaves_the_world_to_the_other_until_its_time_is_up(make):
    env = make(CARTS)
    env.reset()
    push = torch.tensor([1.0, 0.0] * 4)[:, None]
    gone = torch.zeros(4, dtype=torch.bool)
    paid = torch.zeros(8)
    for _ in range(env.max_episode_steps - 1):
        before = env.observations["policy"].clone()
        result = env.step(push)
        paid += result.reward
        now = result.terminated.view(4, 2)
        assert not now[:, 1].any()
        # Its terminal observation shows the cart beyond its end; after it, it observes nothing.
        assert (result.terminal_observations["policy"][::2][now[:, 0], 0] > 1.0).all()
        valid = torch.ones(8, dtype=torch.bool) if result.valid is None else result.valid
        assert valid.view(4, 2).tolist() == [[not over, True] for over in gone.tolist()]
        gone |= now[:, 0]
        assert (env.observations["policy"][::2][gone] == 0).all()
        # The world goes on: no cart but the pushed one has moved.
        assert env.observations["policy"][1::2, 0] == pytest.approx(before[1::2, 0], abs=0.02)
        # The critic observes the state of both carts, also of the one that has ended, and which agent asks.
        state = env.observations["critic"]
        assert torch.equal(state[::2, :8], state[1::2, :8])
        assert (state[::2, 0][gone] > 1.0).all()
        assert (state[::2, 8:] == torch.tensor([1.0, 0.0])).all()
    assert gone.all()
    assert not result.truncated.any()
    last = env.step(push)
    assert last.truncated.view(4, 2).tolist() == [[False, True]] * 4
    assert (last.terminal_observations["critic"][1::2, 0] > 1.0).all()
    assert (last.observations["critic"][:, 0].abs() <= 0.25).all()
    assert (last.observations["policy"][:, 0].abs() <= 0.25).all()
    # 2 a step of the agent that stayed; 2 of the pushed one up to its end.
    total = (paid + last.reward).view(4, 2)
    assert total[:, 1].tolist() == [2.0 * 60] * 4
    assert (total[:, 0] < 2.0 * 60).all()


def test_a_world_starts_again_when_its_last_agent_ends(make):
    env = make(CARTS, "task.cfg.start=0", num_envs=2)
    env.reset()
    both, one = torch.tensor([1.0, 0.5, 1.0, 0.0])[:, None], None
    for _ in range(env.max_episode_steps - 1):
        result = env.step(both)
        ended = result.terminated.tolist()
        if ended[0]:
            one = result
        if ended[1]:
            break
    # The right cart, with half the force, came last: Isaac Lab by itself asks for both in the same step.
    assert one is not None
    assert one is not result
    assert result.valid.tolist() == [False, True, False, True]
    assert result.terminated.tolist() == [False, True, False, False]
    assert result.terminal_observations["policy"][1, 0] > 1.0
    assert result.terminal_observations["critic"][1, [0, 4]].min() > 1.0
    assert result.observations["policy"][:2].abs().max() == 0.0
    assert result.observations["critic"][0, :8].abs().max() == 0.0
    assert result.observations["critic"][3, 0] > 1.0
    assert env.step(both).valid.tolist() == [True, True, False, True]


def test_settings_and_policies_that_do_not_fit_several_agents_are_refused(make, words):
    with pytest.raises(ConfigError, match="policy_groups"):
        make(PENDULUM, "task.policy_groups=[policy]")
    with pytest.raises(ConfigError, match="valid: joint"):
        make(PENDULUM, "task.critic_groups=[state]")
    with pytest.raises(ConfigError, match="agent_id"):
        config.resolve(["task=isaaclab:Isaac-Cartpole", "task.agent_id=on"])
    # The next environment can be created.
    env = make(CARTS, "task.critic_groups=[joint]", num_envs=1)
    assert env.observations["critic"].shape[1] == 8
    with pytest.raises(ConfigError, match=r"learner\.rnn=gru"):
        PPO(env, config.resolve(words(CARTS, "learner.rnn=gru")).learner)
    together = make(CARTS, "task.ends_together=true", num_envs=1)
    PPO(together, config.resolve(words(CARTS, "learner.rnn=gru", "learner.num_steps=8")).learner)


def test_a_run_of_several_agents_trains_resumes_is_evaluated_and_exported(words, tmp_path, capfd):
    run, bundle = str(tmp_path / "run"), tmp_path / "bundle"
    small = ["num_envs=16", "learner.minibatch_size=256", "learner.num_epochs=2", f"output={run}"]
    assert main(["train", *words(PENDULUM, *small, "max_iterations=1")]) == 0
    assert main(["train", f"resume={run}", "max_iterations=2"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["steps"] for row in rows] == [16 * 16 * 2, 2 * 16 * 16 * 2]
    assert main(["eval", run, "--episodes", "16"]) == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["episodes"] == 32  # of two agents
    assert set(metrics["metrics"]) == {"return_cart", "return_pendulum"}
    little = ["--starts", "4", "--seconds", "0.5", "--measure-seconds", "0"]
    assert main(["export", "--target", "jetson-thor", run, *little, "--output", str(bundle)]) == 0
    contract = json.loads((bundle / "manifest.json").read_text())["contract"]
    assert contract["observations"][0]["width"] == 6
    assert contract["observations"][0]["columns"][4:] == ["agent[cart]", "agent[pendulum]"]
    assert len(contract["actions"]) == 1
    capfd.readouterr()
    assert main(["play", run, "--video", str(tmp_path / "a.mp4")]) == 2
    assert main(["deploy", str(bundle), "--seconds", "0.2"]) == 2
    out, err = capfd.readouterr()
    assert "2 agents" in err
    assert "Traceback" not in err
    assert "[INFO]" not in out


def test_ppo_with_a_central_critic_balances_both_links(words, tmp_path):
    run = str(tmp_path / "run")
    settings = ["num_envs=256", "learner.minibatch_size=2048", "max_iterations=70", f"output={run}"]
    assert main(["train", *words(PENDULUM, *settings)]) == 0
    assert main(["eval", run, "--episodes", "256"]) == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    # Untrained, the upper link falls in a quarter of a second, and the return is 0.3; upright for 5 s it is 19.
    assert metrics["survival_rate"] >= 0.5
    assert metrics["return_mean"] > 10
