"""task=gymnasium:ID: spaces, actions, ends of episodes in every autoreset mode, settings and refusals."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch

from robolearn import config
from robolearn.cli import main
from robolearn.core.finite_check import NonFiniteTerm
from robolearn.errors import ConfigError, RunFailed
from robolearn.learners.ppo.ppo import PPO
from robolearn.learners.rollout import collect
from robolearn.simulation.episodes import tally
from robolearn.training.build import build_external

COUNTERS = Path(__file__).with_name("counters.py")
MODES = ["SameStep", "NextStep", "Disabled", "InProcesses"]
SMALL = ["learner.num_steps=8", "learner.actor_hidden=[8]", "learner.critic_hidden=[8]", "num_envs=2"]


@pytest.fixture
def make():
    made = []

    def build(name: str, *words: str, num_envs: int = 2, rank: int = 0):
        task = name if ":" in name else f"gymnasium:{COUNTERS}:{name}"
        run = config.resolve([f"task={task}", *words])
        made.append(build_external(run, num_envs, rank))
        return made[-1]

    yield build
    for env in made:
        env.close()


def refusal(capsys, *words: str) -> str:
    assert main(["train", *words]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    return lines[0]


def steps(env, *actions: tuple[float, float]):
    """Steps of two environments with these actions of the environment's own, cloned."""
    for pair in actions:
        result = env.step(torch.tensor(pair)[:, None] / 4)
        yield (
            {
                "seen": result.observations["policy"].tolist(),
                "ended_in": result.terminal_observations["critic"].tolist(),
                "reward": result.reward.tolist(),
                "terminated": result.terminated.tolist(),
                "truncated": result.truncated.tolist(),
                "valid": [True, True] if result.valid is None else result.valid.tolist(),
            }
        )


# ---------------------------------------------------------------------- ends of episodes


@pytest.mark.parametrize("mode", ["SameStep", "Disabled", "InProcesses"])
def test_the_end_of_an_episode_gives_terminal_observations_and_the_next_first_ones(make, mode):
    env = make(mode)
    assert env.observations["policy"].tolist() == [[0, 0], [1000, 0]]
    one, two, three = steps(env, (0, 0.5), (2, 0), (0, 0))
    assert one["seen"] == one["ended_in"] == [[0, 1], [1000, 1]]
    assert one["reward"] == [1, 1.5]
    # The first falls in its second step, and is seen in its second episode at once.
    assert two["terminated"] == [True, False]
    assert two["truncated"] == [False, False]
    assert two["ended_in"] == [[0, 2], [1000, 2]]
    assert two["seen"] == [[10, 0], [1000, 2]]
    # The second runs out of time in its third.
    assert three["terminated"] == [False, False]
    assert three["truncated"] == [False, True]
    assert three["ended_in"] == [[10, 1], [1000, 3]]
    assert three["seen"] == [[10, 1], [1010, 0]]
    assert one["valid"] == two["valid"] == three["valid"] == [True, True]


def test_with_next_step_autoreset_the_step_that_only_resets_is_invalid(make):
    env = make("NextStep")
    one, two, three, four = steps(env, (0, 0), (2, 0), (3, 0), (0, 0))
    assert two["terminated"] == [True, False]
    assert two["seen"] == two["ended_in"] == [[0, 2], [1000, 2]]
    # What the first does in the third step is not asked: it resets, for nothing, and ends nothing.
    assert three["valid"] == [False, True]
    assert three["seen"] == [[10, 0], [1000, 3]]
    assert three["reward"] == [0, 1]
    assert three["terminated"] == [False, False]
    assert three["truncated"] == [False, True]
    assert four["valid"] == [True, False]
    assert four["seen"] == [[10, 1], [1010, 0]]
    assert one["valid"] == two["valid"] == [True, True]


def test_a_fall_in_the_last_step_is_not_a_time_out(make):
    env = make("SameStep")
    *_, last = steps(env, (0, 0), (0, 0), (1, 0))
    assert last["terminated"] == [True, False]
    assert last["truncated"] == [False, True]


