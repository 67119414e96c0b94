"""A force on a robot's base accelerates it by force / mass, in each backend that has forces."""

import pytest
import torch

from robolearn.config.registry import load
from robolearn.envs.robot import Robot
from robolearn.envs.scene import Scene
from robolearn.envs.state import InitialState
from tests.factories import ROBOTS

EVERY = torch.ones(2, dtype=torch.bool)


def high_up(backend, robot: Robot) -> None:
    """Reset both to 20 m above the ground."""
    place = torch.tensor([[0.0, 0.0, 20.0]]).repeat(2, 1)
    backend.reset(EVERY, InitialState.at_rest(place, joint_pos=torch.tensor([robot.home]).repeat(2, 1)))


@pytest.mark.parametrize("name", ["mujoco", "mujoco_warp"])
def test_a_force_moves_the_centre_of_mass_by_its_impulse(name):
    cls, robot = load("backends", name), Robot.load(ROBOTS / "humanoid")
    backend = cls(Scene.of(robot), 2, "cpu", cls.config_class())
    mass = float(backend.model.body_mass.sum())
    force = torch.tensor([[0.0, 0.0, 0.0], [90.0, -30.0, 0.0]])
    high_up(backend, robot)
    targets = torch.tensor([robot.home]).repeat(2, 1)
    backend.apply_force(force)
    backend.step(targets, 20)
    moved = backend.state.robot.base_pos[1] - backend.state.robot.base_pos[0]
    # The base alone is pushed and drags the limbs along: together they have moved F t^2 / 2 m, the base about a quarter
    # more.
    time = 20 * backend.capabilities.timestep
    together = force[1, :2] * time**2 / (2 * mass)
    assert (moved[:2] / together).tolist() == pytest.approx([1.24, 1.25], abs=0.03)
    high_up(backend, robot)  # a reset does not change the force
    backend.step(targets, 20)
    again = backend.state.robot.base_pos[1] - backend.state.robot.base_pos[0]
    assert torch.allclose(again, moved, atol=1e-4)
    backend.apply_force(torch.zeros(2, 3))
    high_up(backend, robot)
    backend.step(targets, 20)
    assert torch.allclose(backend.state.robot.base_pos[1], backend.state.robot.base_pos[0], atol=1e-5)
    backend.close()


def test_both_backends_push_alike():
    ends = []
    for name in ("mujoco", "mujoco_warp"):
        cls, robot = load("backends", name), Robot.load(ROBOTS / "humanoid")
        backend = cls(Scene.of(robot), 2, "cpu", cls.config_class())
        high_up(backend, robot)
        backend.apply_force(torch.tensor([[0.0, 50.0, 20.0], [90.0, -30.0, 0.0]]))
        backend.step(torch.tensor([robot.home]).repeat(2, 1), 20)
        ends.append(backend.state.robot.base_pos.clone())
        backend.close()
    assert torch.allclose(ends[0], ends[1], atol=1e-4)
    assert not torch.allclose(ends[0][0], ends[0][1], atol=1e-2)
