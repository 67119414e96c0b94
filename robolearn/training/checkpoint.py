"""Run folders and checkpoints, from which a run resumes exactly.

    runs/humanoid_walk/2026-01-31_12-00-00/
      config.yaml       the resolved configuration
      contract.json     how a policy's inputs and outputs relate to the robot
      starts.json       versions, commit and machine of each start; see `robolearn.training.origin`
      metrics.jsonl     one line per iteration; TensorBoard's event files are beside it
      guard/            with guard=on: its checkpoints, decisions and evidence, see docs/guard.md
      latest.pt         the newest checkpoint, with the state of the simulation: exact resume
      checkpoints/      iteration_000025.pt ...: weights, optimizer, normalizers
      .lock             the process that trains in it; see `robolearn.files.locked`

A checkpoint holds only tensors and plain values, and is loaded with `weights_only`: it cannot run code.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from robolearn.config.run_config import Config, agents_of
from robolearn.errors import ConfigError, one_line, quote
from robolearn.files import replacing, save_tensors
from robolearn.learners.policy import Policy
from robolearn.learners.saved import LATEST as LATEST
from robolearn.learners.saved import ROOT, SCHEMA, Damaged
from robolearn.learners.saved import find_run as find_run
from robolearn.learners.saved import load as load
from robolearn.learners.team import Team
from robolearn.training.ranks.world import ALONE, World, in_rows, joined_rows

SIMULATED = ("memory", "noise", "recent", "teacher_memory", "opponents")
# "memory": the name of the recurrent state since the first version
"""Keys of a learner's state that belong to the simulated environments; dropped where the simulation is not restored."""


OTHERS = "env of others"
"""Key of a simulation in which no rank has the robots that it has now: only levels of curricula are taken from it."""


def new_run_folder(task_name: str, output: str | None) -> Path:
    """Create the folder of a new run: `output`, or runs/TASK/TIME.

    Raises:
        ConfigError: `output` already holds a run or files with a run's names, or cannot be written to.
    """
    if output is not None:
        folder = Path(output)
        if (folder / "config.yaml").exists():
            raise ConfigError(
                f"output={output} already holds a run; resume it with resume={output}, or choose another folder"
            )
        for name in (LATEST, "metrics.jsonl", "checkpoints/iteration_*"):
            if found := next(folder.glob(name), None):
                raise ConfigError(
                    f"output={output} holds {quote(found.name)}, which a run would overwrite; choose another folder"
                )
        _make(folder)
        return folder
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    parent = ROOT / task_name.rpartition(":")[2].replace("/", "_")
    for suffix in ("", *(f"_{i}" for i in range(1, 1000))):
        folder = parent / f"{stamp}{suffix}"
        if not folder.exists():
            _make(folder)
            return folder
    raise ConfigError(f"{parent} holds a thousand runs of this second; choose a folder with output=DIR")


def _make(folder: Path) -> None:
    try:
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write to {quote(str(folder), 120)}: {error.strerror}") from None


def save(
    folder: Path | None,
    iteration: int,
    learner: Any,
    env: Any,
    infos: dict[str, Any] | None = None,
    world: World = ALONE,
) -> Path | None:
    """Write the checkpoint after `iteration`: weights in checkpoints/, and latest.pt with the simulation, atomically.

    Args:
        folder: the run folder; only rank 0 needs it.
        iteration: the last finished iteration.
        learner: its `state_dict` is saved.
        env: its `snapshot` is saved, in latest.pt.
        infos: plain values about the run, saved as they are.
        world: the ranks of the run; rank 0 writes the environments of all.

    Returns:
        The file under checkpoints/, None on a rank that does not write.
    """
    saved, simulation = _of_all(world, learner.state_dict(), env.snapshot())
    if not world.writes:
        return None
    assert folder is not None
    if reserved := {"schema", "iter", "infos", "policy", "env", "global_random"} & set(saved):
        raise ConfigError(
            f"{type(learner).__name__}.state_dict() has the entry {min(reserved)!r}, which checkpoints use for "
            "something else; rename it"
        )
    weights = {"schema": SCHEMA, "iter": iteration, "infos": infos, **saved, **_entry(learner)}
    return write(folder, {**weights, "env": simulation, "global_random": _global_random()})


