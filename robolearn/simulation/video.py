"""Text on frames, and encoding of frames as H.264."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from robolearn.errors import ConfigError, MissingError, quote
from robolearn.files import replacing
from robolearn.simulation.renderer import ARROWS

SIZE = (640, 480)
"""Usual width and height of a video [pixels]: two cores without a GPU draw 20 s of it in less than 40 s."""
FPS = 25.0
"""Usual frames per second of a video."""
SMALLEST, LARGEST = 64, 4096
"""Bounds of a video's sides [pixels]."""

LIGHT = (235, 235, 235)
"""Usual colour of text."""

Colour = tuple[int, int, int]


def parse_size(text: str, where: str = "--size") -> tuple[int, int]:
    """Width and height [pixels] of `1280x720`.

    Raises:
        ConfigError: it is not such a text, or a side is odd, too small or too large.
    """
    wide, by, high = text.lower().partition("x")
    fine = by and all(side.isascii() and side.isdigit() and len(side) < 6 for side in (wide, high))
    size = (int(wide), int(high)) if fine else (0, 0)
    if not all(SMALLEST <= side <= LARGEST and side % 2 == 0 for side in size):
        raise ConfigError(
            f"{where} {quote(text)}: expected WIDTHxHEIGHT such as 1280x720, two even numbers from {SMALLEST} to "
            f"{LARGEST}"
        )
    return size


def caption(pixels: np.ndarray, lines: list[str]) -> np.ndarray:
    """The frame (H, W, 3) uint8 with lines of text in its lower left corner, on a darkened background."""
    height, width = pixels.shape[:2]
    size = max(10, height // 36)
    while size > 6 and _widest(lines, size) > width - 2 * size:
        size -= 1
    step, margin = round(1.4 * size), size
    top = height - margin - step * len(lines)
    right = min(width, _widest(lines, size) + 2 * margin + margin // 2)
    colours = [_legend(line) for line in lines]
    out = pixels.copy()
    box = (top - margin // 2, height - margin // 2, margin // 2, right)
    rows = [(margin // 2, margin // 2 + i * step) for i in range(len(lines))]
    _write(out, box, lines, rows, colours, size)
    return out


def headline(pixels: np.ndarray, line: str, colour: Colour = LIGHT, share: float = 1 / 28) -> np.ndarray:
    """The frame (H, W, 3) uint8 with one line of text of a `share` of its height in the upper left corner."""
    height, width = pixels.shape[:2]
    size = max(10, round(share * height))
    while size > 6 and _widest([line], size) > width - 2 * size:
        size -= 1
    margin = size // 2
    right = min(width, _widest([line], size) + 3 * margin)
    out = pixels.copy()
    box = (margin, margin + 2 * margin + round(1.2 * size), margin, right)
    _write(out, box, [line], [(margin, margin)], [colour], size)
    return out


def _legend(line: str) -> Colour:
    """The colour of a line of the caption: that of the arrow that it explains."""
    if line.split()[0] not in ARROWS:
        return LIGHT
    red, green, blue, _ = ARROWS[line.split()[0]]
    return round(255 * red), round(255 * green), round(255 * blue)


@lru_cache(maxsize=16)
def _font(size: int) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(size)


def _widest(lines: list[str], size: int) -> int:
    return round(max(_font(size).getlength(line) for line in lines))


def _write(
    out: np.ndarray,
    box: tuple[int, int, int, int],
    lines: list[str],
    corners: list[tuple[int, int]],
    colours: list[Colour],
    size: int,
) -> None:
    """Darken a box (top, bottom, left, right) of `out` in place, and write lines at their `corners` (x, y) in it."""
    from PIL import Image, ImageDraw

    top, bottom, left, right = box
    region = out[max(top, 0) : bottom, left:right]
    picture = Image.fromarray(region // 2)
    drawn = ImageDraw.Draw(picture)
    for line, corner, colour in zip(lines, corners, colours, strict=True):
        drawn.text(corner, line, fill=colour, font=_font(size))
    region[:] = np.asarray(picture)


def write_video(
    path: Path, frames: Iterable[np.ndarray], fps: float, total: int, progress: bool = True
) -> None:
    """Encode frames (H, W, 3) uint8, of even height and width, as H.264 and write the file atomically; shows progress
    on a terminal, unless without `progress`.

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
            str(part),
            size,
            fps=fps,
            codec="libx264",
            quality=None,
            macro_block_size=2,  # otherwise frames are scaled to multiples of 16
            output_params=quality,
        )
        try:
            writer.send(None)
            shown = progress and sys.stderr.isatty()
            for frame in track(chain((first,), rest), "video", total, disable=not shown):
                writer.send(np.ascontiguousarray(frame))
        finally:
            writer.close()
