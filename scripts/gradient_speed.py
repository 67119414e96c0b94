"""Speed of gradients: the `own` engine, a plain tape of Newton and MuJoCo's forward pass, in turns, in one process.

    python scripts/gradient_speed.py --sizes 64,256,4096

All simulate 32 control steps of four substeps of the same cartpole. `--robots` adds other robots for the `own` engine
and MuJoCo (a plain tape of Newton takes minutes for them). "both" is forward and backward, with gradients by every
action. "newton" is one tape over the horizon, with solvers and states allocated once: `shared` has one solver, as in
Newton's examples, and gives wrong gradients; `each` has one per substep and gives correct ones. Numbers are medians
over the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import newton
import numpy as np
import torch
import warp as wp

from robolearn.config import registry
from robolearn.envs.robot import Robot
from robolearn.envs.state import InitialState

HORIZON, SUBSTEPS = 32, 4
MEMORY = 8_000_000_000
"""Limit for a tape of Newton [bytes]; larger ones are skipped."""
PER_ENVIRONMENT = 1_600_000
"""Approximate size of a tape per environment [bytes]: 100 MB for 64 environments."""


def horizon(robot: Robot, backend: str, size: int, device: str, back: bool) -> Callable[[], None]:
    """A function that simulates a horizon on one of robolearn's backends; `back`: with gradients."""
    sim = registry.load("backends", backend)(robot, size, device)
    where = sim.device
    every, zeros = torch.ones(size, dtype=torch.bool, device=where), torch.zeros(size, 3, device=where)
    high = zeros.clone()
    high[:, 2] = robot.home_height
    home = torch.tensor(robot.home, device=where).repeat(size, 1)
    quat = torch.tensor([1.0, 0.0, 0.0, 0.0], device=where).repeat(size, 1)
    initial = InitialState(high, quat, zeros, zeros, home, torch.zeros_like(home))
    held = torch.stack([home[:, j] for j in robot.actuated], dim=1)
    targets = held + 0.05 * torch.randn(HORIZON, *held.shape, device=where)

    def run() -> None:
        if back:
            sim.detach()
        sim.reset(every, initial)
        sent = targets.clone().requires_grad_(back)
        cost = torch.zeros((), device=where)
        for t in range(HORIZON):
            sim.step(sent[t], SUBSTEPS)
            if back:
                cost = cost + sim.state.robot.joint_pos.square().sum()
        if back:
            torch.autograd.grad(cost, sent)
        if where.type == "cuda":
            torch.cuda.synchronize()

    return run


def newton_plain(size: int, device: str, back: bool, each: bool) -> Callable[[], None]:
    """A function that simulates a horizon of the cartpole with Newton alone; `back`: with gradients."""
    wp.set_device(device)
    builder, axis = newton.ModelBuilder(), newton.ModelBuilder.JointDofConfig
    cart = builder.add_link(mass=1.0, inertia=wp.mat33(np.eye(3) * 0.01))
    rod = wp.mat33(np.diag([0.0167, 0.0167, 1e-5]))
    pole = builder.add_link(mass=0.2, com=wp.vec3(0.0, 0.0, 0.5), inertia=rod)
    free = {"limit_ke": 0.0, "limit_kd": 0.0}
    along = axis(axis=(1.0, 0.0, 0.0), damping=0.05, **free)
    about = axis(axis=(0.0, 1.0, 0.0), damping=0.002, **free)
    hinge = wp.transform((0.0, 0.0, 0.14), wp.quat_identity())
    builder.add_articulation(
        [
            builder.add_joint_prismatic(-1, cart, axis=along),
            builder.add_joint_revolute(cart, pole, axis=about, parent_xform=hinge),
        ]
    )
    worlds = newton.ModelBuilder()
    worlds.replicate(builder, size)
    model = worlds.finalize(requires_grad=True)
    count, random = HORIZON * SUBSTEPS, np.random.default_rng(1)
    states = [model.state(requires_grad=True) for _ in range(count + 1)]
    forces = [wp.array(random.normal(size=2 * size), dtype=float, requires_grad=True) for _ in range(HORIZON)]
    controls = []
    for force in forces:
        control = model.control(clone_variables=False)
        control.joint_f = force
        controls.append(control)
    solvers = [
        newton.solvers.SolverFeatherstone(model, angular_damping=0.0) for _ in range(count if each else 1)
    ]
    seed = wp.ones(2 * size, dtype=float)

    def forward() -> None:
        for k in range(count):
            solver = solvers[k if each else 0]
            solver.step(states[k], states[k + 1], controls[k // SUBSTEPS], None, 0.01)

    def run() -> None:
        if back:
            with wp.Tape() as tape:
                forward()
            tape.backward(grads={states[-1].joint_q: seed})
            tape.zero()
        else:
            forward()
        wp.synchronize()

    return run


def measured(runs: dict[str, Callable[[], None]], size: int, rounds: int) -> dict[str, float]:
    """Control steps per second by name, medians over rounds in turns; each round takes at least 0.2 s."""
    repeats = {}
    for name, run in runs.items():
        run()  # compiles, allocates, records
        began = time.perf_counter()
        run()
        repeats[name] = max(1, int(0.2 / max(1e-6, time.perf_counter() - began)))
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            began = time.perf_counter()
            for _ in range(repeats[name]):
                run()
            found[name].append(repeats[name] * HORIZON * size / (time.perf_counter() - began))
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="64,256,4096", help="numbers of environments, one line each")
    parser.add_argument("--robots", default="cartpole", help="cartpole,hopper,ant")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    wp.config.log_level = wp.LOG_ERROR
    folder = Path(__file__).parent.parent / "envs" / "robots"
    out: list[dict[str, Any]] = []
    simulator = "mujoco" if arguments.device == "cpu" else "mujoco_warp"
    for name in arguments.robots.split(","):
        robot = Robot.load(folder / name)
        for size in map(int, arguments.sizes.split(",")):
            runs = {
                "ours": horizon(robot, "differentiable", size, arguments.device, False),
                "ours both": horizon(robot, "differentiable", size, arguments.device, True),
                simulator: horizon(robot, simulator, size, arguments.device, False),
            }
            if name == "cartpole" and size * PER_ENVIRONMENT < MEMORY:
                runs["newton"] = newton_plain(size, arguments.device, False, True)
                runs["newton shared both"] = newton_plain(size, arguments.device, True, False)
                runs["newton each both"] = newton_plain(size, arguments.device, True, True)
            rates = measured(runs, size, arguments.rounds)
            out.append({"robot": name, "num_envs": size, **rates})
            print(f"{name:9} {size:5}  " + "  ".join(f"{k} {v:,.0f}" for k, v in rates.items()), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(out, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
