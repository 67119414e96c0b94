"""AgentBackend: each world as every one of its agents sees it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from robolearn.envs.agents import AgentBackend
from robolearn.envs.mujoco.backend import MujocoBackend
from robolearn.envs.scene import Contact, Object, Place, Scene
from robolearn.envs.state import InitialState
from robolearn.errors import ConfigError
from tests.factories import load_robot

LIFTER = load_robot("lifter")
SCENE = Scene(
    {
        "robot": LIFTER,
        "second": LIFTER,
        "third": LIFTER,
        "box": Object("box", (0.1, 0.1, 0.1), position=(0.0, 0.0, 2.0)),
    },
    frames=dict.fromkeys(("robot", "second", "third"), ("tray",)),
    contacts={name: {"box": Contact(("tray",), "box")} for name in ("robot", "second", "third")},
    places={"second": Place((1.0, 0.0, 0.0)), "third": Place((2.0, 0.0, 0.0))},
    params=("box/mass_scale",),
    floor=True,
)
AGENTS = ("robot", "second", "third")


def agents_of(worlds: int) -> AgentBackend:
    return AgentBackend(MujocoBackend(SCENE, worlds), SCENE, AGENTS)


def started(backend: AgentBackend) -> AgentBackend:
    """Vehicles of world w and agent k at k + w / 10 [m], boxes at a height of 2 + w [m]."""
    rows, k = backend.num_envs, len(AGENTS)
    world = (torch.arange(rows) // k).float()

    def at(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.stack((x, y), dim=1)

    still, box = torch.zeros(rows, 3), torch.zeros(rows, 3)
    box[:, 2] = 2 + world
    initial = {
        name: InitialState.at_rest(still, joint_pos=at(i + world / 10, torch.full((rows,), 0.2)))
        for i, name in enumerate(AGENTS)
    }
    backend.reset(torch.ones(rows, dtype=torch.bool), initial | {"box": InitialState.at_rest(box)})
    return backend


def test_every_agent_sees_itself_as_robot_and_the_next_ones_around():
    state = started(agents_of(2)).state
    drive = {name: entity.joint_pos[:, 0] for name, entity in state.entities.items() if name != "box"}
    worlds = torch.tensor([0.0] * 3 + [0.1] * 3)
    assert torch.allclose(drive["robot"] - worlds, torch.tensor([0.0, 1.0, 2.0] * 2), atol=1e-6)
    assert torch.allclose(drive["second"] - worlds, torch.tensor([1.0, 2.0, 0.0] * 2), atol=1e-6)
    assert torch.allclose(drive["third"] - worlds, torch.tensor([2.0, 0.0, 1.0] * 2), atol=1e-6)
    # The places of the robots go with them; objects are the same for all.
    assert state.robot.base_pos[:, 0].tolist() == [0.0, 1.0, 2.0] * 2
    assert state.entities["box"].base_pos[:, 2].tolist() == [2.0] * 3 + [3.0] * 3
    assert torch.allclose(
        state.robot.frames["tray"].pos[:3, 0], torch.tensor([0.0, 2.0, 4.0]), atol=1e-6
    )  # place and joint


def test_an_action_moves_the_robot_of_its_agent_alone():
    backend = started(agents_of(2))
    targets = torch.tensor([[0.0, 0.2]]).repeat(6, 1)
    targets[4, 0] = 40.0  # world 1, second
    for _ in range(20):
        backend.step(targets, 1)
    moves = (backend.state.robot.joint_vel[:, 0].abs() > 0.1).tolist()
    assert moves == [False, False, False, False, True, False]
    # The first agent sees it as `second`, the third as its next but one.
    assert (backend.state.entities["second"].joint_vel[:, 0] > 0.1).tolist() == [False] * 3 + [
        True,
        False,
        False,
    ]
    assert (backend.state.entities["third"].joint_vel[:, 0] > 0.1).tolist() == [False] * 5 + [True]


def test_the_worlds_are_those_of_the_plain_backend_bit_for_bit():
    backend, plain = started(agents_of(2)), MujocoBackend(SCENE, 2)
    plain.restore(backend.snapshot())
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        targets = torch.rand(6, 2, generator=generator)
        backend.step(targets, 2)
        plain.step({name: targets[k::3].contiguous() for k, name in enumerate(AGENTS)}, 2)
    for k, name in enumerate(AGENTS):
        for field, mine in backend.state.robot.tensors().items():
            assert torch.equal(mine[k::3], plain.state.entities[name].tensors()[field]), (name, field)


def test_only_the_worlds_in_the_mask_are_reset():
    backend = started(agents_of(2))
    targets = torch.tensor([[40.0, 0.2]]).repeat(6, 1)
    for _ in range(20):
        backend.step(targets, 1)
    mask = torch.tensor([False] * 3 + [True] * 3)
    home = {
        name: InitialState.at_rest(torch.zeros(6, 3), joint_pos=torch.tensor([[0.0, 0.2]]).repeat(6, 1))
        for name in AGENTS
    }
    backend.reset(mask, home)
    assert (backend.state.robot.joint_vel[:, 0].abs() > 0.1).tolist() == [True] * 3 + [False] * 3


def test_a_restored_world_goes_to_all_of_its_agents():
    backend = started(agents_of(2))
    snapshot = backend.snapshot()
    swapped = torch.tensor([3, 4, 5, 0, 1, 2])
    backend.restore(snapshot, swapped)
    assert torch.allclose(
        backend.state.robot.joint_pos[:, 0], torch.tensor([0.1, 1.1, 2.1, 0.0, 1.0, 2.0]), atol=1e-6
    )


def test_a_parameter_is_of_a_world_and_every_agent_sees_it():
    backend = started(agents_of(2))
    values = torch.tensor([2.0] * 3 + [3.0] * 3)
    backend.set_params(torch.ones(6, dtype=torch.bool), {"box/mass_scale": values})
    assert backend.state.params["box/mass_scale"].tolist() == values.tolist()


@pytest.mark.parametrize(
    ("scene", "agents", "offender"),
    [
        (SCENE, ("second", "robot"), "second"),
        (SCENE, ("robot", "box"), "box"),
        (SCENE, ("robot", "second"), "third"),
        (replace(SCENE, frames={"robot": ("tray",)}), AGENTS, "frames"),
        (replace(SCENE, contacts={"robot": {"box": Contact(("tray",), "box")}}), AGENTS, "contacts"),
        (
            replace(SCENE, entities={**SCENE.entities, "third": replace(LIFTER, home=(0.0, 0.1))}),
            AGENTS,
            "third",
        ),
    ],
)
def test_agents_that_are_not_alike_are_refused_by_name(scene, agents, offender):
    with pytest.raises(ConfigError, match=offender):
        AgentBackend(MujocoBackend(scene, 2), scene, agents)
