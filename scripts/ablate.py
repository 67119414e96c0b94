"""Ablation of humanoid_walk: trains without each prior, group of rewards and choice of the learner, and reports how
well the robot walks and what it withstands.

    python scripts/ablate.py --output FOLDER --seeds 1 2 3
                                                         all variants; prints a Markdown table at the end
    python scripts/ablate.py --output FOLDER --seeds 1 2 3 --only "mirror symmetry" --only nothing
    python scripts/ablate.py --output FOLDER --randomization --seeds 1 2 3
                                                         without each group of randomization, in simulators it has
                                                         not met; for another robot add
                                                         --with task=velocity --with robot=unitree_g1

A run already in FOLDER is not trained again, nor measured again; so several processes may share FOLDER, each with other
seeds or variants, and one more at the end prints the whole table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import robolearn  # noqa: F401 - before torch: it sets how torch's threads wait

# isort: split
import torch
from shared import in_folder
from walking import NOMINAL, PERTURBED, PUSHES, SCENARIOS, SHARE, count, measure, number

from robolearn import config
from robolearn.config import yaml_file
from robolearn.errors import ConfigError, MissingError
from robolearn.files import replacing
from robolearn.training import checkpoint

TASK = "humanoid_walk"
MEASURED = "measured.json"
"""What was measured of a run, in its folder."""
METRICS = "metrics.jsonl"
LAST = 50
"""Iterations over which the level of the pushes is averaged."""
PRIORS = {
    "mirror symmetry": ["learner.symmetry=none"],
    "an estimate of the velocity": ["learner.estimated_groups=[]"],
    "history": ["task.history.policy=1"],
    "a posture": ["task.rewards.posture=0"],
    "feet apart": ["task.stance_width=0", "task.step_width=0"],
    "starts in motion": ["task.moving_starts=0"],
    "pushes that grow": [
        "task.curricula.pushes=2",
        "task.curricula.pushes.rise=0",
        "task.curricula.pushes.drop=0",
    ],
    "pushes beyond mjlab's": ["task.pushes.speed=[0,0]", "task.curricula.pushes.most=2"],
}
REWARDS = {
    "striding, halting": ["task.rewards.striding=0", "task.rewards.halting=0"],
    "air time": ["task.rewards.air_time=0"],
    "swing height, clearance": ["task.rewards.swing_height=0", "task.rewards.foot_clearance=0"],
    "slip, landing": [
        "task.rewards.foot_slip=0",
        "task.rewards.slip_speed=0",
        "task.rewards.landing=0",
    ],
    "the velocity error": ["task.rewards.velocity_error=0"],
    "standing still": ["task.rewards.stepping=0", "task.rewards.still=0"],
    "pay for standing on the feet": ["task.rewards.stepping.free=0"],
    "narrow feet": ["task.rewards.narrow=0"],
    "a crouch": ["task.rewards.crouching=0"],
    "self-contact": ["task.rewards.self_contact=0"],
    "a fall": ["task.rewards.fall=0"],
    "upright, sway": [
        "task.rewards.upright=0",
        "task.rewards.vertical_speed=0",
        "task.rewards.roll_pitch_rate=0",
    ],
    "joint limits, action rate": ["task.rewards.joint_limits=0", "task.rewards.action_rate=0"],
}
LEARNER = {
    "noise that lasts": ["learner.noise_correlation=0"],
    "a bound on the exploration": ["learner.final_std=0"],
    "a discount that grows": ["learner.final_gamma=0"],
    "a short discount first": ["learner.gamma=0.985"],
    "leaving events out": ["learner.skip_events=false"],
    "the mean of the weights": ["learner.average=0"],
    "smaller steps later": ["learner.final_kl=0"],
    "large steps, with a KL of 0.01": ["learner.desired_kl=0.01", "learner.final_kl=0"],
    "ReLU, with ELU": ["learner.activation=elu"],
}
VARIANTS = {"nothing": [], **PRIORS, **REWARDS, **LEARNER}
"""Overrides without each prior, each group of rewards and costs, and each choice of the learner."""
UNPUSHED = [
    "task.pushes={speed: [0, 0], box: [0, 0, 0], turn: [0, 0, 0]}",
    "task.action_delay=[0,0]",
    "task.randomize={friction: [0.8, 0.8], mass_scale: [1, 1], gain_scale: [1, 1]}",
]
QUIET = ("base_ang_vel", "projected_gravity", "joint_pos_rel", "joint_vel_rel")
GROUPS = {
    "nothing": [],
    "friction": ["task.randomize.friction=[0.8,0.8]"],
    "masses and gains": ["task.randomize={mass_scale: [1, 1], gain_scale: [1, 1]}"],
    "delay of actions": ["task.action_delay=[0,0]"],
    "pushes": UNPUSHED[:1],
    "noise": [f"task.noise.{name}=0" for name in QUIET],
    "all of it": [*UNPUSHED, *(f"task.noise.{name}=0" for name in QUIET)],
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


def measured(run: Path, scenario: str, extra: list[str], episodes: int, physics: list[str]) -> dict[str, Any]:
    """`walking.measure` of a run's last checkpoint, which the run's folder remembers."""
    made = (run / checkpoint.LATEST).stat().st_mtime_ns if (run / checkpoint.LATEST).exists() else 0
    settings = (SCENARIOS | PUSHES)[scenario]
    file, key = run / MEASURED, json.dumps([made, settings, SHARE.get(scenario, 1), extra, episodes, physics])
    known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if key not in known:
        known[key] = measure(str(run), scenario, extra, episodes, physics)
        with replacing(file) as part:
            part.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    return dict(known[key])


def level(run: Path) -> float:
    """Level of the pushes in the last iterations of a training, as a share of a complete training's."""
    lines = (run / METRICS).read_text(encoding="utf-8").splitlines()[-LAST:]
    return statistics.mean(json.loads(line)["metric/level_pushes"] for line in lines)


