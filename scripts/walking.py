"""Checks whether a policy walks, by the gates of docs/humanoid_walk.md.

    python scripts/walking.py gates RUN                  each gate with its value; exit code 1 where one fails
    python scripts/walking.py gates RUN --pushes         and four more, under pushes
    python scripts/walking.py conditions RUN             the same policy under other physics and pushes
    python scripts/walking.py perturbed RUN              in simulators that differ from those of the training;
                                                         exit code 1 where under 90 % of episodes are survived
    python scripts/walking.py directions RUN             which way a push of 1.0 m/s fells it, walking and standing
    python scripts/walking.py curve RUN... --picture P   every checkpoint: survival and error over minutes and steps

RUN is a run folder or, except for curve, a checkpoint or pretrained:NAME. Policies act by their mean, with seeds that
training never uses.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import robolearn  # noqa: F401 - before torch: it sets how torch's threads wait

# isort: split
import torch
from shared import in_folder

from robolearn.commands.evaluate import summarize
from robolearn.core.env import Env
from robolearn.envs.parameters import PARAMETERS
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, MissingError
from robolearn.learners.policy import Act, reset_state
from robolearn.learners.saved import find_run
from robolearn.simulation.episodes import NEVER_TRAINED, tally
from robolearn.tasks.mdp.sensing import SENSOR_ERRORS
from robolearn.tasks.mdp.terms import heading
from robolearn.training import checkpoint
from robolearn.training.build import make_env
from robolearn.training.runs import load_config, load_policy, open_run
from robolearn.training.train import set_threads

NOMINAL = [
    *("task.pushes.speed=[0,0]", "task.pushes.force=[0,0]"),
    *("task.pushes.box=[0,0,0]", "task.pushes.turn=[0,0,0]"),
    *("task.action_delay=[0,0]", "task.observation_delay=[0,0]", "task.packet_loss=0"),
    "task.randomize={friction: [0.8, 0.8], mass_scale: [1, 1], gain_scale: [1, 1]}",
]
COMMANDS = [
    "task.commands.forward=[-0.5,1.0]",
    "task.commands.sideways=[-0.3,0.3]",
    "task.commands.yaw=[-0.5,0.5]",
    "task.commands.heading=0",
    "task.commands.seconds=[3,8]",
    "task.episode_length_s=20",
]
PUSHED = [
    "task.pushes.seconds=[1,3]",
    "task.pushes.box=[0.5,0.5,0.4]",
    "task.pushes.turn=[0.52,0.52,0.78]",
]
"""As mjlab trains."""
SHOVED = ["task.pushes.seconds=[10.5,12]", "task.pushes.speed=[1,1]"]
"""One in an episode of 20 s."""
WALKING, STANDING = "task.commands.standing=0", "task.commands.standing=1"
SCENARIOS = {
    "commands": [*COMMANDS, "task.commands.standing=0.1"],
    "fast": [
        "task.commands.forward=[1,1]",
        "task.commands.sideways=[0,0]",
        "task.commands.yaw=[0,0]",
        "task.commands.heading=0",
        "task.commands.standing=0",
        "task.moving_starts=0",
        "task.episode_length_s=10",
    ],
    "stand": [STANDING, "task.episode_length_s=12"],
}
"""Commands of every kind; 1.0 m/s from standing; standing still from the start."""
PUSHES = {
    "pushed": [*COMMANDS, WALKING, *PUSHED],
    "pushed standing": [*COMMANDS, STANDING, *PUSHED],
    "shoved": [*COMMANDS, WALKING, *SHOVED],
    "shoved standing": [*COMMANDS, STANDING, *SHOVED],
}
"""Walking and standing under pushes."""
SHARE = {"fast": 4, "stand": 4}
"""A scenario in it runs one n-th of the number of episodes."""
FINER = "finer physics"
"""Also at half the time step of the robot's file."""
CONDITIONS: dict[str, list[str] | None] = {
    "as trained, with pushes": None,
    "nominal, no pushes": [],
    FINER: ["backend.solver=newton", "backend.iterations=50"],
    "friction 0.5": ["task.randomize.friction=[0.5,0.5]"],
    "friction 1.2": ["task.randomize.friction=[1.2,1.2]"],
    "mass -10 %": ["task.randomize.mass_scale=[0.9,0.9]"],
    "mass +10 %": ["task.randomize.mass_scale=[1.1,1.1]"],
    "gains -10 %": ["task.randomize.gain_scale=[0.9,0.9]"],
    "action one step late": ["task.action_delay=[1,1]"],
    "pushes, each of 0.5 m/s, every 3 to 6 s": ["task.pushes.speed=[0.5,0.5]", "task.pushes.seconds=[3,6]"],
}
PERTURBED: dict[str, list[str]] = {
    "as in the robot's file": [],
    "mass -20 %": ["task.randomize.mass_scale=[0.8,0.8]"],
    "mass +20 %": ["task.randomize.mass_scale=[1.2,1.2]"],
    "centre of mass 3 cm forward": ["task.randomize={com_x:[0.03,0.03]}"],
    "centre of mass 3 cm back": ["task.randomize={com_x:[-0.03,-0.03]}"],
    "centre of mass 3 cm left": ["task.randomize={com_y:[0.03,0.03]}"],
    "centre of mass 3 cm right": ["task.randomize={com_y:[-0.03,-0.03]}"],
    "centre of mass 3 cm up": ["task.randomize={com_z:[0.03,0.03]}"],
    "centre of mass 3 cm down": ["task.randomize={com_z:[-0.03,-0.03]}"],
    "friction 0.3": ["task.randomize.friction=[0.3,0.3]"],
    "friction 1.2": ["task.randomize.friction=[1.2,1.2]"],
    "actions 40 ms late": ["task.action_delay=[2,2]"],
    "torque limit -20 %": ["task.randomize={torque_scale:[0.8,0.8]}"],
    "encoders off by up to 0.02 rad": ["task.randomize={encoder_bias:[-0.02,0.02]}"],
    "one push of 1.0 m/s": SHOVED,
}
"""One at a time, with commands of every kind and no other pushes; control steps are of 20 ms."""
WITHSTANDS = 0.9
"""Least share of episodes that are survived in each of them."""


