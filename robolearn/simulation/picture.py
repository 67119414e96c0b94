"""A picture of a robot in its home pose."""

from __future__ import annotations

from pathlib import Path

from robolearn.envs.robot import Robot
from robolearn.files import replacing
from robolearn.simulation.renderer import Renderer

SIZE = (960, 720)


def draw(made: Robot, path: Path) -> None:
    """Write a picture of the home pose with the axes of the joints, and of the world (x red, y green, z blue).

    Raises:
        MissingError: there is no renderer.
    """
    import mujoco
    import torch
    from PIL import Image

    from robolearn.envs.state import State, robot_entity

    entity = robot_entity(made, 1, torch.device("cpu"))
    entity.base_pos[0, 2] = made.home_height
    entity.joint_pos[0] = torch.tensor(made.home)
    with Renderer(made, *SIZE) as renderer:
        renderer.options.flags[mujoco.mjtVisFlag.mjVIS_JOINT] = True
        renderer.options.frame = mujoco.mjtFrame.mjFRAME_WORLD.value
        pixels = renderer.draw(State({"robot": entity}))
    with replacing(path) as part:
        Image.fromarray(pixels).save(part, format="PNG")
