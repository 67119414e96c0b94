"""Medians and ratios of the comparison, and the table that prints them with shared settings and differences."""

from __future__ import annotations

import statistics
from typing import Any

ROWS = {
    "total": "an iteration",
    "simulate": "  simulate",
    "physics": "    physics",
    "stepping": "      stepping",
    "infer": "  infer",
    "learn": "  learn",
    "other": "  other",
    "cpu": "processor time",  # over all threads: comparable even where other processes use the machine
}
NOT_SHARED = """\
  Differences by design:
  - mjlab updates all derived quantities with an additional forward pass per control step; robolearn's fields may be
    one substep old, and only environments that were reset get that pass.
  - mjlab keeps the robot's visual geoms in the simulated model, has sensors for angular momentum and
    self-collisions and casts rays for the height of the feet; robolearn drops what does not collide and reads the
    height of the soles. Its rewards for torque and foot spacing replace those of these two sensors.
  - mjlab also randomizes encoder biases and the centre of mass, its pushes also rotate the robot, and part of its
    commands control the heading. robolearn draws friction at each reset, mjlab once.
  - mjlab changes Adam's learning rate after every minibatch, robolearn after every iteration. Neither writes logs or
    checkpoints here; robolearn checks for buffer overflow, mjlab does not."""


def summary(rounds: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians of both sides and of the ratios of each round; above 1 robolearn is faster."""
    ours, theirs = rounds["robolearn"], rounds["mjlab"]
    speed = {name: [r["steps"] / r["total"] for r in rows] for name, rows in rounds.items()}
    ratios = [a / b for a, b in zip(speed["robolearn"], speed["mjlab"], strict=True)]
    seconds = {
        key: {
            "robolearn": statistics.median(r[key] for r in ours),
            "mjlab": statistics.median(r[key] for r in theirs),
            "ratio": statistics.median(b[key] / max(a[key], 1e-9) for a, b in zip(ours, theirs, strict=True)),
        }
        for key in ROWS
        if key in ours[0] and key in theirs[0]
    }
    return {
        "steps_per_second": {name: statistics.median(values) for name, values in speed.items()},
        "ratio": statistics.median(ratios),
        "ratios": [min(ratios), max(ratios)],
        "seconds": seconds,
        "falls": {name: statistics.median(r["falls"] for r in rows) for name, rows in rounds.items()},
        "rounds": rounds,
    }


def report(result: dict[str, Any]) -> None:
    """Print the table."""
    about, export, falls = result["robolearn"], result["mjlab"], result["falls"]
    print(
        f"{export['task']}, {result['num_envs']} environments, {result['device']}, backend {about['backend']}"
    )
    print(
        f"{result['machine']}, {result['threads']} torch threads, medians of {result['iterations']} rounds, in turns"
    )
    print(f"{'':<24}{'robolearn':>12}{'mjlab':>12}{'as fast':>10}")
    speed, (low, high) = result["steps_per_second"], result["ratios"]
    print(
        f"{'environment steps/s':<24}{speed['robolearn']:>12,.0f}{speed['mjlab']:>12,.0f}{result['ratio']:>10.2f}"
        f"   ({low:.2f} to {high:.2f})"
    )
    for key, row in result["seconds"].items():
        print(f"{ROWS[key] + ' [s]':<24}{row['robolearn']:>12.3f}{row['mjlab']:>12.3f}{row['ratio']:>10.2f}")
    print(f"{'falls / 1000 steps':<24}{1e3 * falls['robolearn']:>12.2f}{1e3 * falls['mjlab']:>12.2f}")
    for count in about["counts"]:
        print(f"{count:<24}{about['counts'][count]:>12}{export['counts'][count]:>12}")
    for group, name in (("policy", "actor"), ("critic", "critic")):
        seen = about["observations"][group], export["observations"][name]
        print(f"{name + ' observes':<24}{seen[0]:>12}{seen[1]:>12}")
    print(f"{'rewards':<24}{len(about['rewards']):>12}{sum(w != 0 for w in export['rewards'].values()):>12}")
    for name, side in (("robolearn", about), ("mjlab", export)):
        print(
            f"  {name}: " + ", ".join(f"{package} {version}" for package, version in side["versions"].items())
        )
    print(f"  Shared: {shared(export)}.")
    print(f"  Arithmetic of the networks: {about['precision']} in robolearn, fp32 in mjlab.")
    print(
        "  Differences between the compiled models:"
        if about["differences"]
        else "  The compiled models are equal."
    )
    for line in about["differences"][:20]:
        print(f"  - {line}")
    print(NOT_SHARED)
    print(f"  {result['command']}")


def shared(export: dict[str, Any]) -> str:
    """The settings that both sides share."""
    options, sizes, learner = export["options"], export["sizes"], export["learner"]
    named = ("solver", "iterations", "ls_iterations", "ccd_iterations", "cone", "impratio", "integrator")
    algorithm, batch = learner["algorithm"], learner["num_steps_per_env"]
    return (
        f"the robot, {export['decimation']} x {options['timestep']:g} s a control step, "
        + ", ".join(f"{key} {options[key]}" for key in named)
        + f", njmax {sizes['njmax']}, nconmax {sizes['nconmax']}, {batch} steps a batch, "
        f"{algorithm['num_learning_epochs']} epochs of {algorithm['num_mini_batches']} minibatches, "
        f"networks {learner['actor']['hidden_dims']}"
    )