def write(folder: Path, content: dict[str, Any]) -> Path:
    """Write the content of a checkpoint with the environments of all ranks; see `save`."""
    path = weights_path(folder, content["iter"])
    write_content(_without(content, *SIMULATED, "env", "global_random"), path)
    write_content(content, folder / LATEST)
    return path


def weights_path(folder: Path, iteration: int) -> Path:
    """The file of the weights of an iteration in a run folder."""
    return folder / "checkpoints" / f"iteration_{iteration:06d}.pt"


def _without(state: dict[str, Any], *dropped: str) -> dict[str, Any]:
    """A state without these keys; of several policies also without those after their names, as in `a.random`."""
    return {key: value for key, value in state.items() if key.rpartition(".")[2] not in dropped}


def _entry(learner: Any) -> dict[str, Any]:
    """The entry of the learner's policy, with which it loads without the learner."""
    policy = learner.policy
    return {"policy": policy.entry()} if isinstance(policy, Policy | Team) else {}


def _of_all(world: World, state: dict[str, Any], simulation: Any) -> tuple[dict[str, Any], Any]:
    """A learner's state and a simulation with the environments of all ranks, of this rank's."""
    if world.ranks == 1:
        return state, simulation
    rows = in_rows(state)
    mine = {"env": simulation, **{name: state[name] for name in rows}}
    parts = world.share_tensors(mine)
    if not world.writes:
        return state, simulation
    whole = {name: joined_rows([part[name] for part in parts], rows.get(name, 0)) for name in mine}
    return {**state, **{name: value for name, value in whole.items() if name != "env"}}, whole["env"]


def rows_of(content: dict[str, Any] | None, run: Config, world: World) -> dict[str, Any] | None:
    """The content of a checkpoint with the environments of this rank alone; without any where it was not made with the
    same shards."""
    if content is None or not run.ranks:
        return content
    infos = content.get("infos") or {}
    env, parts, rows = content.get("env") or {}, {}, in_rows(content)
    count = run.num_envs * agents_of(run)
    if env and infos.get("shards") == run.shards and len(env["state"]["episode.step"]) == count:
        parts = {"env": world.my_rows(env)}
        parts |= {name: world.my_rows(content[name], dim) for name, dim in rows.items()}
    kept = {name: value for name, value in content.items() if name not in rows and name != "env"}
    return {**kept, **(parts or {OTHERS: env})}


def local(iteration: int, learner: Any, env: Any, infos: dict[str, Any]) -> dict[str, Any]:
    """The content of a checkpoint with the environments of this rank alone, as `restore` takes it."""
    state = {"schema": SCHEMA, "iter": iteration, "infos": infos, **learner.state_dict(), **_entry(learner)}
    return {**state, "env": env.snapshot(), "global_random": _global_random()}


@contextmanager
def _damage_named() -> Iterator[None]:
    """Turns what reading a checkpoint raises, where its parts are of other kinds than the saved ones, into ConfigError.
    Only for what reads it: errors of a learner or a task are to be seen as such."""
    try:
        yield
    except ConfigError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        why = one_line(f"{type(error).__name__} {error}", 80)
        raise ConfigError(f"the checkpoint is damaged ({why}); use another one from checkpoints/") from error


