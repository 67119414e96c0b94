"""Pictures of an Env for views with a render mode."""

from __future__ import annotations

import atexit
import weakref

import numpy as np

from robolearn.core.env import Env
from robolearn.errors import ConfigError
from robolearn.simulation.renderer import Renderer

MODES = ("rgb_array",)
SIZE = (640, 480)
"""Width and height of a picture [pixels]."""


def check_mode(mode: str | None) -> None:
    """Raise ConfigError for an unknown render mode."""
    if mode not in (None, *MODES):
        raise ConfigError(f"unknown render_mode={mode!r}; valid: None, 'rgb_array'")


class Pictures:
    """Draws the first environment of an Env, with a renderer that is made at first use."""

    def __init__(self, env: Env, mode: str | None) -> None:
        """
        Args:
            env: what is drawn.
            mode: `rgb_array`, or None for no pictures.

        Raises:
            ConfigError: there is no such mode.
        """
        check_mode(mode)
        self._env, self._mode = env, mode
        self._renderer: Renderer | None = None

    def draw(self) -> np.ndarray | None:
        """An image (480, 640, 3) uint8 of the current state; None without a render mode.

        Raises:
            MissingError: no renderer works on this machine.
        """
        if self._mode is None:
            return None
        if self._renderer is None:  # at first use: learners often set a render mode and never render
            name = self._env.backend.capabilities.name
            self._renderer = Renderer(self._env.scene, *SIZE, backend=name)
            # If close() is not called: at exit the OpenGL context must be freed before its library, which has just
            # registered its exit handler.
            atexit.register(_close, weakref.ref(self))
        return np.ascontiguousarray(self._renderer.draw(self._env.backend.state))

    def close(self) -> None:
        """Free the renderer."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None


def _close(left: weakref.ref[Pictures]) -> None:
    pictures = left()
    if pictures is not None:
        pictures.close()