@pytest.mark.parametrize("mode", MODES)
def test_every_autoreset_counts_the_same_episodes(make, mode):
    env = make(mode)

    def act(observations: dict[str, torch.Tensor]) -> torch.Tensor:
        # The first environment falls in its second step, the second never.
        obs = observations["policy"]
        falls = (obs[:, 0] < 1000) & (obs[:, 1] == 1)
        return torch.where(falls, 0.5, 0.0)[:, None]

    counted = tally(env, act, episodes_each=2)
    pairs = sorted(
        zip(counted.returns.tolist(), counted.steps.tolist(), counted.survived.tolist(), strict=True)
    )
    assert pairs == [(3, 3, True), (3, 3, True), (4, 2, False), (4, 2, False)]
    assert counted.distance is None
    # Two episodes of 2 steps and two of 3, seen from training: its means are over these ten steps.
    env.reset()
    env.drain()
    for _ in range(20):
        env.step(act(env.observations))
    drained = env.drain()
    assert drained["episode/fall_rate"] == pytest.approx(0.6, abs=0.05)
    assert drained["episode/length"] == pytest.approx(0.25 * 2.4, abs=0.05)


def test_ppo_does_not_learn_from_steps_that_only_reset():
    run = config.resolve([f"task=gymnasium:{COUNTERS}:NextStep", *SMALL])
    env = build_external(run, 2)
    learner = PPO(env, run.learner)
    collect(env, learner.batch, lambda observations, t: torch.zeros(2, 1), learner.timers)
    valid = learner.batch.valid
    assert valid is not None
    # Episodes of three steps and one to reset: of eight, the fourth and the eighth.
    assert valid.all(dim=1).tolist() == [True, True, True, False, True, True, True, False]
    for (order,) in learner.orders():
        assert order.shape == (16,)
        assert valid.flatten()[order].all()
    advantage = torch.where(valid, 1.0, 1e6)
    advantage[0] = 3.0
    assert learner._normalized(advantage)[valid].mean().abs() < 1e-6
    # Two environments, six steps each that count; what the normalizers see are those alone.
    assert learner.batch.steps == 12
    assert learner.batch.taken(learner.batch.terminal["critic"])[:, 1].tolist() == [1, 1, 2, 2, 3, 3] * 2
    report = learner.iterate(env)
    assert report.steps == learner.batch.steps < 16
    assert float(learner.actor.obs_normalizer.count) == report.steps
    env.close()


def test_episodes_are_counted_in_full_where_a_reset_takes_a_step(make, monkeypatch):
    env = make("NextStep")
    monkeypatch.setattr(env, "max_episode_steps", 3)
    counted = tally(env, lambda observations: torch.zeros(2, 1), episodes_each=3)
    assert counted.steps.tolist() == [3] * 6


def test_an_evaluation_fails_where_episodes_never_end(make, monkeypatch):
    env = make("Mute")
    monkeypatch.setattr(env, "max_episode_steps", 20)

    def act(observations: torch.Tensor) -> torch.Tensor:
        return torch.tensor([[0.5], [0.0]])  # the first falls in every step, the second never

    with pytest.raises(RunFailed, match="1 of 2 environments had not finished 1 episodes within 20 steps"):
        tally(env, act)


def test_a_wrong_autoreset_mode_in_the_metadata_is_detected(make):
    env = make("Liar")
    with pytest.raises(RunFailed, match=r"NEXT_STEP in its metadata.*correct its metadata"):
        list(steps(env, (2, 0)))


def test_an_exception_of_the_environment_is_one_line_with_its_place(make, capsys, tmp_path):
    env = make("Motor")
    with pytest.raises(
        RunFailed, match=r"step of task=.* raised RuntimeError: motor on fire \(counters.py:\d+\)"
    ):
        env.step(torch.ones(2, 1))
    assert main(["train", f"task=gymnasium:{COUNTERS}:Motor", *SMALL, f"output={tmp_path / 'run'}"]) == 4
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_module_that_cannot_be_imported_is_one_line(capsys, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "leaves_at_once.py").write_text("raise SystemExit(1)\n")
    (tmp_path / "is_not_python.py").write_text("def (:\n")
    assert "cannot be imported: SystemExit: 1 (leaves_at_once.py:1)" in refusal(
        capsys, "task=gymnasium:leaves_at_once:A-v0"
    )
    assert "cannot be imported: SyntaxError" in refusal(capsys, "task=gymnasium:is_not_python:A-v0")
    assert "cannot be imported: TypeError" in refusal(capsys, "task=gymnasium:.x:A-v0")
    assert "path.py:NAME" in refusal(capsys, "task=gymnasium:my_env.py:")