def restore(content: dict[str, Any], learner: Any, env: Any, changes: Iterable[str] = ()) -> bool:
    """Load a checkpoint into a learner, and its simulation into an Env where it fits.

    Args:
        content: the checkpoint, as `load` returns it.
        learner: gets the weights, and the saved learning rate and random state unless `changes` name them.
        env: gets the simulation, unless the checkpoint has none, `changes` concern it, or num_envs or device differ.
        changes: dotted keys whose values differ from the saved configuration.

    Returns:
        Whether the simulation was restored.

    Raises:
        ConfigError: the networks or the simulation do not fit.
    """
    changed = set(changes)
    state = dict(content)
    if (
        any(key.startswith("learner.") and "learning_rate" in key for key in changed)
        or "learner.schedule" in changed
    ):
        state = _without(state, "learning_rate")
    if "seed" in changed:
        state = _without(state, "random")
    saved: dict[str, Any] = content.get("env") or {}
    anew = any(
        key.partition(".")[0] in ("task", "robot", "backend", "device", "num_envs", "seed") for key in changed
    )
    with _damage_named():
        simulated = bool(saved) and not anew and len(saved["state"]["episode.step"]) == env.num_envs
        # The random states of GPU and CPU differ: a simulation is only restored on the kind of device it was saved on.
        simulated = simulated and env.random.fits(saved["random"])
    regrouped = any(key.startswith(("learner.policies", "learner.self_play")) for key in changed)
    if not simulated or regrouped:  # a policy may have other rows than before
        state = _without(state, *SIMULATED)
    _load(state, content, learner, "the checkpoint does")
    if not simulated:
        if keeps_levels(content, env, changed):
            with _damage_named():
                env.keep_levels(
                    saved or content[OTHERS],
                    not any(f"{key}.".startswith("task.terrain.") for key in changed),
                )
        return False
    try:
        env.restore(saved)
    except (RuntimeError, KeyError, IndexError, AttributeError, ValueError, TypeError) as error:
        why = " ".join(str(error).split())
        raise ConfigError(
            f"the simulation in this checkpoint does not fit ({why}); resume from a file in "
            "checkpoints/, which holds only weights"
        ) from error
    with _damage_named():
        set_global_random(content["global_random"])
    return True


def keeps_levels(content: dict[str, Any], env: Any, changes: Iterable[str]) -> bool:
    """Whether curricula go on at the mean levels of a checkpoint's simulation where that is not restored: where it has
    one, of the same task, robot and curricula."""
    others = ("task.curricula", "task.robot", "robot")
    same = all(key != "task" and not f"{key}.".startswith(tuple(f"{o}." for o in others)) for key in changes)
    return bool(content.get("env") or content.get(OTHERS)) and same and bool(getattr(env, "levels", ()))


def start_with(run: str, learner: Any) -> None:
    """Load the networks of RUN (a run folder, a checkpoint, pretrained:NAME) into a learner that has learned nothing.

    Raises:
        ConfigError: there is no such run, its networks do not fit, or the learner starts otherwise.
    """
    if why := getattr(learner, "refuses_weights", ""):
        raise ConfigError(f"weights={quote(run, 120)} with learner={type(learner).__name__.lower()}: {why}")
    folder, path = find_run(run)
    content = load(path, folder)
    # The rate, too: Adam's first step changes every weight by as much, and a trained policy takes small steps only. But
    # a rate that does not adapt is the one that is asked for.
    fixed = getattr(getattr(learner, "config", None), "schedule", "") == "fixed"
    kept = {
        key: value
        for key, value in content.items()
        if (key.rpartition(".")[2] == "learning_rate" and not fixed)
        or (key.endswith("_state_dict") and "optimizer" not in key)
    }
    _load(kept, content, learner, f"weights={quote(run, 120)} do")


