"""A step in recorded parts: the same numbers as a step in Python, at addresses that stay."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from robolearn import config
from robolearn.core.capture import Captured, Places
from robolearn.core.env import Env
from robolearn.core.env_state import leaves
from robolearn.core.finite_check import NonFiniteTerm
from tests.factories import load_robot
from tests.no_sync import no_host_sync
from tests.tape import Tape

CPU = torch.device("cpu")


class Counter:
    """Replaces the tree it goes on from, as Env does."""

    def __init__(self) -> None:
        self.tree = {
            "now": torch.tensor([1.0, 2.0]),
            "before": torch.zeros(2),
            "task": {"sum": torch.zeros(2)},
        }

    def go(self) -> None:
        now = self.tree["now"]
        self.tree = {"now": 2 * now, "before": now, "task": {"sum": self.tree["task"]["sum"] + now}}

    def recorded(self, make=Tape) -> Captured:
        places = Places(lambda: self.tree, lambda tree: setattr(self, "tree", tree))
        return Captured(self.go, places, CPU, [], lambda device: make())


def test_a_function_that_swaps_its_tensors_keeps_their_addresses():
    counter = Counter()
    go = counter.recorded()
    addresses = set()
    for _ in range(8):
        go()
        addresses.add(tuple(tensor.data_ptr() for tensor in leaves(counter.tree).values()))
    assert len(addresses) == 1
    assert counter.tree["now"].tolist() == [256.0, 512.0]  # doubled eight times
    assert counter.tree["before"].tolist() == [128.0, 256.0]
    assert counter.tree["task"]["sum"].tolist() == [255.0, 510.0]  # 1 + 2 + ... + 128


def test_tensors_of_a_restore_are_copied_to_the_fixed_places():
    counter = Counter()
    go = counter.recorded()
    for _ in range(6):
        go()
    counter.tree = {**counter.tree, "now": torch.tensor([3.0, 5.0]), "task": {"sum": torch.zeros(2)}}
    go()
    assert counter.tree["now"].tolist() == [6.0, 10.0]
    assert counter.tree["task"]["sum"].tolist() == [3.0, 5.0]


def test_a_part_that_cannot_be_recorded_runs_in_python_and_warns():
    class Refusing(Tape):
        def capture(self, function, generators):
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    counter = Counter()
    go = counter.recorded(Refusing)
    for _ in range(3):  # two runs and a rehearsal
        go()
    with pytest.warns(UserWarning, match="go of the environment runs without a CUDA graph"):
        go()
    go()
    assert counter.tree["now"].tolist() == [32.0, 64.0]


def warp_env(task: str, num_envs: int, *settings: str) -> Env:
    """An Env that behaves as on a GPU: it never reads whether an environment is done."""
    pytest.importorskip("mujoco_warp")
    from robolearn.envs.mujoco_warp.backend import MujocoWarpBackend

    run = config.resolve([f"task={task}", *settings])
    robot = load_robot(run.task.robot)
    env = Env(run.task, robot, MujocoWarpBackend(run.task.scene(robot), num_envs), seed=3)
    env.read_at_once = env._finite.at_once = env.backend.read_at_once = False
    return env


SETTINGS = {
    "arm_lift": ("task.episode_length_s=0.2", "task.commands.seconds=[0.04,0.1]"),
    "cartpole_balance": (
        "task.episode_length_s=0.2",
        "task.action_delay=[0,2]",
        "task.history=3",
        "task.sensing.joint_pos_rel={slow: [0.1, 0.2], bias: [-0.1, 0.1], delay: [0, 2], dropout: 0.3}",
        "task.randomize.encoder_bias=[-0.02,0.02]",
        "task.packet_loss=0.2",
    ),
    "humanoid_walk": (
        "task.episode_length_s=0.2",
        "task.commands.seconds=[0.04,0.1]",
        "task.pushes.seconds=[0.04,0.1]",
        "task.observation_delay=[0,2]",
        "task.randomize.imu_tilt=[0,0.1]",
        "task.randomize.imu_bias=[-0.1,0.1]",
    ),
    "humanoid_rough": (
        "task.scan=true",
        "task.episode_length_s=0.2",
        "task.terrain.rows=2",
        "task.terrain.columns=2",
    ),
}
SLOW = ("arm_lift", "humanoid_rough")
TASKS = [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in SETTINGS]


@pytest.mark.parametrize("task", TASKS)
def test_a_replayed_step_gives_the_numbers_of_a_step_in_python(task):
    recorded, plain = (warp_env(task, 6, *SETTINGS[task]) for _ in range(2))
    recorded.capture(lambda device: Tape())
    generator = torch.Generator().manual_seed(0)
    ended = 0
    for step in range(25):
        action = 0.3 * torch.randn(6, plain.num_actions, generator=generator)
        ours, theirs = recorded.step(action), plain.step(action)
        ended += int(theirs.done.sum())
        for name in ("reward", "terminated", "truncated", "diverged"):
            assert torch.equal(getattr(ours, name), getattr(theirs, name)), (step, name)
        for group, obs in theirs.observations.items():
            assert torch.equal(ours.observations[group], obs), (step, group)
            assert torch.equal(ours.terminal_observations[group], theirs.terminal_observations[group]), (
                step,
                group,
            )
        for name, metric in theirs.metrics.items():
            assert torch.equal(ours.metrics[name].total, metric.total), (step, name)
        if step == 12:  # recorded by now; everything moves
            saved, rows = plain.snapshot(), torch.tensor([5, 0, 1, 2, 3, 3])
            recorded.restore(saved, rows)
            plain.restore(saved, rows)
    assert ended > 6
    assert recorded.drain() == plain.drain()


def test_a_term_that_reads_a_number_costs_only_its_part_of_the_step_the_cuda_graph():
    words = SETTINGS["humanoid_walk"]
    recorded, plain = (warp_env("humanoid_walk", 6, *words) for _ in range(2))
    for env in (recorded, plain):
        upright = env._reward_terms["upright"]
        env._reward_terms["upright"] = lambda state, ctx, upright=upright: (
            upright(state, ctx) * (1.0 if ctx.action.any() else 2.0)
        )
    recorded.capture(lambda device: Tape())
    generator = torch.Generator().manual_seed(0)
    told = pytest.warns(UserWarning, match="assess of the environment runs without a CUDA graph")
    for step in range(20):
        action = 0.3 * torch.randn(6, plain.num_actions, generator=generator)
        action *= step % 3 > 0
        with told if step == 2 else nullcontext():
            ours = recorded.step(action)
        theirs = plain.step(action)
        if step == 2:  # where it gave up half way, and drew its numbers anew
            plain.restore(recorded.snapshot())
        elif step > 2:
            assert torch.equal(ours.reward, theirs.reward), step
            for group, obs in theirs.observations.items():
                assert torch.equal(ours.observations[group], obs), (step, group)


def test_a_step_recorded_under_inference_mode_is_replayed_without_it():
    env = warp_env("cartpole_balance", 4)
    env.capture(lambda device: Tape())
    with torch.inference_mode():
        for _ in range(6):
            env.step(torch.zeros(4, 1))
    env.step(torch.zeros(4, 1, requires_grad=True))
    assert not env.observations["policy"].requires_grad
    assert env.drain()["steps"] == 28


@pytest.mark.parametrize("task", TASKS)
def test_a_step_copies_nothing_between_host_and_device(task):
    env = warp_env(task, 6, *SETTINGS[task])
    action = torch.zeros(6, env.num_actions)
    for _ in range(3):  # tables and bounds are sent once
        env.step(action)
    with no_host_sync():
        for _ in range(15):
            env.step(action)
    assert env.drain()["episodes"] > 0


def test_an_action_that_is_not_finite_is_named_before_values_computed_from_it():
    env = warp_env("cartpole_balance", 4)
    env.reset()
    env.step(torch.full((4, 1), torch.nan))
    with pytest.raises(NonFiniteTerm, match="action of 'slider' was not finite"):
        env.drain()


def test_a_term_that_is_not_finite_is_named_at_the_end_of_the_iteration():
    env = warp_env("cartpole_balance", 4)
    env._reward_terms = {**env._reward_terms, "effort": lambda state, ctx: ctx.action[:, 0] / 0.0}
    env.step(torch.zeros(4, 1))  # 0 / 0
    env.step(torch.zeros(4, 1))
    with pytest.raises(
        NonFiniteTerm, match="reward 'effort' was not finite since the last iteration"
    ) as caught:
        env.drain()
    assert caught.value.state is not None


@pytest.mark.cuda
@pytest.mark.parametrize("task", ["task=humanoid_walk", "task=humanoid_rough task.scan=true"])
def test_a_step_on_a_gpu_never_synchronizes(task):
    from robolearn.training.build import make_env

    env = make_env(config.resolve([*task.split(), "num_envs=1024", "backend=mujoco_warp", "device=cuda"]))
    action = torch.zeros(1024, env.num_actions, device="cuda")
    for _ in range(6):  # run, rehearsed, recorded, replayed
        env.step(action)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(30):
            env.step(action)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    drained = env.drain()
    assert drained["steps"] == 36 * 1024
    assert drained["diverged"] == 0