@pytest.fixture
def ctrl_c_is_heard():
    """Where the tests were started in the background, SIGINT is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c_is_heard")
def test_child_processes_ignore_ctrl_c(make):
    env = make("Counter", "task.vectorization=async")
    for process in env.vector.processes:
        os.kill(process.pid, signal.SIGINT)
    (one,) = steps(env, (0, 0))
    assert one["seen"] == [[0, 1], [0, 1]]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)  # here it is heard


def test_recurrent_layers_are_refused_with_next_step_autoreset():
    run = config.resolve([f"task=gymnasium:{COUNTERS}:NextStep", *SMALL, "learner.rnn=gru"])
    env = build_external(run, 2)
    with pytest.raises(ConfigError, match=r"learner.rnn=gru.*same-step autoreset"):
        PPO(env, run.learner)
    run = config.resolve([f"task=gymnasium:{COUNTERS}:NextStep", *SMALL, "learner.num_steps=1"])
    with pytest.raises(ConfigError, match=r"learner.num_steps=1.*2 or more"):
        PPO(env, run.learner)
    env.close()


def test_a_vector_environment_that_ignores_reset_mask_is_detected(make):
    env = make("Everybody")
    with pytest.raises(RunFailed, match="reset_mask"):
        list(steps(env, (2, 0)))


def test_a_vector_environment_without_final_obs_is_detected(make):
    env = make("Forgetful")
    with pytest.raises(RunFailed, match="final_obs"):
        list(steps(env, (2, 0)))


# ---------------------------------------------------------------------- spaces


def test_actions_span_the_space_or_are_clipped_to_it(make):
    env = make("SameStep")
    assert env.step(torch.tensor([[0.2], [-5.0]])).reward.tolist() == pytest.approx([1 + 0.8, 1 - 4.0])
    env = make("SameStep", "task.actions=clipped")
    assert env.step(torch.tensor([[0.2], [-5.0]])).reward.tolist() == pytest.approx([1 + 0.2, 1 - 4.0])


def test_no_action_leaves_a_space_whose_bounds_float32_rounds(make):
    # float32(0.4) is 0.4000000059: past the end of a float64 Box.
    env = make("Strict")
    env.step(torch.tensor([[1.0], [-1.0]]))
    env.step(torch.tensor([[9.0], [-9.0]]))


def test_a_space_as_wide_as_float32_counts_as_unbounded(make):
    env = make("Wide")
    assert env.actions.scale.tolist() == [1.0]
    assert env.step(torch.tensor([[0.5], [0.25]])).reward.tolist() == [1.5, 1.25]


def test_the_contract_has_the_mapping_of_actions(make):
    said = make("gymnasium:Pendulum-v1").contract()
    action = {k: said.actions[0][k] for k in ("offset", "scale", "lower", "upper")}
    assert action == {"offset": 0.0, "scale": 2.0, "lower": -2.0, "upper": 2.0}
    assert said.observations[0]["width"] == 3
    assert said.control_dt == 0.05


def test_observations_in_a_dictionary_become_columns_and_groups(make):
    env = make("Grouped")
    assert env.columns == {"policy": ["policy[0]"], "critic": ["critic.at[0]", "critic.steps[0]"]}
    (one,) = steps(env, (2, 0))
    assert env.observations["policy"].tolist() == [[10], [0]]
    assert env.observations["critic"].tolist() == [[10, 0], [0, 1]]
    assert one["ended_in"] == [[0, 1], [0, 1]]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Discrete", "the action space Discrete(3) is not a Box of real numbers"),
        ("Whole", "the action space Box(0, 5, (1,), int64) is not a Box of real numbers"),
        ("Picture", "the observation space Box(8, 8, 3) of uint8 is an image"),
        ("Pair", "the observation space Tuple(Box"),
        ("Silent", "its metadata['autoreset_mode'] is None"),
        ("Nowhere", "has no Nowhere"),
        ("NoAction", "the action space Box([], [], (0,), float32) is empty"),
        ("NoSight", "is empty; change its keys or shapes"),
        ("Twice", "has two columns of the name a.b[0]"),
    ],
)
def test_spaces_that_do_not_fit_are_refused_by_name(name, said, capsys, tmp_path):
    line = refusal(capsys, f"task=gymnasium:{COUNTERS}:{name}", f"output={tmp_path / 'run'}")
    assert said in line
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------------- settings


def test_arguments_of_the_constructor_are_settings(make):
    env = make("Counter", "task.kwargs.start=7", "task.kwargs.limit=1")
    assert env.observations["policy"].tolist() == [[7, 0], [7, 0]]
    assert env.step(torch.zeros(2, 1)).truncated.tolist() == [True, True]


def test_an_argument_that_the_constructor_does_not_take_is_one_line(capsys):
    line = refusal(capsys, f"task=gymnasium:{COUNTERS}:Counter", "task.kwargs.strat=7")
    assert "cannot be made: TypeError" in line
    assert "strat" in line


def test_a_time_limit_can_be_set_where_there_is_none(make):
    env = make("Mute", "task.episode_steps=2")
    env.step(torch.zeros(2, 1))
    assert env.step(torch.zeros(2, 1)).truncated.tolist() == [True, True]
    assert env.max_episode_steps == 2
    assert (env.dt, env.dt_known) == (1.0, False)
    assert make("Mute", "task.control_dt=0.1").dt == 0.1
    assert make("Counter").dt == 0.25
    assert make("Numpy").dt == 0.5
    with pytest.raises(ConfigError, match=r"task.episode_steps: .* is a vector environment"):
        make("SameStep", "task.episode_steps=2")


def test_the_seed_determines_all_random_numbers(make):
    def drawn(*words: str, rank: int = 0) -> list:
        env = make("Noisy", *words, rank=rank)
        for _ in range(5):
            env.step(torch.zeros(2, 1))
        return env.observations["policy"].tolist()

    first = drawn("seed=3")
    assert first[0] != first[1]
    assert drawn("seed=3") == first
    assert drawn("seed=3", "task.vectorization=async") == first
    assert drawn("seed=4") != first
    assert drawn("seed=3", rank=1) != first


def test_nan_observations_and_actions_raise_by_name(make):
    env = make("Broken")
    env.step(torch.zeros(2, 1))
    with pytest.raises(
        NonFiniteTerm, match=r"policy observation 'observation\[0\]' .* environment 0 at step 1"
    ):
        env.step(torch.zeros(2, 1))
    with pytest.raises(NonFiniteTerm, match=r"action 'action\[0\]'"):
        make("Counter").step(torch.tensor([[0.0], [float("nan")]]))


def test_a_misspelt_id_gets_a_suggestion(capsys):
    assert "did you mean Pendulum-v1" in refusal(capsys, "task=gymnasium:Pendulm-v1")
    assert "there is no module 'no_such_module'" in refusal(capsys, "task=gymnasium:no_such_module:A-v0")
    assert "gymnasium" in refusal(capsys, "task=gymnasum:Pendulum-v1")


def test_a_backend_and_learners_with_gradients_are_refused(capsys):
    line = refusal(capsys, "task=gymnasium:Pendulum-v1", "backend=mujoco")
    assert "task=gymnasium:Pendulum-v1 brings its own simulator; leave backend=mujoco out" in line
    line = refusal(capsys, "task=gymnasium:Pendulum-v1", "learner=shac")
    assert "learner=shac needs gradients; task=gymnasium:Pendulum-v1 has none; use learner=ppo" in line
    assert "backend=external is" in refusal(capsys, "task=cartpole_balance", "backend=external")
    assert main(["grad-check", "task=gymnasium:Pendulum-v1"]) == 2
    assert "brings its own simulator" in capsys.readouterr().err


# ---------------------------------------------------------------------- a run


def test_a_run_is_saved_resumed_and_evaluated_and_code_in_files_is_named_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    task = f"task=gymnasium:{COUNTERS}:SameStep"
    assert main(["train", task, *SMALL, "max_iterations=1", "output=run"]) == 0
    assert main(["train", "resume=run", "max_iterations=2"]) == 2
    assert "its task comes from a file, which is only run where you name it again" in capsys.readouterr().err
    assert main(["train", "resume=run", task, "max_iterations=2"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "not bit for bit: a third-party environment cannot be restored" in said
    assert main(["eval", "run", task, "--episodes", "4"]) == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert (metrics["episodes"], metrics["survival_rate"]) == (4, 1.0)
    assert metrics["episode_length_s"] == pytest.approx(0.75)
    assert metrics["forward_distance"] is None


def test_a_registered_environment_resumes_without_being_named_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert (
        main(
            [
                "train",
                "task=gymnasium:Pendulum-v1",
                "task.kwargs.g=5.0",
                *SMALL,
                "max_iterations=1",
                "output=run",
            ]
        )
        == 0
    )
    assert main(["train", "resume=run", "max_iterations=2"]) == 0
    assert config.load("run").task.kwargs == {"g": 5.0}
    assert config.load("run", ["backend=auto"]).backend_name == config.EXTERNAL
    assert main(["eval", "run", "--episodes", "2", "--backend", "mujoco"]) == 2
    assert "brings its own simulator" in capsys.readouterr().err


def test_the_doors_are_listed(capsys):
    assert main(["list", "tasks"]) == 0
    assert "gymnasium:ID" in capsys.readouterr().out
