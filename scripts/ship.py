"""Makes the policy that ships with the package: trains from scratch, checks that it walks, records how it was made.

    python scripts/ship.py humanoid_walk        trains `robolearn train task=humanoid_walk num_envs=4096 seed=1`

Writes robolearn/pretrained/NAME: config.yaml, contract.json, policy.pt (weights and normalizers, no optimizer), and
made.json with commit, seed, command and measurements. Fails for a policy that does not walk and for a working tree with
uncommitted changes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from walking import GATES, judge, walks

from robolearn import config
from robolearn.files import replacing
from robolearn.learners.saved import PRETRAINED
from robolearn.training import checkpoint

ROOT = Path(__file__).parent.parent


def git(*words: str) -> str:
    """Output of a git command in this repository."""
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--episodes", type=int, default=1024)
    arguments = parser.parse_args()
    if git("status", "--porcelain"):
        sys.exit("the working tree has changes: commit them first, because made.json records the commit")
    words = [f"task={arguments.task}", "num_envs=4096", f"seed={arguments.seed}"]
    run = ROOT / "runs" / f"ship_{arguments.task}"
    if run.exists():
        sys.exit(f"{run} exists already: move it")
    commit = git("rev-parse", "HEAD")
    train = [sys.executable, "-c", "from robolearn.cli import main; raise SystemExit(main())", "train"]
    if subprocess.run([*train, *words, f"output={run}"], check=False).returncode:
        sys.exit("training failed: no policy was written")
    content = checkpoint.load(run / checkpoint.LATEST)
    if content["iter"] != config.resolve(words).max_iterations:
        sys.exit("training stopped before max_iterations: no policy was written")
    found = judge(str(run), [], arguments.episodes)
    judged = [gate for gate in GATES if gate.scenario in found]
    for gate in judged:
        print(gate.line(found[gate.scenario][gate.key]))
    if not walks(found):
        sys.exit("the robot does not walk: no policy was written")
    made = {
        "command": "robolearn train " + " ".join(words),
        "seed": arguments.seed,
        "commit": commit,
        "torch": torch.__version__,
        "iterations": content["iter"],
        "environment_steps": content["infos"]["steps"],
        "minutes": round(content["infos"]["seconds"] / 60, 2),
        "episodes": found["commands"]["episodes"],
        "gates": {gate.name: found[gate.scenario][gate.key] for gate in judged},
    }
    folder = PRETRAINED / arguments.task
    folder.mkdir(parents=True, exist_ok=True)
    kept = (
        "schema",
        "iter",
        "infos",
        "policy",
        "actor_state_dict",
        "critic_state_dict",
        "learning_rate",
    )
    (folder / "policy.pt").unlink(missing_ok=True)  # written last: without it the folder is not a policy
    for name in (config.FILE_NAME, "contract.json"):
        shutil.copyfile(run / name, folder / name)
    with replacing(folder / "made.json") as part:
        part.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    with replacing(folder / "policy.pt") as part:
        torch.save({name: content[name] for name in kept}, part)
    print(f"wrote {folder}: {(folder / 'policy.pt').stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