def number(value: float | None, digits: int) -> str:
    """A formatted number; "none" for None."""
    return "none" if value is None else f"{value:.{digits}f}"


@dataclass(frozen=True)
class Gate:
    """A metric of a scenario and its accepted range."""

    name: str
    scenario: str
    key: str
    low: float = -float("inf")
    high: float = float("inf")
    unit: str = ""

    def passes(self, value: float | None) -> bool:
        """Whether the value is in the range; None is not."""
        return value is not None and self.low <= value <= self.high

    def line(self, value: float | None) -> str:
        """The line to print for a value."""
        bound = " to ".join(f"{b:g}" for b in (self.low, self.high) if abs(b) != float("inf"))
        kind = "" if "to" in bound else ("at least " if self.high == float("inf") else "at most ")
        mark = "ok  " if self.passes(value) else "FAIL"
        return f"  {mark}  {self.name:<26}{number(value, 3):>8} {self.unit:<6} ({kind}{bound})"


GATES = (
    Gate("survival", "commands", "survival_rate", low=0.95),
    Gate("velocity error", "commands", "linear_velocity_error", high=0.2, unit="m/s"),
    Gate("10 s at 1.0 m/s", "fast", "forward_distance", low=8.0, unit="m"),
    Gate("foot slip in stance", "commands", "foot_slip", high=0.1, unit="m/s"),
    Gate("swing height", "commands", "swing_height", low=0.03, unit="m"),
    Gate("steps a second a foot", "commands", "step_frequency", low=1.0, high=3.0, unit="1/s"),
    Gate("torque saturation", "commands", "torque_saturation", high=0.05),
    Gate("standing drift in 10 s", "stand", "standing_drift", high=0.05, unit="m"),
    Gate("survival standing", "stand", "survival_rate", low=0.95),
    Gate("mjlab's pushes, walking", "pushed", "survival_rate", low=0.98),
    Gate("mjlab's pushes, standing", "pushed standing", "survival_rate", low=0.98),
    Gate("1 m/s push, walking", "shoved", "survival_rate", low=0.9),
    Gate("1 m/s push, standing", "shoved standing", "survival_rate", low=0.9),
)


