"""Films of segments, for the page that shows two of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from robolearn.envs.scene import Scene
from robolearn.envs.state import State, scene_state
from robolearn.errors import ConfigError
from robolearn.learners.preference.segments import Segment
from robolearn.simulation.film import step_of_frame
from robolearn.simulation.renderer import Renderer, row
from robolearn.simulation.video import write_video
from robolearn.tasks.mdp.terms import forward_axis


class Films:
    """Draws segments with one renderer; to be used by one thread."""

    def __init__(self, scene: Scene, size: tuple[int, int], fps: float) -> None:
        """Films of `size`, width and height [pixels], with `fps` frames per second.

        Raises:
            MissingError: this machine has no renderer.
        """
        self.scene, self.fps = scene, fps
        self.renderer = Renderer(scene, *size)

    def write(self, segment: Segment, path: Path) -> None:
        """Write a segment's film.

        Raises:
            ConfigError: the segment holds no poses, or those of another scene.
            MissingError: no encoder is installed.
        """
        state = posed(segment, self.scene)
        frames = max(2, round(segment.seconds * self.fps))

        def drawn() -> Iterator[np.ndarray]:
            if self.scene.robot.base is not None:
                ahead, across = row(forward_axis(state.robot.base_quat), 0)
                self.renderer.face(math.atan2(across, ahead))
            for frame in range(frames):
                step = min(segment.steps, step_of_frame(frame, self.fps, segment.dt))
                yield self.renderer.draw(state, index=step)

        write_video(path, drawn(), self.fps, frames, progress=False)

    def close(self) -> None:
        """Free OpenGL's resources."""
        self.renderer.close()


def posed(segment: Segment, scene: Scene) -> State:
    """The State (T + 1 rows) that a segment's poses show; what they do not have is 0.

    Raises:
        ConfigError: there are none, or they are of another scene.
    """
    if not segment.poses:
        raise ConfigError(f"segment {segment.name} holds no poses, so there is no film of it")
    entities = scene_state(scene, segment.steps + 1, torch.device("cpu"))
    for name, value in segment.poses.items():
        entity, _, field = name.rpartition(".")
        place = getattr(entities.get(entity), field, None)
        if not isinstance(place, torch.Tensor) or place.shape != value.shape:
            raise ConfigError(f"segment {segment.name} is of another robot or scene: {name} does not fit")
        place.copy_(torch.from_numpy(value))
    return State(entities)
