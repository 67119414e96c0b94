"""Captions on frames, and encoding of frames as H.264."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import numpy as np

from robolearn.errors import MissingError
from robolearn.files import replacing
from robolearn.simulation.renderer import ARROWS


def caption(pixels: np.ndarray, lines: list[str]) -> np.ndarray:
    """The frame (H, W, 3) uint8 with lines of text in its lower left corner, on a darkened background."""
    from PIL import Image, ImageDraw, ImageFont

    height = pixels.shape[0]
    size = max(10, height // 36)
    font = ImageFont.load_default(size)
    step, margin = round(1.4 * size), size
    top = height - margin - step * len(lines)
    width = round(max(font.getlength(line) for line in lines)) + 2 * margin
    out = pixels.copy()
    out[top - margin // 2 : height - margin // 2, margin // 2 : margin // 2 + width] //= 2
    picture = Image.fromarray(out)
    drawn = ImageDraw.Draw(picture)
    for i, line in enumerate(lines):
        red, green, blue, _ = ARROWS.get(line.split()[0], (0.92, 0.92, 0.92, 1))
        colour = (round(255 * red), round(255 * green), round(255 * blue))
        drawn.text((margin, top + i * step), line, fill=colour, font=font)
    return np.asarray(picture)


def write_video(path: Path, frames: Iterable[np.ndarray], fps: float, total: int) -> None:
    """Encode frames (H, W, 3) uint8 as H.264 and write the file atomically; shows progress on a terminal.

    Raises:
        ConfigError: the file cannot be written.
        MissingError: no encoder is installed.
    """
    from rich.progress import track

    try:
        import imageio_ffmpeg  # type: ignore[import-untyped]
        import PIL  # noqa: F401

        imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError) as error:
        raise MissingError(
            f"a video needs an encoder ({error}): pip install imageio-ffmpeg pillow"
        ) from error
    quality = ["-crf", "20", "-preset", "veryfast", "-movflags", "+faststart"]
    rest = iter(frames)
    first = next(rest)  # a missing renderer raises here, before the file is created
    size = (first.shape[1], first.shape[0])
    with replacing(path) as part:
        writer = imageio_ffmpeg.write_frames(
            str(part), size, fps=fps, codec="libx264", quality=None, output_params=quality
        )
        try:
            writer.send(None)
            for frame in track(chain((first,), rest), "video", total, disable=not sys.stderr.isatty()):
                writer.send(np.ascontiguousarray(frame))
        finally:
            writer.close()
