"""`robolearn play` without a browser, of a task with several agents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from robolearn import config
from robolearn.training.build import make_env
from robolearn.training.train import train

pytest.importorskip("mjviser")

from robolearn.commands.viewer import server as serving
from robolearn.commands.viewer.source import RunSource
from robolearn.commands.viewer.viewer import Viewer
from robolearn.learners.team import TeamRunner


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Path:
    """A run of `carry` with a policy for each vehicle."""
    folder = tmp_path_factory.mktemp("pair") / "run"
    policies = "learner.policies={robot: front, partner: back}"
    return train(
        config.resolve(["task=carry", "num_envs=8", "max_iterations=1", policies, f"output={folder}"])
    )


@pytest.fixture
def viewer(pair) -> Iterator[Viewer]:
    """Of two worlds; its loop does not run."""
    env = make_env(config.resolve(["task=carry", "device=cpu"]), num_envs=2)
    server = serving.open_server()
    yield Viewer(server, env, RunSource(env, pair / "latest.pt", pair), "test", pair)
    serving.stop(server)
    env.close()


def drawn(viewer: Viewer) -> np.ndarray:
    """(2, 2) x of the first and the second vehicle of both worlds, where they are drawn [m]."""
    out = []
    for body in viewer.drawing._bases:
        shown = (group for group in viewer.drawing.scene._mesh_groups if group.handle.visible)
        group = next(group for group in shown if body in group.body_ids.tolist())
        places = group.handle.batched_positions.reshape(2, len(group.body_ids), 3)
        out.append(places[:, group.body_ids.tolist().index(body), 0])
    return np.stack(out, axis=1)


def test_agents_of_a_world_are_drawn_in_one_place_and_the_shown_one_is_followed(viewer):
    drawing = viewer.drawing
    assert (drawing.count, viewer.env.num_envs) == (2, 4)
    viewer.step()
    drawing.follow = False
    drawing.update()
    # Each vehicle's own row says how far it is from its place; the second one's place is 1 m ahead.
    gone = viewer.env.backend.state.robot.joint_pos[:, 0].numpy().reshape(2, 2)
    assert np.allclose(drawn(viewer) - drawing.spots[:, :1], gone + np.array([0.0, 1.0]), atol=1e-5)
    assert gone.std() > 0.01
    drawing.follow = True
    viewer.panel._show(3)  # the partner of world 1
    drawing.update()
    assert drawn(viewer)[1, 1] == pytest.approx(0.0, abs=1e-6)
    viewer._tell()
    assert "partner of world 1" in viewer.panel.status.content


def test_worlds_do_not_overlap(viewer):
    # The beam and both vehicles are more than 1.5 m long together.
    spots = viewer.drawing.spots
    assert np.linalg.norm(spots[1] - spots[0]) > 1.5


def test_a_command_of_one_world_is_given_to_all_of_its_agents(viewer):
    steering = viewer.panel.steering
    steering.all.value = False
    viewer.panel._show(2)
    steering.set({0: 1.0, 1: 0.2})
    viewer.step()
    assert viewer.env.ctx.command[2:].tolist() == [pytest.approx([1.0, 0.2])] * 2
    assert viewer.operator.mine.tolist() == [False, False, True, True]


def test_each_agent_is_driven_by_its_own_policy(viewer):
    assert isinstance(viewer.source.runner, TeamRunner)
    action, _ = viewer.source()
    seen = viewer.env.observations["policy"]
    policies = viewer.source.runner.team.policies
    for k, name in enumerate(("front", "back")):
        assert np.allclose(action[k::2], policies[name].act({"policy": seen[k::2]}), atol=1e-6)
    assert not np.allclose(action[::2], policies["back"].act({"policy": seen[::2]}), atol=1e-3)


def test_contact_forces_of_a_world_are_drawn_once(viewer):
    for _ in range(10):
        viewer.step()
    viewer.drawing.forces, viewer.drawing.follow = True, False
    viewer.drawing.update()
    # A load on each of two trays in both worlds.
    assert viewer.drawing.arrows["force"].points.shape == (4, 2, 3)