def count(text: str) -> int:
    """A number of episodes from the command line: of none, every gate would pass.

    Raises:
        argparse.ArgumentTypeError: it is not at least 1.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def unrandomized(run: str, others: Sequence[str] = ()) -> list[str]:
    """Settings for whatever physics a run with these other settings randomizes besides that in NOMINAL: as in the
    robot's file. What its sensors do stays."""
    found = load_config(find_run(run)[0], others).task.randomize
    fields = {name: PARAMETERS.get(name.split("/")[1] if "/" in name else name) for name in found}
    return [
        f"task.randomize={{{name}: [{field.neutral:g}, {field.neutral:g}]}}"
        for name, field in fields.items()
        if field is not None and field.neutral is not None and name not in SENSOR_ERRORS
    ]


def measure(
    run: str, scenario: str, extra: list[str], episodes: int, physics: list[str] = NOMINAL
) -> dict[str, Any]:
    """The numbers of metrics.json of one scenario, flat."""
    settings = (SCENARIOS | PUSHES)[scenario]
    calm = [*unrandomized(run, extra), *physics] if physics else []
    found = open_run(run, [*calm, *settings, *extra])
    set_threads(found.config)
    env = make_env(found.config, num_envs=max(1, episodes // SHARE.get(scenario, 1)), rank=NEVER_TRAINED)
    try:
        out = summarize(tally(env, load_policy(found)), env)
    finally:
        env.close()
    infos = found.content.get("infos") or {}
    return {**out, **out["metrics"], "seconds": infos.get("seconds"), "steps": infos.get("steps")}


def judge(run: str, extra: list[str], episodes: int, pushes: bool = False) -> dict[str, dict[str, Any]]:
    """The numbers of every scenario; with `pushes`, of those under pushes too."""
    names = [*SCENARIOS, *(PUSHES if pushes else ())]
    return {name: measure(run, name, extra, episodes) for name in names}


def failing(found: dict[str, dict[str, Any]]) -> list[str]:
    """Names of the gates that fail, among the scenarios measured."""
    return [g.name for g in GATES if g.scenario in found and not g.passes(found[g.scenario][g.key])]


def walks(found: dict[str, dict[str, Any]]) -> bool:
    """Whether all scenarios without pushes were measured, and each of their gates passes."""
    return set(found) >= set(SCENARIOS) and not failing({name: found[name] for name in SCENARIOS})


def stays_up(found: dict[str, dict[str, Any]]) -> bool:
    """Whether all scenarios with pushes were measured, and each of their gates passes."""
    return set(found) >= set(PUSHES) and not failing({name: found[name] for name in PUSHES})


def gates(run: str, extra: list[str], episodes: int, pushes: bool = False) -> dict[str, Any]:
    """Print each gate, and the metrics without a gate."""
    found = judge(run, extra, episodes, pushes)
    shown = found["commands"]
    print(f"{run}: {shown['episodes']} episodes of 20 s, {found['fast']['episodes']} at 1.0 m/s")
    for gate in GATES:
        if gate.scenario in found:
            print(gate.line(found[gate.scenario][gate.key]))
    for key in ("yaw_rate_error", "action_rate", "energy_per_metre"):
        print(f"        {key.replace('_', ' '):<24}{number(shown[key], 3):>8}")
    print("it walks" if walks(found) else "it does not walk")
    if pushes:
        print("it withstands the pushes" if stays_up(found) else "it does not withstand all of the pushes")
    return found


def half_step(run: str, extra: list[str]) -> str:
    """The setting of half the time step that a run's simulator has."""
    env = make_env(open_run(run, extra).config, num_envs=1, rank=NEVER_TRAINED)
    try:
        return f"backend.timestep={env.capabilities.timestep / 2:g}"
    finally:
        env.close()


def conditions(run: str, extra: list[str], episodes: int) -> dict[str, Any]:
    """Print a Markdown table of all conditions."""
    print("| Condition | Survive | Velocity error | Yaw rate error | Slip | 10 s at 1.0 m/s |")
    print("|---|---|---|---|---|---|")
    table = {}
    for name, changes in CONDITIONS.items():
        physics = [] if changes is None else [*NOMINAL, *changes]
        own = [*extra, half_step(run, extra)] if name == FINER else extra
        one, fast = (measure(run, s, own, episodes, physics) for s in ("commands", "fast"))
        table[name] = {"commands": one, "fast": fast}
        print(
            f"| {name} | {100 * one['survival_rate']:.1f} % | {number(one['linear_velocity_error'], 3)} m/s "
            f"| {number(one['yaw_rate_error'], 2)} rad/s | {number(one['foot_slip'], 3)} m/s "
            f"| {fast['forward_distance']:.1f} m |",
            flush=True,
        )
    return table


def perturbed(run: str, extra: list[str], episodes: int) -> dict[str, Any]:
    """Print a Markdown table of the same policy in simulators that it has not met."""
    print("| Simulator | Survive 20 s | Velocity error |\n|---|---|---|")
    table = {}
    for name, changes in PERTURBED.items():
        table[name] = measure(run, "commands", extra, episodes, [*NOMINAL, *changes])
        print(
            f"| {name} | {100 * table[name]['survival_rate']:.1f} % "
            f"| {number(table[name]['linear_velocity_error'], 3)} m/s |",
            flush=True,
        )
    return table


def pushed_from(env: Env, policy: Act) -> tuple[Tensor, Tensor]:
    """Run one episode of each of N environments, with one push.

    Returns:
        Direction of the push (N,) [rad] from where the base faces, positive to the left, NaN where there was none; and
        whether the robot fell (N,) bool.
    """
    env.reset()
    reset_state(policy)
    direction = torch.full((env.num_envs,), torch.nan, device=env.device)
    over = fell = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
    for _ in range(env.max_episode_steps):
        ahead = heading(env.backend.state.robot.base_quat)
        result = env.step(policy(env.observations))
        jump = env.state.transit["jump"]
        along = (jump[:, :2] * ahead).sum(dim=1)
        across = ahead[:, 0] * jump[:, 1] - ahead[:, 1] * jump[:, 0]
        now = (jump.abs().amax(dim=1) > 0) & direction.isnan() & ~over
        direction = torch.where(now, torch.atan2(across, along), direction)
        fell = fell | (result.terminated & ~over)
        over = over | result.done
    return direction, fell


def directions(run: str, extra: list[str], episodes: int) -> dict[str, Any]:
    """Print a Markdown table of the pushes that felled the robot, by direction."""
    names = ("forward", "forward left", "left", "back left", "back", "back right", "right", "forward right")
    table: dict[str, Any] = {}
    for label, scenario in (("walking", "shoved"), ("standing", "shoved standing")):
        found = open_run(run, [*unrandomized(run, extra), *NOMINAL, *PUSHES[scenario], *extra])
        set_threads(found.config)
        env = make_env(found.config, num_envs=episodes, rank=NEVER_TRAINED)
        try:
            with torch.no_grad():
                direction, fell = pushed_from(env, load_policy(found))
        finally:
            env.close()
        eighth = (direction / (torch.pi / 4)).round() % len(names)
        table[label] = {
            name: [int((fell & (eighth == i)).sum()), int((eighth == i).sum())]
            for i, name in enumerate(names)
        }
        cells = [f"{fallen} of {of}" for fallen, of in table[label].values()]
        table[label]["before it"] = int((fell & direction.isnan()).sum())
        if len(table) == 1:  # no header for a run that is not there
            print(f"| Fell when pushed | {' | '.join(table[label])} |")
            print("|---|" + "---|" * len(table[label]))
        print(f"| {label} | {' | '.join(cells)} | {table[label]['before it']} |", flush=True)
    return table


def trace(run: str, extra: list[str], episodes: int) -> list[dict[str, Any]]:
    """Measure and print one row per checkpoint of a run.

    The other scenarios are measured only where the gates of "commands" pass. The first checkpoint that
    passes all gates is measured again over at least 1024 episodes before it counts as walking.
    """
    rows: list[dict[str, Any]] = []
    folder, _ = checkpoint.find_run(run)
    sure = False
    paths = sorted((folder / "checkpoints").glob("*.pt"))
    if not paths:
        raise ConfigError(
            f"{run}: there is nothing in {folder / 'checkpoints'}; a curve needs a run's checkpoints"
        )
    for path in paths:
        found = {"commands": measure(str(path), "commands", extra, episodes)}
        if not failing(found):
            found |= {
                name: measure(str(path), name, extra, episodes) for name in SCENARIOS if name != "commands"
            }
        if not failing(found) and not sure and episodes < 1000:
            found = judge(str(path), extra, 1024)
        failed, one = failing(found), found["commands"]
        sure |= not failed
        row = {key: one[key] for key in ("seconds", "steps", "survival_rate", "linear_velocity_error")}
        rows.append({**row, "iteration": int(path.stem.split("_")[-1]), "fails": failed})
        print(
            f"{path.stem}  {one['seconds'] / 60:5.2f} min  {one['steps'] / 1e6:6.2f} M steps  "
            f"survive {100 * one['survival_rate']:5.1f} %  error {one['linear_velocity_error'] or 9:.3f} m/s  "
            + (f"fails {', '.join(failed)}" if failed else "walks"),
            flush=True,
        )
    return rows


def first_walk(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The first checkpoint that walks."""
    return next((row for row in rows if not row["fails"]), None)


def curve(runs: list[str], extra: list[str], episodes: int, picture: Path | None) -> dict[str, Any]:
    """Measure every checkpoint of each run, and print the first that passes all gates."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        rows[run] = trace(run, extra, episodes)
        first = first_walk(rows[run])
        when = (
            f"after {first['seconds'] / 60:.2f} min, {first['steps'] / 1e6:.2f} M steps" if first else "never"
        )
        print(f"{run}: walks {when}")
    if picture is not None:
        draw(rows, picture)
    return rows


def draw(rows: dict[str, list[dict[str, Any]]], picture: Path) -> None:
    """Plot survival and velocity error over minutes and over steps, one line per run."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(11, 6), sharey="row")
    columns = (("seconds", 60, "minutes of training"), ("steps", 1e6, "million environment steps"))
    lines = (("survival_rate", "survive 20 s", 0.95), ("linear_velocity_error", "velocity error [m/s]", 0.2))
    for i, (key, label, bound) in enumerate(lines):
        for j, (unit, scale, name) in enumerate(columns):
            axis = axes[i, j]
            for number, (run, points) in enumerate(rows.items()):
                kept = [p for p in points if p[key] is not None]
                x = [p[unit] / scale for p in kept]
                axis.plot(x, [p[key] for p in kept], linewidth=1.6, label=Path(run).name, color=f"C{number}")
                first = first_walk(kept)
                if first:
                    axis.plot(first[unit] / scale, first[key], "o", color=f"C{number}", markersize=8)
            axis.axhline(bound, color="0.6", linewidth=1, linestyle="--")
            axis.grid(alpha=0.3)
            axis.set_xlim(left=0)
            axis.set_ylim(bottom=0)
            if j == 0:
                axis.set_ylabel(label)
            if i == 1:
                axis.set_xlabel(name)
    axes[0, 0].legend(fontsize=8, title="dot: first to pass every gate", title_fontsize=8)
    figure.tight_layout()
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=110)


TABLES = {"conditions": conditions, "perturbed": perturbed, "directions": directions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("gates", *TABLES, "curve"))
    parser.add_argument("runs", nargs="+")
    parser.add_argument(
        "--episodes",
        type=count,
        default=1024,
        help="episodes of 20 s; the scenarios fast and stand run a quarter of it",
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting to change")
    parser.add_argument("--pushes", action="store_true", help="gates under pushes too")
    parser.add_argument("--picture", type=Path, help="output of curve")
    parser.add_argument("--json", type=in_folder, help="also write the numbers here")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    options = (arguments.set, arguments.episodes)
    failed = False
    if arguments.what == "curve":
        found: dict[str, Any] = curve(arguments.runs, *options, arguments.picture)
    elif arguments.what in TABLES:
        found = {run: TABLES[arguments.what](run, *options) for run in arguments.runs}
        if arguments.what == "perturbed":
            failed = any(row["survival_rate"] < WITHSTANDS for one in found.values() for row in one.values())
    else:
        found = {run: gates(run, *options, arguments.pushes) for run in arguments.runs}
        failed = not all(walks(one) and (stays_up(one) or not arguments.pushes) for one in found.values())
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    raise SystemExit(int(failed))


if __name__ == "__main__":
    try:
        main()
    except (ConfigError, MissingError) as error:
        raise SystemExit(f"walking.py: {error}") from None
