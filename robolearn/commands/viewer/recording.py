"""Recordings."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from robolearn.commands.viewer.viewer import Viewer


class RecordingPanel:
    """Recording."""

    def __init__(self, viewer: Viewer) -> None:
        self.viewer = viewer

    def refresh(self) -> None:
        """Show the state."""
