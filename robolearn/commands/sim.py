"""`robolearn sim`: a headless simulation run for CI, with gates and a JUnit report."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from robolearn import config
from robolearn.commands.checks import Check, Group, junit_xml
from robolearn.config import registry
from robolearn.config.run_config import Config
from robolearn.core.checksum import add_tensors, checksum
from robolearn.core.env import Env
from robolearn.core.finite_check import NonFiniteTerm
from robolearn.core.learner_env import LearnerEnv
from robolearn.errors import ConfigError, did_you_mean, listing, near, printable, quote
from robolearn.files import replacing
from robolearn.learners.policy import Act, reset_state
from robolearn.training.build import make_learner_env
from robolearn.training.runs import (
    BUILT_IN,
    load_policy,
    open_run,
    random_policy,
    require_writable,
    zero_policy,
)
from robolearn.training.train import set_threads

REPEATED_STEPS = 100
"""Number of steps that are simulated a second time, to compare checksums."""

MIN_SURVIVAL = 0.9
"""Default minimum share of environments in which no episode of a trained policy is terminated. In third-party
environments, where a termination may mean success, only another value than this one is checked."""


@dataclass
class Outcome:
    """Result of a simulation."""

    steps: int = 0
    """Control steps simulated; fewer than requested where a value was not finite."""
    simulated: float = 0.0
    """Simulated time of each environment [s]."""
    seconds: float = 0.0
    """Wall time [s], without building the environments."""
    diverged: int = 0
    """Number of environment steps that diverged."""
    survival: float = 1.0
    """Share of environments in which no episode was terminated."""
    problem: str = ""
    """What was not finite; empty where everything was."""
    checksum: str = ""
    """sha256 of the State after the last step; see `checksum`. For third-party environments, which have no State: of
    the observations and rewards of all steps."""
    early_checksum: str = ""
    """The checksum after REPEATED_STEPS, or after the last step where there are fewer."""
    device: str = ""
    """Device of the simulation."""
    has_state: bool = True
    """Whether the environments have a State; third-party ones have none and do not report divergence."""
    timed: bool = True
    """Whether the control period is known."""


def simulate(
    *,
    task: str | None,
    policy: str = "zero",
    backend: str = "auto",
    steps: int = 1000,
    seed: int = 1,
    num_envs: int = 64,
    overrides: Iterable[str] = (),
    junit: Path | None = None,
    min_real_time_factor: float = 1.0,
    min_survival: float = MIN_SURVIVAL,
) -> bool:
    """Simulate, check the gates, print a line for each, and write the JUnit report.

    Args:
        task: name of the task; None: the task of the run that `policy` names.
        policy: a run (see `robolearn.training.runs.open_run`), `random` or `zero`.
        backend: the simulator; auto: the best one installed.
        steps: number of control steps.
        seed: seed of all random numbers.
        num_envs: number of environments.
        overrides: settings in Hydra's grammar; they override the arguments above.
        junit: file of the JUnit report; None: no report.
        min_real_time_factor: minimum simulated seconds of one environment per second of wall time.
        min_survival: minimum share of environments in which a trained policy never falls. In third-party environments
            the share is only reported where this is MIN_SURVIVAL.

    Returns:
        Whether every gate passed.

    Raises:
        ConfigError: an argument or an override is invalid.
        MissingError: the backend is not installed.
        RunFailed: the simulator dropped part of the physics.
    """
    if not (math.isfinite(min_real_time_factor) and math.isfinite(min_survival)):
        raise ConfigError("--min-real-time-factor and --min-survival take finite numbers")
    named = [f"task={task}"] if task is not None else []
    extra = list(overrides)
    words = [*named, f"backend={backend}", f"seed={seed}", f"num_envs={num_envs}", *extra]
    run, make_policy = _prepare(policy, words)
    if junit is not None:
        require_writable(junit.parent)
    set_threads(run)
    outcome = roll_out(run, make_policy, steps)
    repeated = None
    if not outcome.problem and outcome.device == "cpu":
        repeated = roll_out(run, make_policy, min(steps, REPEATED_STEPS))
    gates = judge(outcome, repeated, min_real_time_factor, min_survival if policy not in BUILT_IN else None)

    where = f" on {run.backend_name}: {run.num_envs} robots"
    if run.backend_name == config.EXTERNAL:
        where = f": {run.num_envs} environments"
    print(
        f"{run.task_name}{where}, {outcome.steps} of {steps} steps, "
        f"policy {printable(policy)}, seed {run.seed}"
    )
    for gate in gates:
        print(gate)
    print(f"checksum sha256:{outcome.checksum or 'none'}")
    if junit is not None:
        properties = {
            "task": run.task_name,
            "policy": policy,
            "backend": run.backend_name,
            "seed": str(run.seed),
            "steps": str(steps),
            "num_envs": str(run.num_envs),
            "device": outcome.device,
            "overrides": " ".join(extra),
            "checksum": outcome.checksum,
        }
        with replacing(junit) as part:
            group = Group(f"robolearn.sim.{run.task_name}", gates, properties, outcome.seconds)
            part.write_bytes(junit_xml("robolearn sim", [group]))
        print(f"wrote {junit}")
    return all(gate.passed is not False for gate in gates)


def _prepare(policy: str, words: list[str]) -> tuple[Config, Callable[[LearnerEnv], Act]]:
    """The configuration, and a function that makes the policy for its Env."""
    if policy not in BUILT_IN:
        if near(policy, BUILT_IN) and not Path(policy).exists():
            raise ConfigError(
                f"unknown policy {quote(policy)}{did_you_mean(policy, BUILT_IN)} Valid: {', '.join(BUILT_IN)}, "
                "a run folder, a checkpoint, pretrained:NAME"
            )
        found = open_run(policy, words)
        trained = load_policy(found)
        return found.config, lambda env: trained
    if not any(word.startswith("task=") for word in words):
        raise ConfigError(
            "no task is named: add --policy RUN to simulate a trained policy, or --task NAME; valid: "
            f"{listing(registry.names('tasks'))}"
        )
    run = config.resolve(words)
    if policy == "random":
        return run, lambda env: random_policy(env, run.seed)
    return run, zero_policy


@torch.no_grad()
def roll_out(run: Config, make_policy: Callable[[LearnerEnv], Act], steps: int) -> Outcome:
    """Simulate `steps` control steps in a new Env; a value that is not finite ends the simulation.

    Raises:
        RunFailed: the simulator dropped part of the physics.
    """
    outcome, env = Outcome(), None
    try:
        env = make_learner_env(run)
        outcome.device, outcome.has_state = env.device.type, isinstance(env, Env)
        outcome.timed = getattr(env, "dt_known", True)
        policy = make_policy(env)
        reset_state(policy)  # the policy may have been used before
        seen = hashlib.sha256()
        fell = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        began = time.perf_counter()
        while outcome.steps < steps:
            action = policy(env.observations)
            if not bool(torch.isfinite(action).all()):
                raise NonFiniteTerm(f"the policy's action is not finite after step {outcome.steps}")
            result = env.step(action)
            env.check()  # before the step counts; no extra sync on a GPU: divergence is read back below
            reset_state(policy, result.done if result.valid is None else result.done | ~result.valid)
            if not outcome.has_state:
                add_tensors(seen, {**result.observations, "reward": result.reward, "done": result.done})
            outcome.steps += 1
            outcome.simulated += env.dt
            outcome.diverged += int(result.diverged.sum())
            fell |= result.terminated
            outcome.seconds = time.perf_counter() - began
            if outcome.steps == min(steps, REPEATED_STEPS):
                outcome.early_checksum = _checksum_of(env, seen)
        outcome.survival = 1.0 - float(fell.double().mean())
        outcome.checksum = _checksum_of(env, seen)
    except NonFiniteTerm as error:
        outcome.problem = str(error)
    finally:
        if env is not None:
            env.close()
    return outcome


def _checksum_of(env: LearnerEnv, seen: hashlib._Hash) -> str:
    return checksum(env.backend.state) if isinstance(env, Env) else seen.hexdigest()


def judge(
    outcome: Outcome, repeated: Outcome | None, min_real_time_factor: float, min_survival: float | None
) -> list[Check]:
    """The gates, in a fixed order.

    Args:
        outcome: the simulation.
        repeated: its first steps, simulated again; None where they were not.
        min_real_time_factor: see `simulate`.
        min_survival: see `simulate`; None for a policy without training.
    """
    problem = outcome.problem
    cut_short = "the simulation ended early" if problem else ""
    gave_up = f"environment steps diverged: {outcome.diverged}; lower the timestep or the gains"
    diverged = Check(
        "divergence",
        not outcome.diverged,
        str(outcome.diverged),
        "0",
        gave_up if outcome.diverged else "",
    )
    if not outcome.has_state:
        diverged = Check("divergence", None, "-", "0", "third-party environments do not report divergence")
    gates = [
        diverged,
        Check("finite", not problem, "no" if problem else "yes", "yes", problem),
    ]
    if not outcome.timed:
        why = "the control period is unknown; set it, such as task.control_dt=0.02"
        gates.append(Check("real_time_factor", None, "-", f">= {min_real_time_factor:g}", why))
    elif outcome.steps:
        factor = outcome.simulated / outcome.seconds
        fast = factor >= min_real_time_factor
        why = "" if fast else "too slow; use fewer --num-envs"
        gates.append(Check("real_time_factor", fast, f"{factor:.2f}", f">= {min_real_time_factor:g}", why))
    else:
        gates.append(Check("real_time_factor", None, "-", f">= {min_real_time_factor:g}", cut_short))
    if min_survival is None:
        gates.append(Check("survival", None, "-", "-", "checked only for a trained policy"))
    elif problem:
        gates.append(Check("survival", None, "-", f">= {min_survival:g}", cut_short))
    elif not outcome.has_state and min_survival == MIN_SURVIVAL:
        why = "a termination may mean success; set another --min-survival to check it"
        gates.append(Check("survival", None, f"{outcome.survival:.3f}", "-", why))
    else:
        survived = outcome.survival >= min_survival
        why = (
            ""
            if survived
            else f"{100 * (1 - outcome.survival):.1f} % of the environments had an episode terminated"
        )
        gates.append(Check("survival", survived, f"{outcome.survival:.3f}", f">= {min_survival:g}", why))
    if repeated is None:
        why = cut_short or "results on a GPU repeat statistically, not bit for bit"
        gates.append(Check("deterministic", None, "-", "same bits", why))
    else:
        same = repeated.early_checksum == outcome.early_checksum
        bits = (outcome.early_checksum[:12], repeated.early_checksum[:12] or repeated.problem)
        of = "State" if outcome.has_state else "observations"
        why = (
            f"after {repeated.steps} steps the checksum of the {of} is {bits[0]}, and {bits[1]} when repeated"
        )
        why = "" if same else why
        gates.append(Check("deterministic", same, "same bits" if same else "other bits", "same bits", why))
    return gates
