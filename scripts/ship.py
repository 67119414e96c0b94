"""Makes the policies that ship with the package: trains, checks that the robot walks, records how each was made.

    python scripts/ship.py humanoid_walk                          trains it by its command in COMMANDS
    python scripts/ship.py unitree_go1 --run RUN --commit COMMIT  takes a run that this command made, in that commit

Writes robolearn/pretrained/NAME: config.yaml, contract.json, policy.pt (weights and normalizers, no optimizer), and
made.json with commits, commands and measurements, of which those under pushes are recorded and not required. Fails for
a policy that does not walk, for a run of other settings, and for a working tree with uncommitted changes.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import robolearn  # noqa: F401 - before torch: it sets how torch's threads wait

# isort: split
import torch
from walking import GATES, count, judge, walks

from robolearn import config
from robolearn.errors import ConfigError, MissingError
from robolearn.files import replacing
from robolearn.learners.saved import PRETRAINED
from robolearn.training import checkpoint

ROOT = Path(__file__).parent.parent
UNDELAYED = [
    "task.rewards.velocity_error=0",
    "task.rewards.slip_speed=0",
    "task.action_delay=[0,0]",
    "task.randomize.friction=[0.5,1.2]",
    "task.history.policy=1",
    "learner.mean_bound=0",
]
"""Actions were on time and not bounded, floors not as slippery, and the policy saw the newest observation alone."""
STANDING_FREE = [
    *UNDELAYED,
    "task.rewards.stepping.free=0",
    "task.rewards.crouching=0",
    "task.terminations.fallen.height=0.7",
    "task.curricula.pushes.most=4",
]
"""Standing earned nothing, and a crouch cost nothing, but a deep one was a fall."""
EARLIER = [
    *STANDING_FREE,
    "task.step_width=0",
    "task.pushes.seconds=[1,6]",
    "task.curricula.pushes.rise=0.12",
    "task.rewards.air_time.weight=20",
    "task.rewards.narrow=0",
    "task.rewards.foot_slip=-0.3",
    "task.rewards.stepping.weight=-8",
    "task.rewards.action_rate=-0.02",
    "learner.final_kl=0",
    "learner.skip_events=false",
]
"""What was the default when a policy was made."""
WEIGHTS = "weights=RUN"
"""First word of a stage that begins a new run, with the weights of the run before."""
COMMANDS = {
    "humanoid_walk": [
        # First mjlab's pushes, then rarer and harder ones, then with the feet apart.
        [
            "task=humanoid_walk",
            "num_envs=1024",
            "task.stance_width=0",
            *EARLIER,
            "task.pushes.speed=[0,0]",
            "task.pushes.seconds=[1,3]",
            "max_iterations=1021",
        ],
        [
            "task.pushes.speed=[0,0.4]",
            "task.pushes.seconds=[1,6]",
            "task.curricula.pushes=1.6",
            "max_iterations=2037",
        ],
        ["task.stance_width=0.819", "max_iterations=3623"],
        # Then with late actions and slippery floors, as today's default; at last with less slip than that asks for.
        [
            WEIGHTS,
            "task=humanoid_walk",
            "num_envs=1024",
            "task.history.policy=1",
            "learner.precision=fp32",
            "max_iterations=2300",
        ],
        ["task.rewards.slip_speed=-5", "task.rewards.foot_slip=-3", "max_iterations=3300"],
        [
            "task.rewards.slip_speed=-15",
            "task.rewards.foot_slip=-6",
            "task.curricula.pushes.most=2",
            "max_iterations=4300",
        ],
    ],
    "unitree_go1": [
        [
            "task=velocity",
            "robot=unitree_go1",
            "num_envs=1024",
            "task.history.policy=1",
            "learner.precision=fp32",
            "max_iterations=1500",
        ]
    ],
    "unitree_g1": [
        [
            "task=velocity",
            "robot=unitree_g1",
            "num_envs=1024",
            "task.stance_width=0.8857",
            "task.step_width=0.6813",
            "task.rewards.stepping.weight=-30",
            *STANDING_FREE,
            "max_iterations=2400",
        ],
        # Then with late actions and slippery floors, as today's default, with pushes that grow less far, and faster.
        [
            WEIGHTS,
            "task=velocity",
            "robot=unitree_g1",
            "num_envs=1024",
            "task.history.policy=1",
            "learner.precision=fp32",
            "max_iterations=1156",
        ],
        ["task.curricula.pushes.most=2.5", "max_iterations=1560"],
        ["task.rewards.velocity_error=-10", "max_iterations=1960"],
    ],
}
"""What each policy was asked of `robolearn train`, besides the seed; a stage resumes the one before it, or begins with
its weights."""
OF_THE_MACHINE = {
    "max_iterations",
    "checkpoint_interval",
    "torch_threads",
    "backend.threads",
    "device",
    "weights",
}
"""Settings that a run may differ in: made.json has the iterations and where weights are from; the others are no part of
task and learner."""
MADE = "made.json"
"""File of a shipped policy that says how it was made."""
KEPT = ("schema", "iter", "infos", "policy", "actor_state_dict", "critic_state_dict", "learning_rate")
"""What of a checkpoint ships."""


def git(*words: str) -> str:
    """Output of a git command in this repository."""
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def settings(stages: list[list[str]]) -> list[str]:
    """The settings of the last stage: those of all stages of its run."""
    return once([word for stage in runs_of(stages)[-1] for word in stage if word != WEIGHTS])


def once(words: list[str]) -> list[str]:
    """Settings, of which a later one replaces an earlier one of its name."""
    return list({word.partition("=")[0]: word for word in words}.values())


def runs_of(stages: list[list[str]]) -> list[list[list[str]]]:
    """The stages of each run."""
    runs: list[list[list[str]]] = []
    for words in stages:
        if not runs or words[0] == WEIGHTS:
            runs.append([])
        runs[-1].append(words)
    return runs


def train(stages: list[list[str]], run: Path) -> None:
    """Train in the folder `run`, and in others beside it the runs whose weights it begins with."""
    command = [sys.executable, "-c", "from robolearn.cli import main; raise SystemExit(main())", "train"]
    runs = runs_of(stages)
    folders = [*(run.with_name(f"{run.name}_{i}") for i in range(1, len(runs))), run]
    for folder in folders:
        if folder.exists():
            sys.exit(f"{folder} exists already: move it, or take it with --run")
    for i, (folder, parts) in enumerate(zip(folders, runs, strict=True)):
        for j, words in enumerate(parts):
            told = [f"weights={folders[i - 1]}" if word == WEIGHTS else word for word in words]
            where = f"resume={folder}" if j else f"output={folder}"
            if subprocess.run([*command, *told, where], check=False).returncode:
                sys.exit("training failed: no policy was written")


def spent(run: str) -> dict[str, Any]:
    """Environment steps and minutes of a run and of those whose weights it began with, and the commits that trained
    the policies among them that shipped."""
    folder, path = checkpoint.find_run(run)
    if (folder / MADE).exists():
        made = json.loads((folder / MADE).read_text(encoding="utf-8"))
        earlier = [*made.get("earlier_commits", []), made["commit"]]
        return {
            "environment_steps": made["environment_steps"],
            "minutes": made["minutes"],
            "earlier_commits": earlier,
        }
    weights = config.load(folder).weights
    before = spent(weights) if weights else {"environment_steps": 0, "minutes": 0.0, "earlier_commits": []}
    infos = checkpoint.load(path)["infos"]
    return {
        **before,
        "environment_steps": before["environment_steps"] + infos["steps"],
        "minutes": round(before["minutes"] + infos["seconds"] / 60, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=COMMANDS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--episodes", type=count, default=1024)
    parser.add_argument("--run", type=Path, help="a run of the command, instead of training now")
    parser.add_argument("--commit", help="the commit that trained RUN")
    arguments = parser.parse_args()
    if bool(arguments.run) != bool(arguments.commit):
        parser.error("--run and --commit go together")
    if git("status", "--porcelain"):
        sys.exit("the working tree has changes: commit them first, because made.json records the commit")
    stages = []
    for first, *later in runs_of(COMMANDS[arguments.name]):
        stages += [once([*first, f"seed={arguments.seed}"]), *later]
    commit = git("rev-parse", arguments.commit or "HEAD")
    run = arguments.run or ROOT / "runs" / f"ship_{arguments.name}"
    if arguments.run is None:
        train(stages, run)
    wanted = config.resolve(settings(stages))
    other = set(config.changed(config.load(run), wanted)) - OF_THE_MACHINE
    if other:
        sys.exit(f"{run} was trained with another {', '.join(sorted(other))}: no policy was written")
    content = checkpoint.load(run / checkpoint.LATEST)
    found = judge(str(run), [], arguments.episodes, pushes=True)
    for gate in GATES:
        print(gate.line(found[gate.scenario][gate.key]))
    if not walks(found):
        sys.exit("the robot does not walk: no policy was written")
    last = [word for word in stages[-1] if not word.startswith("max_iterations=")]
    stages[-1] = [*last, f"max_iterations={content['iter']}"]
    made = {
        "commands": [
            shlex.join(["robolearn", "train", *words, *(["resume=RUN"] if i else [])])
            for parts in runs_of(stages)
            for i, words in enumerate(parts)
        ],
        "commit": commit,
        "torch": torch.__version__,
        "iterations": content["iter"],
        **spent(str(run)),
        "episodes": found["commands"]["episodes"],
        "gates": {gate.name: found[gate.scenario][gate.key] for gate in GATES},
    }
    folder = PRETRAINED / arguments.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "policy.pt").unlink(missing_ok=True)  # written last: without it the folder is not a policy
    config.save(wanted, folder / config.FILE_NAME)  # the run's, without its threads and its device
    shutil.copyfile(run / "contract.json", folder / "contract.json")
    with replacing(folder / MADE) as part:
        part.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    with replacing(folder / "policy.pt") as part:
        torch.save({name: content[name] for name in KEPT if name in content}, part)
    print(f"wrote {folder}: {(folder / 'policy.pt').stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    try:
        main()
    except (ConfigError, MissingError) as error:
        raise SystemExit(f"ship.py: {error}") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"ship.py: {shlex.join(error.cmd)}: {error.stderr.strip()}") from None
