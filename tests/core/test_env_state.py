"""EnvState: two lifetimes, and one operation on the tree for each thing that is done to all of it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from robolearn.core import env_state
from robolearn.core.env import Env
from robolearn.core.episode_stats import as_ratios
from robolearn.envs.mujoco import MujocoBackend
from robolearn.tasks.cartpole import CartpoleBalance
from robolearn.tasks.mdp.task import Ratio
from tests.factories import load_robot


@dataclass
class Climbing(CartpoleBalance):
    """A made-up curriculum: an environment climbs a level with each episode that runs out of time."""

    def per_env_state(self, num_envs, random):
        return {"level": torch.zeros(num_envs, device=random.device)}

    def advance_per_env(self, state, ctx, done):
        survived = ctx.episode_time >= self.episode_length_s - 1e-6
        return {"level": ctx.per_env_state["level"] + survived.float()}

    def reward_terms(self):
        return {**super().reward_terms(), "effort": lambda state, ctx: -ctx.per_env_state["level"]}


def climbing(num_envs: int = 3) -> Env:
    robot = load_robot("cartpole")
    return Env(Climbing(episode_length_s=0.1), robot, MujocoBackend(robot, num_envs))


def test_a_made_up_level_per_env_survives_resets_and_travels_with_a_snapshot():
    env = climbing()
    for _ in range(12):  # episodes of 5 steps of 0.02 s: two have ended
        env.step(torch.zeros(3, 1))
    assert env.ctx.per_env_state["level"].tolist() == [2.0, 2.0, 2.0]
    assert env.episode_step.tolist() == [2, 2, 2]
    env.state.per_env = {"level": torch.tensor([0.0, 1.0, 5.0])}
    saved = env.snapshot()
    other = climbing()
    other.restore(saved, torch.tensor([2, 2, 0]))
    assert other.ctx.per_env_state["level"].tolist() == [5.0, 5.0, 0.0]
    assert [-x for x in other.task.reward_terms()["effort"](None, other.ctx).tolist()] == [5.0, 5.0, 0.0]


def test_rows_that_are_not_done_keep_their_level_whatever_the_task_returns():
    env = climbing()
    env.state.episode.step = torch.tensor([4, 0, 4])  # the outer two end with the next step
    env.state.episode.time = torch.tensor([0.1, 0.1, 0.0])
    env.step(torch.zeros(3, 1))
    assert env.ctx.per_env_state["level"].tolist() == [1.0, 0.0, 0.0]


def test_a_level_that_only_one_of_the_two_functions_gives_is_named():
    @dataclass
    class Forgetful(Climbing):
        def advance_per_env(self, state, ctx, done):
            return {}

    robot = load_robot("cartpole")
    with pytest.raises(ValueError, match="per-env state 'level'"):
        Env(Forgetful(), robot, MujocoBackend(robot, 2))


def test_where_takes_the_new_rows_of_every_tensor_in_the_tree():
    old = {"a": torch.tensor([1.0, 2.0]), "b": {"c": torch.tensor([[1, 1], [2, 2]])}}
    new = {"a": torch.tensor([5.0, 6.0]), "b": {"c": torch.tensor([[5, 5], [6, 6]])}}
    chosen = env_state.where(torch.tensor([False, True]), new, old)
    assert chosen["a"].tolist() == [1.0, 6.0]
    assert chosen["b"]["c"].tolist() == [[1, 1], [6, 6]]


def test_leaves_are_named_by_their_path_and_go_back_to_their_place():
    tree = {"a": {"b": torch.tensor(1.0)}, "c": torch.tensor(2.0)}
    named = env_state.leaves(tree)
    assert list(named) == ["a.b", "c"]
    again = env_state.with_leaves(tree, {"c": torch.tensor(4.0), "a.b": torch.tensor(3.0)})
    assert (again["a"]["b"].item(), again["c"].item()) == (3.0, 4.0)
    with pytest.raises(KeyError, match="c"):
        env_state.with_leaves(tree, {"a.b": torch.tensor(3.0)})


def test_the_env_of_a_checkpoint_of_schema_2_gets_the_paths_of_today():
    env = climbing()
    env.step(torch.full((3, 1), 0.5))
    state = env.snapshot()["state"]
    old = {"backend": {}, "random": torch.zeros(1), "totals": state["stats"]}
    for part, places in env_state.FIRST_LAYOUT.items():
        old[part] = {}
        for name, path in places.items():
            inner = {k.removeprefix(f"{path}."): v for k, v in state.items() if k.startswith(f"{path}.")}
            old[part][name] = state.get(path, inner)
    migrated = env_state.from_first_layout(old)
    assert set(migrated["state"]) == set(state) - {"per_env.level"}
    assert all(torch.equal(value, state[name]) for name, value in migrated["state"].items())


def test_a_tree_is_mapped_leaf_by_leaf_whatever_it_is_made_of():
    pair = ({"a": torch.tensor([1.0]), "rest": [torch.tensor([2.0]), None, "x"]}, (torch.tensor([3.0]),))
    other = ({"rest": [torch.tensor([20.0]), None, "y"], "a": torch.tensor([10.0])}, (torch.tensor([30.0]),))
    mapped = env_state.tree_map(torch.add, pair, other)
    assert mapped == (
        {"a": torch.tensor([11.0]), "rest": [torch.tensor([22.0]), None, "x"]},
        (torch.tensor([33.0]),),
    )


@pytest.mark.parametrize("other", [{"a": torch.zeros(1)}, {"a": torch.zeros(1), "c": torch.zeros(1)}])
def test_trees_of_different_keys_are_not_mapped_together(other):
    with pytest.raises((KeyError, ValueError)):
        env_state.tree_map(torch.add, {"a": torch.zeros(1), "b": torch.zeros(1)}, other)


def test_leaves_and_maps_have_the_same_parts_of_a_tree():
    tree = {
        "a": [torch.tensor([1.0]), "x"],
        "none": None,
        "pair": Ratio(torch.tensor([2.0]), torch.tensor([3.0])),
    }
    doubled = env_state.tree_map(lambda x: 2 * x, tree)
    assert {path: x.item() for path, x in env_state.leaves(doubled).items()} == {
        "a.0": 2.0,
        "pair.0": 4.0,
        "pair.1": 6.0,
    }
    assert isinstance(doubled["pair"], Ratio)
    assert env_state.with_leaves(tree, env_state.leaves(doubled)) == doubled


def test_metrics_are_copies_with_a_weight_and_none_where_the_simulation_was_lost():
    speed, settled = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([True, False, True])
    lost = torch.tensor([False, False, True])
    found = as_ratios({"speed": speed, "error": Ratio(speed * settled, settled)}, lost)
    speed.zero_()
    assert [[part.tolist() for part in pair] for pair in found.values()] == [
        [[1.0, 2.0, 0.0], [1.0, 1.0, 0.0]],
        [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]],
    ]
    assert list(found) == ["speed", "error"]
    assert as_ratios({}, lost) == {}
