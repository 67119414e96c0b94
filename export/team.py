"""Export of the policies of several agents: a folder with a bundle for each policy, and a file that says which agent
has which."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from robolearn.config.run_config import EXTERNAL
from robolearn.errors import ConfigError, printable, quote
from robolearn.export import bundle as bundles
from robolearn.learners.team import Team
from robolearn.runtime.errors import OK
from robolearn.training.runs import Run

if TYPE_CHECKING:
    from robolearn.export.request import Checked

FILE = "team.json"
SCHEMA = 1
"""Version of its layout."""


def of(found: Run) -> Team | None:
    """The policies of a run with several; None of a run with one."""
    return Team.from_checkpoint(found.content, found.name) if Team.is_in(found.content) else None


def require_policy(found: Run, name: str | None) -> str | None:
    """The policy of that name among those of a run.

    Raises:
        ConfigError: there is none of that name; the run has one policy only; or it is of a third-party environment.
    """
    team = of(found)
    if team is None:
        if name is not None:
            raise ConfigError(
                f"--policy {quote(name)}: {quote(found.name, 120)} has one policy, without a name; leave --policy out"
            )
        return None
    if found.config.backend_name == EXTERNAL:
        raise ConfigError(
            f"{quote(found.name, 120)} has several policies of a third-party environment, which cannot be exported; "
            "train one for all agents, without learner.policies"
        )
    if name is not None:
        team.named(name)
    return name


def agents_of(found: Run, name: str | None) -> list[str]:
    """The agents that have the policy of that name; none where all share one."""
    team = of(found)
    if team is None or name is None:
        return []
    return [agent for agent, policy in team.of_agents.items() if policy == name]


def driven(found: Run, name: str | None) -> Callable[[int], np.ndarray] | None:
    """The number of simulated agents N -> which have the policy of that name, (N,) bool; None: all."""
    team = of(found)
    if team is None or name is None:
        return None
    mine = np.array([policy == name for policy in team.of_agents.values()])
    return lambda count: np.tile(mine, count // len(mine))


def export_each(
    checked: Checked, export: Callable[[Checked], int], show: Callable[[str, str, str], None]
) -> int:
    """Export every policy of a run with several, each to a bundle in the folder of the request.

    Returns:
        OK, or the first other exit code of the policies; the bundles are then written too.
    """
    team = of(checked.found)
    assert team is not None
    with bundles.new_folder(checked.folder, require_replaceable) as folder:
        codes = [export(replace(checked, policy=name, folder=folder / name)) for name in team.policies]
        content = {
            "schema": SCHEMA,
            "policies": {name: f"{name}/" for name in team.policies},
            "agents": team.of_agents,
        }
        (folder / FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    agents = ", ".join(f"{agent}: {name}" for agent, name in team.of_agents.items())
    output = checked.request.output or checked.found.folder / "export" / checked.target.name
    show("ok", "team", f"{printable(str(output / FILE))}: {agents}")
    return next((code for code in codes if code != OK), OK)


def require_replaceable(folder: Path) -> None:
    """Refuse a place for bundles of a team that holds anything else than such bundles.

    Raises:
        ConfigError: it is a file, a link, or a folder with other files.
    """
    shown = quote(str(folder), 120)
    if bundles.is_free(folder):
        return
    try:
        names = set(json.loads((folder / FILE).read_text(encoding="utf-8"))["policies"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(
            f"cannot write {shown}: it does not hold the policies of a team, and would be lost; name another folder "
            "with --output"
        ) from None
    others = sorted({path.name for path in folder.iterdir()} - names - {FILE})
    if others:
        raise ConfigError(
            f"cannot write {shown}: it holds {quote(others[0])}, which would be lost; name another folder with --output"
        )
    for name in names:
        bundles.require_replaceable(folder / name)