def _load(state: dict[str, Any], content: dict[str, Any], learner: Any, shown: str) -> None:
    """Load `state`, of the content of a checkpoint, into a learner; `shown` begins the message where it does not
    fit."""
    policy = learner.policy
    with _damage_named():
        _require_same_inputs(content.get("policy"), policy, shown)
    try:
        learner.load_state_dict(state)
    except (RuntimeError, KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        why = " ".join(str(error).split())
        if isinstance(error, KeyError) and any(key.endswith(".actor_state_dict") for key in state):
            saved = sorted({key.rpartition(".")[0] for key in state if key.endswith(".actor_state_dict")})
            now = (
                sorted(learner.policy.policies)
                if isinstance(learner.policy, Team)
                else ["one for all agents"]
            )
            if saved != now:
                why = f"its policies are {', '.join(saved)}, here {', '.join(now)}: change learner.policies"
        if isinstance(error, KeyError) and "critic_state_dict" in str(error):
            why = "it has no critic, as those of learner=grpo and learner=dpo"
        if "Error(s) in loading" in why or "size mismatch" in why:
            why = (
                "its networks have other shapes; was it trained for another task, or with other learner.*_hidden or "
                "learner.*_groups?"
            )
        raise ConfigError(f"{shown} not fit this configuration: {why}") from error


def _require_same_inputs(saved: Any, policy: Any, shown: str) -> None:
    """Refuse another activation, the same observation groups in another order, for which the weights fit by accident,
    and groups with other columns."""
    if isinstance(policy, Team) and isinstance(saved, dict):
        for name, own in policy.policies.items():  # each may also start from a single policy
            _require_same_inputs(saved.get("policies", {}).get(name, saved), own, shown)
        return
    if not isinstance(saved, dict) or "spec" not in saved or not isinstance(policy, Policy):
        return
    activations = saved["spec"].get("activation"), policy.spec.activation
    if activations[0] is not None and activations[0] != activations[1]:
        raise ConfigError(
            f"{shown} not fit this configuration: learner.activation was {activations[0]} and is now {activations[1]}"
        )
    before, now = list(saved["spec"]["inputs"].items()), list(policy.spec.inputs.items())
    if before != now and sorted(before) == sorted(now):
        raise ConfigError(
            f"{shown} not fit this configuration: learner.actor_groups were {_listed(before)} and are now "
            f"{_listed(now)} (columns in brackets)"
        )
    if before != now and dict(before).keys() == dict(now).keys():
        raise ConfigError(
            f"{shown} not fit this configuration: its policy observes {_listed(before)} and here {_listed(now)} "
            "(columns in brackets): was it trained for another task or robot, or with another task.history?"
        )


def _listed(inputs: list[tuple[str, int]]) -> str:
    return ", ".join(f"{name} ({width})" for name, width in inputs)


def saved_at(folder: Path) -> int:
    """The iteration of the newest checkpoint in a run folder: that of latest.pt, or where it is damaged the newest file
    in checkpoints/, so that the run can go on from there; 0 without one."""
    latest = folder / LATEST
    try:
        return int(load(latest).get("iter", 0)) if latest.exists() else 0
    except Damaged:
        numbers = [
            path.stem.rpartition("_")[2] for path in weights_path(folder, 0).parent.glob("iteration_*.pt")
        ]
        return max((int(number) for number in numbers if number.isdecimal()), default=0)


def require_newest(folder: Path, content: dict[str, Any]) -> None:
    """Refuse to resume in the same run folder from an older checkpoint, which would mix two histories.

    Raises:
        ConfigError: the folder holds a newer checkpoint.
    """
    newest = saved_at(folder)
    if (iteration := content.get("iter", 0)) < newest:
        raise ConfigError(
            f"this checkpoint is of iteration {iteration}, and the run is at {newest}; add output=DIR to resume "
            "in another folder"
        )


def _global_random() -> dict[str, Any]:
    """State of Python's, NumPy's and torch's global generators; RoboLearn uses none of them, but a user's task may."""
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)  # noqa: NPY002
    return {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(np.asarray(keys, np.int64)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
    }


def set_global_random(state: dict[str, Any]) -> None:
    """Restore the states of the global generators from a checkpoint's `global_random`."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    torch.set_rng_state(state["torch"])


def write_content(content: dict[str, Any], path: Path) -> None:
    """Write the content of a checkpoint to a file, atomically.

    Raises:
        ConfigError: the file cannot be written, as on a full disk.
    """
    with replacing(path) as part:
        save_tensors(content, part)
