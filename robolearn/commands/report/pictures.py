"""Pictures of a run: its video, or stills of its policy."""

from __future__ import annotations

import base64
import io
from datetime import datetime
from pathlib import Path
from typing import Any

from robolearn.commands.report.blocks import Pictures, Section, Text, Video
from robolearn.commands.report.reading import RunData
from robolearn.config.run_config import EXTERNAL
from robolearn.errors import one_line
from robolearn.learners.saved import PREFIX

LARGEST_VIDEO = 8_000_000
"""Size of the largest video that is embedded [bytes]."""

LARGEST_PICTURE = 4_000_000

SIZE = (640, 480)
"""Width and height of a still."""

SECONDS = (0.0, 1.0, 2.5, 5.0)
"""Times of the stills in simulation [s]."""


def section(run: RunData, stills: bool, words: tuple[str, ...] = ()) -> Section:
    """The video where it is small enough, else stills; a line that says why where there are none."""
    out = Section("pictures", "The robot", short="Robot")
    if run.video is not None:
        size = run.video.stat().st_size
        if size <= LARGEST_VIDEO:
            when = datetime.fromtimestamp(run.video.stat().st_mtime).astimezone()
            caption = f"{run.video.name}, written {when:%Y-%m-%d %H:%M}"
            out.blocks.append(Video(_uri("video/mp4", run.video.read_bytes()), caption))
            return out
        text = f"{run.video} has {size / 1e6:.0f} MB; at most {LARGEST_VIDEO / 1e6:.0f} MB are embedded."
        out.blocks.append(Text(text))
    if not stills:
        return out
    if run.checkpoint is None:
        out.blocks.append(Text("No stills: there is no checkpoint."))
        return out
    try:
        rows = film(run, words)
    except Exception as error:  # a user's task may raise anything, and the rest of the page is worth having
        why = one_line(str(error), 300) or type(error).__name__
        out.blocks.append(Text(f"No stills: {why}"))
        return out
    out.blocks.append(Pictures(rows))
    return out


def film(run: RunData, words: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """Stills of the deterministic policy, as data URIs with their captions.

    Raises:
        ConfigError, MissingError, RunFailed: the policy cannot be run here, or there is no renderer.
    """
    import torch

    from robolearn.errors import ConfigError
    from robolearn.learners.policy import reset_state
    from robolearn.simulation.film import velocity_of
    from robolearn.simulation.renderer import Renderer, row
    from robolearn.tasks.mdp.commands import VelocityCommands
    from robolearn.training.build import make_env
    from robolearn.training.runs import load_policy, open_run
    from robolearn.training.train import set_threads

    found = open_run(run.name if run.name.startswith(PREFIX) else str(run.checkpoint), words)
    if found.config.backend_name == EXTERNAL:
        raise ConfigError("the run is of a third-party environment; robolearn play may write a video of it")
    set_threads(found.config)
    policy = load_policy(found)
    env = make_env(found.config, num_envs=1)
    rows = []
    try:
        with torch.no_grad(), Renderer(env.scene, *SIZE, backend=env.backend.capabilities.name) as renderer:
            env.reset()
            reset_state(policy)
            at = {round(seconds / env.ctx.dt): seconds for seconds in SECONDS}
            for step in range(max(at) + 1):
                if step in at:
                    arrows: dict[str, Any] = {}
                    if isinstance(env.task.commands, VelocityCommands):
                        wanted, actual = row(env.ctx.command), velocity_of(env.backend.state)
                        arrows = {"command": wanted[:2], "actual": actual[:2]}
                    pixels = renderer.draw(env.backend.state, arrows)
                    rows.append((jpeg(pixels), f"{at[step]:g} s"))
                done = env.step(policy(env.observations)).done
                env.check()
                reset_state(policy, done)
    finally:
        env.close()
    return rows


def jpeg(pixels: Any) -> str:
    """A frame (H, W, 3) uint8 as a data URI."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="JPEG", quality=85)
    return _uri("image/jpeg", buffer.getvalue())


def picture_uri(path: Path) -> str:
    """A PNG file as a data URI; empty where it is not there or too large."""
    try:
        content = path.read_bytes()
    except OSError:
        return ""
    return _uri("image/png", content) if content[:4] == b"\x89PNG" and len(content) <= LARGEST_PICTURE else ""


def _uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
