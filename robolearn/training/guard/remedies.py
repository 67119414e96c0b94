"""Which change of the settings follows which finding, and how a resume makes up for one that was not saved."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robolearn import config
from robolearn.config import registry, run_config
from robolearn.config.run_config import Config
from robolearn.errors import ConfigError, quote
from robolearn.tasks.mdp.task import Task
from robolearn.training import checkpoint
from robolearn.training.guard.detectors import ENTROPY, KL, REWARD, SPREADS, VALUE
from robolearn.training.guard.evidence import FOLDER

KEY = "guard"
"""Entry of the guard's state in a checkpoint's `infos`."""
PENDING = "pending"
"""Entry of that state right after a rollback: the change, which config.yaml may lack after a kill."""
PREFERENCE = "preference"
"""Name of the reward that is learned from preferences; its weight is a setting of the learner."""

NEAR = 0.1
"""Weight of the divergence from the healthy policy, where there was no reference."""
BONUS = 0.01
"""Smallest weight of the entropy bonus where diversity has collapsed."""


@dataclass(frozen=True)
class Remedy:
    """A change of a run."""

    words: list[str]
    """Settings as on the command line."""
    why: str
    """The reason, for the user."""
    blamed: str | None = None
    """Name of the reward whose weight is cut."""


def remedy(
    run: Config,
    finding: str,
    before: Mapping[str, float],
    now: Mapping[str, float],
    healthy: Path | None,
    started: bool,
    blamed: Collection[str] = (),
) -> Remedy:
    """The change with which a run goes on.

    Args:
        run: its configuration so far.
        finding: name of what was confirmed.
        before, now: `reward/NAME` per step where the run was healthy, and now.
        healthy: the checkpoint that it goes back to.
        started: whether that has learned anything: an untrained policy is no reference.
        blamed: rewards whose weights were cut before.
    """
    if finding in SPREADS and hasattr(run.learner, "entropy_coef"):
        bonus = max(2 * run.learner.entropy_coef, BONUS)
        return Remedy([f"learner.entropy_coef={bonus:.6g}"], "a larger bonus for diversity")
    if finding in (KL, VALUE, ENTROPY):
        return _smaller_steps(run, healthy if started else None)
    guilty = _guilty(run, before, now, blamed)
    if guilty is None:
        return _smaller_steps(run, healthy if started else None)
    name, weight = guilty
    key = "learner.preference_weight" if name == PREFERENCE else f"task.rewards.{name}"
    words = [f"{key}={weight * run.guard.weight:.6g}"]
    return Remedy(
        words, f"{name} is the reward that rose most while success did not follow; it counts less", name
    )


def _guilty(
    run: Config, before: Mapping[str, float], now: Mapping[str, float], blamed: Collection[str]
) -> tuple[str, float] | None:
    """Name and weight of the reward that has risen most; None where none has, or their weights cannot be set. One that
    was blamed before counts with its weight before the last cut: it may not have been cut enough."""
    weights = dict(run.task.reward_weights()) if isinstance(run.task, Task) else {}
    if getattr(run.learner, "preferences", None):
        weights[PREFERENCE] = run.learner.preference_weight
    rises = {name: now.get(REWARD + name, 0.0) - before.get(REWARD + name, 0.0) for name in weights}
    if run.guard.weight:
        rises = {name: rise / run.guard.weight if name in blamed else rise for name, rise in rises.items()}
    name = max(rises, key=lambda each: rises[each], default=None)
    return None if name is None or rises[name] <= 0 or not weights[name] else (name, weights[name])


def _smaller_steps(run: Config, healthy: Path | None) -> Remedy:
    """Half the step size, half the KL divergence of an update, and a larger weight of that from a reference."""
    learner, words = run.learner, []
    for name in ("learning_rate", "max_learning_rate", "desired_kl", "final_kl", "critic_learning_rate"):
        if value := getattr(learner, name, 0.0):
            least = getattr(learner, "min_learning_rate", 0.0) if "learning_rate" in name else 0.0
            words.append(f"learner.{name}={max(value / 2, least):.6g}")
    why = "smaller steps"
    if getattr(learner, "reference", None):
        words.append(f"learner.reference_coef={2 * learner.reference_coef:.6g}")
        why += ", nearer to the reference"
    elif healthy is not None and _takes_reference(learner):
        words += [f"learner.reference={str(healthy)!r}", f"learner.reference_coef={NEAR:g}"]
        why += ", near the healthy policy"
    return Remedy(words, why)


def _takes_reference(learner: Any) -> bool:
    """Whether a checkpoint of the run can be the reference of its learner: of one policy, without recurrent layers."""
    alone = not getattr(learner, "policies", None) and getattr(learner, "rnn", "none") == "none"
    return alone and hasattr(learner, "reference")


def scaled(
    content: Mapping[str, Any], words: Sequence[str], decisions: Sequence[Mapping[str, Any]], target: int
) -> dict[str, float]:
    """What a checkpoint of iteration `target` holds of settings that learning adapts, by as much smaller or larger as
    they have become since it was kept: by the change of these `words`, and by those of earlier `decisions`."""
    out: dict[str, float] = {}
    for name, factor in (("learning_rate", 0.5), ("reference_coef", 2.0)):
        key = f"learner.{name}="
        # Of several policies, each has its own, after its name and a dot.
        kept = [entry for entry in content if entry.rpartition(".")[2] == name]
        if kept and any(word.startswith(key) for word in words):
            earlier = [
                each
                for each in decisions
                if each["back_to"] >= target and any(word.startswith(key) for word in each["changes"])
            ]
            out |= {entry: content[entry] * factor ** (1 + len(earlier)) for entry in kept}
    return out


def completed(run: Config) -> Config:
    """A run that resumes, with the change of a rollback that was cut off by a kill before it was saved. What the user
    sets anew stays so."""
    if run.resume is None:
        return run
    folder, path = checkpoint.find_run(run.resume)
    if not (folder / FOLDER).is_dir():
        return run
    state = (checkpoint.load(path).get("infos") or {}).get(KEY) or {}
    pending = [str(word) for word in state.get(PENDING, ())]
    for word in pending:
        _require_own(word, path)
    words = [word for word in pending if _as_saved(word.partition("=")[0], run, folder)]
    return config.resolve(words, run) if words else run


def _require_own(word: str, path: Path) -> None:
    """Refuse a change that no remedy makes: a checkpoint may come from anybody, and a setting may name code.

    Raises:
        ConfigError: it is such a one.
    """
    key, _, value = word.partition("=")
    ours = key.startswith(("learner.", "task.rewards.")) and key != "learner.preference_script"
    if not ours or registry.is_file(value.strip("'\"")):
        raise ConfigError(
            f"{quote(str(path), 120)} asks for {quote(word, 120)}, which the guard never changes: damaged, or not "
            "from robolearn"
        )


def _as_saved(key: str, run: Config, folder: Path) -> bool:
    """Whether a setting is what config.yaml has."""
    now, saved = (
        {name: value for name, value in run_config.flat(tree) if name == key or name.startswith(f"{key}.")}
        for tree in (run_config.to_dict(run), run_config.saved_tree(folder))
    )
    return now == saved