def percent(rows: list[dict[str, Any]]) -> str:
    """Episodes without a fall of every seed."""
    return ", ".join(f"{100 * row['survival_rate']:.0f}" for row in rows)


def judged(run: Path, extra: list[str], episodes: int) -> dict[str, Any]:
    """The numbers of every scenario of a run's last checkpoint, with and without pushes."""
    return {what: measured(run, what, extra, episodes, NOMINAL) for what in (*SCENARIOS, *PUSHES)}


def walked(runs: dict[tuple[str, int], Path], extra: list[str], episodes: int) -> list[dict[str, Any]]:
    """Print a Markdown table of what the policies do at the end of their training, a row a variant; returns the rows of
    the JSON file."""
    table = [
        {"variant": name, "seed": seed, "level": level(run), **judged(run, extra, episodes)}
        for (name, seed), run in runs.items()
    ]
    print(
        "| Without | level of the pushes | no fall [%] | error [m/s] | 10 s at 1 m/s [m] | slip [m/s] ",
        end="",
    )
    print("| mjlab's pushes, walking; standing [%] | one of 1 m/s, walking; standing [%] |")
    print("|---|---|---|---|---|---|---|---|")
    for name in dict.fromkeys(name for name, _ in runs):
        rows = [row for row in table if row["variant"] == name]
        commands, pushed = [row["commands"] for row in rows], {k: [row[k] for row in rows] for k in PUSHES}
        cells = [
            ", ".join(f"{row['level']:.2f}" for row in rows),
            percent(commands),
            ", ".join(number(one["linear_velocity_error"], 2) for one in commands),
            ", ".join(number(row["fast"]["forward_distance"], 1) for row in rows),
            ", ".join(number(one["foot_slip"], 3) for one in commands),
            f"{percent(pushed['pushed'])}; {percent(pushed['pushed standing'])}",
            f"{percent(pushed['shoved'])}; {percent(pushed['shoved standing'])}",
        ]
        print(f"| {name} | {' | '.join(cells)} |")
    return table


def withstood(
    runs: dict[tuple[str, int], Path], words: list[str], extra: list[str], episodes: int
) -> list[dict[str, Any]]:
    """Print a Markdown table of what the policies survive in simulators they have not met, a column a variant, with
    the noise of the default; returns the rows of the JSON file."""
    table: list[dict[str, Any]] = []
    noise = [f"task.noise.{name}={width:g}" for name, width in config.resolve(words).task.noise.items()]
    for (name, seed), run in runs.items():
        for simulator, changes in PERTURBED.items():
            found = measured(run, "commands", extra, episodes, [*NOMINAL, *noise, *changes])
            table.append({"variant": name, "seed": seed, "simulator": simulator, **found})
    names = list(dict.fromkeys(name for name, _ in runs))
    print(f"| Survive 20 s, and velocity error [m/s], trained without | {' | '.join(names)} |")
    print("|---|" + "---|" * len(names))
    for simulator in PERTURBED:
        cells = []
        for name in names:
            rows = [row for row in table if row["variant"] == name and row["simulator"] == simulator]
            cells.append(
                f"{percent(rows)} %; {', '.join(number(row['linear_velocity_error'], 2) for row in rows)}"
            )
        print(f"| {simulator} | {' | '.join(cells)} |")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--num-envs", type=count, default=1024)
    parser.add_argument("--steps", type=float, default=4.6, help="environment steps per run, in millions")
    parser.add_argument("--episodes", type=count, default=128, help="episodes of 20 s in each scenario")
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
        iterations = max(1, round(arguments.steps * 1e6 / arguments.num_envs / batch))
        for seed in arguments.seeds:
            size = [f"num_envs={arguments.num_envs}", f"seed={seed}", f"max_iterations={iterations}"]
            size.append(f"checkpoint_interval={iterations}")
            run = runs[name, seed] = trained(f"{name} {seed}", [*words, *size, *changes], arguments.output)
            if not arguments.randomization:
                judged(run, arguments.set, arguments.episodes)
    if arguments.randomization:
        table = withstood(runs, words, arguments.set, arguments.episodes)
    else:
        table = walked(runs, arguments.set, arguments.episodes)
    if arguments.json:
        arguments.json.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except (ConfigError, MissingError) as error:
        sys.exit(f"ablate.py: {error}")
