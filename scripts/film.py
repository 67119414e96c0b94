"""Makes the README's pictures from a video: a small looping animation, and a strip of frames of one stride.

    robolearn play pretrained:humanoid_walk 'task.commands.forward=[0.8,0.8]' 'task.commands.sideways=[0,0]' \\
        'task.commands.yaw=[0,0]' task.commands.standing=0 seed=2 \\
        'task.pushes={speed:[0,0],box:[0,0,0],turn:[0,0,0]}' \\
        --video walk.mp4 --seconds 8 --size 1280x720 --fps 50
    python scripts/film.py walk.mp4 --animation docs/images/humanoid_walk.webp --strip docs/images/humanoid_walk.jpg
"""

from __future__ import annotations

import argparse
from pathlib import Path

import imageio.v3 as iio
import numpy as np
from PIL import Image


def frames(video: Path, start: float, seconds: float) -> tuple[list[np.ndarray], float]:
    """The frames (H, W, 3) of a part of a video [s], and the frame rate [1/s]."""
    rate = float(iio.immeta(video)["fps"])
    images = list(iio.imiter(video))
    return images[round(start * rate) : round((start + seconds) * rate)], rate


def cropped(picture: np.ndarray, aspect: float) -> Image.Image:
    """The centre of a picture above the legend, `aspect` times as wide as high."""
    image = Image.fromarray(picture[: round(0.84 * len(picture))])
    width = min(image.width, round(image.height * aspect))
    left = (image.width - width) // 2
    return image.crop((left, 0, left + width, image.height))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("video", type=Path)
    parser.add_argument("--animation", type=Path)
    parser.add_argument("--strip", type=Path)
    parser.add_argument("--start", type=float, default=2.0, help="start in the video [s]")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of the animation [s]")
    parser.add_argument("--stride", type=float, default=1 / 1.5, help="length of the strip [s]")
    parser.add_argument("--width", type=int, default=480, help="of the animation [pixels]")
    parser.add_argument("--rate", type=float, default=25 / 2, help="of the animation [1/s]")
    parser.add_argument("--whole", action="store_true", help="animate whole pictures, with their legend")
    parser.add_argument("--count", type=int, default=6, help="pictures in the strip")
    arguments = parser.parse_args()
    pictures, rate = frames(arguments.video, arguments.start, arguments.seconds)
    if arguments.animation:
        kept = pictures[:: max(1, round(rate / arguments.rate))]
        images = [Image.fromarray(p) if arguments.whole else cropped(p, 4 / 3) for p in kept]
        size = (arguments.width, round(arguments.width * images[0].height / images[0].width))
        images = [image.resize(size, Image.Resampling.LANCZOS) for image in images]
        images[0].save(
            arguments.animation,
            save_all=True,
            append_images=images[1:],
            duration=round(1000 / arguments.rate),
            loop=0,
            quality=60,
            method=6,
        )
    if arguments.strip:
        if len(pictures) <= arguments.stride * rate:
            raise SystemExit(
                f"--seconds {arguments.seconds:g} is too short for a strip of {arguments.stride:.2f} s; "
                "raise it or lower --stride"
            )
        step = arguments.stride * rate / arguments.count
        row = [cropped(pictures[round(i * step)], 0.7).resize((224, 320)) for i in range(arguments.count)]
        strip = Image.new("RGB", (224 * len(row), 320))
        for i, image in enumerate(row):
            strip.paste(image, (224 * i, 0))
        strip.save(arguments.strip, quality=88)


if __name__ == "__main__":
    main()
