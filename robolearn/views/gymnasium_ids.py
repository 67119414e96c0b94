"""Tasks as gymnasium ids: importing this module registers `robolearn/HumanoidWalk-v0` and all others.

Since version 1.0 gymnasium reads no entry points: import this module, or name it in the id, so that gymnasium imports
it: `gymnasium.make("robolearn.gymnasium_ids:robolearn/HumanoidWalk-v0")`. The import is fast: torch, tasks and
simulators are imported when an environment is made.
"""

from __future__ import annotations

import gymnasium

from robolearn.config import registry

NAMESPACE = "robolearn"
VERSION = 0
"""Version in every id. Raise it with a change that makes returns incomparable with earlier ones."""


def id_of(task: str) -> str:
    """The id of a task: humanoid_walk -> robolearn/HumanoidWalk-v0."""
    name = "".join(word[:1].upper() + word[1:] for word in task.split("_"))
    return f"{NAMESPACE}/{name}-v{VERSION}"


def register() -> dict[str, str]:
    """Register an id for every task in the registry, including those of other packages. Existing ids are kept.

    A task that cannot be used gets an id too, and making it raises the reason; a name that is not valid in an id is
    skipped. So a broken package does not affect other tasks.

    Returns:
        Names of tasks by id.
    """
    found: dict[str, str] = {}
    for task in registry.names("tasks"):
        name = id_of(task)
        if name in found:  # big_dog and bigDog: the first gets the id, and RoboLearn's tasks come first
            continue
        if name not in gymnasium.registry:
            try:
                # No `max_episode_steps`: gymnasium would add a second time limit to the task's.
                gymnasium.register(
                    id=name,
                    entry_point="robolearn.views.gymnasium_tasks:TaskEnv",
                    vector_entry_point="robolearn.views.gymnasium_tasks:TaskVectorEnv",
                    kwargs={"task": task},
                )
            except gymnasium.error.Error:
                continue
        found[name] = task
    return found


register()
