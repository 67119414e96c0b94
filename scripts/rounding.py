"""What bf16 makes of the numbers that PPO compares: means of actions and logarithms of ratios of a run's policy.

    python scripts/rounding.py runs/walk
    python scripts/rounding.py pretrained:humanoid_walk --steps 200

The policy acts with its exploration noise, and its weights are then moved at random as far as an optimizer of a small
rate moves them. A ratio compares the policies before and after: its logarithm for a typical action has the standard
deviation |change of the mean / standard deviation|, once of the true change and once of what is left of it in bf16.
"""

from __future__ import annotations

import argparse
import copy
import sys

import robolearn  # noqa: F401 - before torch: it sets how torch's threads wait

# isort: split
import torch

from robolearn.errors import ConfigError, MissingError
from robolearn.learners.policy import PolicyRunner
from robolearn.learners.precision import autocast
from robolearn.training.build import make_env
from robolearn.training.runs import load_policy, open_run
from robolearn.training.train import set_threads

RATES = (1e-5, 3e-5, 1e-4)
"""How far each weight moves, in a direction drawn for each: a step of Adam with this rate."""
INTERVAL = 10
"""Control steps between two that are compared."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="a run folder, a checkpoint or pretrained:NAME")
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--steps", type=int, default=120, help="control steps")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="setting of the run")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    found = open_run(arguments.run, arguments.set)
    set_threads(found.config)
    runner = load_policy(found)
    if not isinstance(runner, PolicyRunner):
        sys.exit("rounding.py: a run with one policy, please")
    policy, kept = runner.policy, found.content["actor_state_dict"]
    std = kept.get("distribution.std_param")
    if std is None or policy.spec.rnn != "none":
        sys.exit(
            "rounding.py: a policy with a standard deviation for each action and no recurrent layers, please"
        )
    env = make_env(found.config, num_envs=arguments.envs)
    seen = []
    with torch.no_grad():
        for step in range(arguments.steps):
            action = runner(env.observations)
            if step % INTERVAL == INTERVAL - 1:
                seen.append(policy.observe(env.observations))
            env.step(action + std * torch.randn_like(action))
        env.close()
        obs = torch.cat(seen)

        def means(of: torch.nn.Module, precision: str) -> torch.Tensor:
            """(B, A), in standard deviations."""
            with autocast(obs.device, precision):
                return of(obs).float() / std

        def size(change: torch.Tensor) -> float:
            """Standard deviation of the logarithm of a ratio after this change (B, A) of the means."""
            return float(change.square().sum(dim=1).mean().sqrt())

        exact, rounded = means(policy, "fp32"), means(policy, "bf16")
        off = float((rounded - exact).square().mean().sqrt())
        print(
            f"{arguments.run}: {len(obs)} observations, actions vary by {std.min():.3f} to {std.max():.3f} (sigma)"
        )
        print(f"bf16 changes the mean of an action by {off:.3f} sigma")
        print("| step of each weight | log ratio | in bf16 | error of bf16 |")
        print("|---|---|---|---|")
        for rate in RATES:
            moved = copy.deepcopy(policy)
            for weight in moved.actor.mlp.parameters():
                weight.add_(rate * torch.randn_like(weight).sign())
            true, left = means(moved, "fp32") - exact, means(moved, "bf16") - rounded
            print(f"| {rate:g} | {size(true):.3f} | {size(left):.3f} | {size(left - true):.3f} |")


if __name__ == "__main__":
    try:
        main()
    except (ConfigError, MissingError) as error:
        sys.exit(f"rounding.py: {error}")
