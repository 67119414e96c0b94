"""Ablation of humanoid_walk: trains without each main choice, and reports when the robot walks and what it withstands.

    python scripts/ablate.py --output FOLDER             all variants; prints a Markdown table at the end
    python scripts/ablate.py --output FOLDER --only "no mirror symmetry" --seeds 1 2 3
    python scripts/ablate.py --output FOLDER --randomization --seeds 1 2 3
                                                         without each group of randomization, in simulators it has
                                                         not met; for another robot add
                                                         --with task=velocity --with robot=unitree_g1

A run already in FOLDER is not trained again. Run nothing else at the same time: the table has wall time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import robolearn  # noqa: F401 - before torch: it sets how torch's threads wait

# isort: split
import torch
from shared import in_folder
from walking import NOMINAL, PERTURBED, PUSHES, count, first_walk, measure, number, trace

from robolearn import config
from robolearn.config import yaml_file
from robolearn.errors import ConfigError, MissingError
from robolearn.training import checkpoint

TASK = "humanoid_walk"
VARIANTS = {
    "the default": [],
    "no mirror symmetry": ["learner.symmetry=none"],
    "no estimate of the velocity": ["learner.estimated_groups=[]"],
    "no bound on the exploration": ["learner.final_std=0"],
    "gamma 0.97 throughout": ["learner.final_gamma=0"],
    "gamma 0.985 throughout": ["learner.gamma=0.985"],
    "independent noise": ["learner.noise_correlation=0"],
    "pushes and new commands count in the advantages": ["learner.skip_events=false"],
    "latest weights, not their mean": ["learner.average=0"],
    "desired KL 0.03 throughout": ["learner.final_kl=0"],
    "desired KL 0.01": ["learner.desired_kl=0.01", "learner.final_kl=0"],
    "ELU, not ReLU": ["learner.activation=elu"],
    "no striding, no halting": ["task.rewards.striding=0", "task.rewards.halting=0"],
    "no air time": ["task.rewards.air_time=0"],
    "feet under the hips": ["task.stance_width=0", "task.step_width=0"],
    "feet under the hips when it walks": ["task.step_width=0"],
    "no cost of feet close together": ["task.rewards.narrow=0"],
    "no posture": ["task.rewards.posture=0"],
    "no swing height, no clearance": ["task.rewards.swing_height=0", "task.rewards.foot_clearance=0"],
    "no slip, no soft landing": [
        "task.rewards.foot_slip=0",
        "task.rewards.slip_speed=0",
        "task.rewards.landing=0",
    ],
    "only squared slip": ["task.rewards.slip_speed=0"],
    "no cost of the velocity error": ["task.rewards.velocity_error=0"],
    "no history": ["task.history.policy=1"],
    "actions on time": ["task.action_delay=[0,0]"],
    "friction from 0.5": ["task.randomize.friction=[0.5,1.2]"],
    "standing on the feet earns nothing": ["task.rewards.stepping.free=0"],
    "no cost of a crouch": ["task.rewards.crouching=0"],
    "nothing for standing still": ["task.rewards.stepping=0", "task.rewards.still=0"],
    "free falls": ["task.rewards.fall=0"],
    "all pushes from the start": [
        "task.curricula.pushes=2",
        "task.curricula.pushes.rise=0",
        "task.curricula.pushes.drop=0",
    ],
    "pushes as mjlab's": ["task.pushes.speed=[0,0]"],
    "pushes every 1 to 6 s": ["task.pushes.seconds=[1,6]", "task.curricula.pushes.rise=0.12"],
    "no pushes, no randomization": [
        "task.pushes={speed: [0, 0], box: [0, 0, 0], turn: [0, 0, 0]}",
        "task.action_delay=[0,0]",
        "task.randomize={friction: [0.8, 0.8], mass_scale: [1, 1], gain_scale: [1, 1]}",
    ],
    "bf16, not fp32": ["learner.precision=bf16"],
}
"""Overrides of each variant."""
QUIET = ("base_ang_vel", "projected_gravity", "joint_pos_rel", "joint_vel_rel")
GROUPS = {
    "nothing": [],
    "friction": ["task.randomize.friction=[0.8,0.8]"],
    "masses and gains": ["task.randomize={mass_scale: [1, 1], gain_scale: [1, 1]}"],
    "delay of actions": ["task.action_delay=[0,0]"],
    "pushes": VARIANTS["no pushes, no randomization"][:1],
    "noise": [f"task.noise.{name}=0" for name in QUIET],
    "all of it": [*VARIANTS["no pushes, no randomization"], *(f"task.noise.{name}=0" for name in QUIET)],
}
"""Overrides without each group of randomization."""


def settings(words: list[str]) -> dict:
    """The content of config.yaml of a run with these overrides."""
    return {**config.to_dict(config.resolve(words)), "resume": None, "output": None}


def trained(name: str, words: list[str], folder: Path) -> Path:
    """The run folder of one variant, trained now unless it exists."""
    run = folder / "".join(c if c.isalnum() else "_" for c in name)
    done = (run / checkpoint.LATEST).exists()
    if done and yaml_file.read(run / config.FILE_NAME) != settings(words):
        sys.exit(f"{run} was trained with other settings: move it, or choose another --output")
    if done and checkpoint.load(run / checkpoint.LATEST)["iter"] != settings(words)["max_iterations"]:
        sys.exit(f"{run} is unfinished: remove it to train again")
    if not done:
        train = [sys.executable, "-c", "from robolearn.cli import main; raise SystemExit(main())", "train"]
        print(f"training: {name}", flush=True)
        with open(folder / f"{run.name}.log", "w") as log:
            command = [*train, *words, f"output={run}"]
            status = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
        if status:
            sys.exit(f"{name}: training failed, see {log.name}")
    return run


def cell(row: dict | None) -> str:
    """Minutes and steps of a checkpoint, for the table."""
    return f"{row['seconds'] / 60:.1f} min, {row['steps'] / 1e6:.1f} M" if row else "not"


def withstood(
    runs: dict[tuple[str, int], Path], words: list[str], extra: list[str], episodes: int
) -> list[dict]:
    """Print a Markdown table of what the policies survive in simulators they have not met, a column a variant, with
    the noise of the default; returns the rows of the JSON file."""
    table: list[dict] = []
    noise = [f"task.noise.{name}={width:g}" for name, width in config.resolve(words).task.noise.items()]
    for (name, seed), run in runs.items():
        for simulator, changes in PERTURBED.items():
            found = measure(str(run), "commands", extra, episodes, [*NOMINAL, *noise, *changes])
            table.append({"variant": name, "seed": seed, "simulator": simulator, **found})
    names = list(dict.fromkeys(name for name, _ in runs))
    print(f"| Survive 20 s, and velocity error [m/s], trained without | {' | '.join(names)} |")
    print("|---|" + "---|" * len(names))
    for simulator in PERTURBED:
        cells = []
        for name in names:
            rows = [row for row in table if row["variant"] == name and row["simulator"] == simulator]
            survive = ", ".join(f"{100 * row['survival_rate']:.0f}" for row in rows)
            cells.append(f"{survive} %; {', '.join(number(row['linear_velocity_error'], 2) for row in rows)}")
        print(f"| {simulator} | {' | '.join(cells)} |")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--num-envs", type=count, default=1024)
    parser.add_argument("--steps", type=float, default=4.6, help="environment steps per run, in millions")
    parser.add_argument("--checkpoints", type=count, default=18, help="checkpoints per run")
    parser.add_argument("--episodes", type=count, default=128, help="episodes of 20 s per checkpoint")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--randomization", action="store_true", help="without each group of randomization")
    parser.add_argument(
        "--with",
        action="append",
        default=[],
        dest="words",
        metavar="KEY=VALUE",
        help="setting of all trainings",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="setting of the evaluation"
    )
    parser.add_argument("--json", type=in_folder, help="also write the numbers here")
    arguments = parser.parse_args()
    variants = GROUPS if arguments.randomization else VARIANTS
    if unknown := [name for name in arguments.only if name not in variants]:
        parser.error(f"--only {unknown[0]!r}: not one of {', '.join(variants)}")
    torch.manual_seed(0)
    arguments.output.mkdir(parents=True, exist_ok=True)
    runs: dict[tuple[str, int], Path] = {}
    words = (
        arguments.words
        if any(w.startswith("task=") for w in arguments.words)
        else [f"task={TASK}", *arguments.words]
    )
    batch = config.resolve(words).learner.steps_of(arguments.num_envs)
    for name, changes in variants.items():
        if arguments.only and name not in arguments.only:
            continue
        iterations = round(arguments.steps * 1e6 / arguments.num_envs / batch)
        for seed in arguments.seeds:
            size = [f"num_envs={arguments.num_envs}", f"seed={seed}", f"max_iterations={iterations}"]
            size.append(f"checkpoint_interval={max(1, iterations // arguments.checkpoints)}")
            runs[name, seed] = trained(f"{name} {seed}", [*words, *size, *changes], arguments.output)
    if arguments.randomization:
        table = withstood(runs, words, arguments.set, arguments.episodes)
        if arguments.json:
            arguments.json.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
        return
    found = {
        key: trace(str(run), arguments.set, arguments.episodes, briefly=True) for key, run in runs.items()
    }
    pushed = {
        key: {name: measure(str(run), name, arguments.set, arguments.episodes) for name in PUSHES}
        for key, run in runs.items()
    }
    print("| Without | Seed | 95 % survive after | Walks after | At the end: velocity error |", end="")
    print(" mjlab's pushes, walking, standing | 1 m/s, walking, standing | Steps/s |")
    print("|---|---|---|---|---|---|---|---|")
    for (name, seed), rows in found.items():
        survive = [f"{100 * one['survival_rate']:.0f} %" for one in pushed[name, seed].values()]
        last = rows[-1]
        survives = next((row for row in rows if row["survival_rate"] >= 0.95), None)
        print(
            f"| {name} | {seed} | {cell(survives)} | {cell(first_walk(rows))} "
            f"| {number(last['linear_velocity_error'], 3)} m/s | {', '.join(survive[:2])} | {', '.join(survive[2:])} "
            f"| {last['steps'] / last['seconds'] / 1e3:.1f}k |"
        )
    if arguments.json:
        table = [
            {"variant": name, "seed": seed, "rows": rows, "pushed": pushed[name, seed]}
            for (name, seed), rows in found.items()
        ]
        arguments.json.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except (ConfigError, MissingError) as error:
        sys.exit(f"ablate.py: {error}")
