"""Our tasks as gymnasium ids: importing this module registers `robolearn/HumanoidWalk-v0` and all others.

Since its version 1.0 gymnasium reads no entry points: somebody has to import this, or name it in the id, which
makes gymnasium import it: `gymnasium.make("robolearn.gymnasium_ids:robolearn/HumanoidWalk-v0")`. It is light: torch,
the tasks and their simulators are imported where an environment is made.
"""

from __future__ import annotations

import gymnasium

from robolearn.config import registry

NAMESPACE = "robolearn"
VERSION = 0
"""Of every id of ours. A change that makes returns under an id incomparable with those before it raises this."""


def id_of(task: str) -> str:
    """The id of a task by its name: humanoid_walk -> robolearn/HumanoidWalk-v0."""
    name = "".join(word[:1].upper() + word[1:] for word in task.split("_"))
    return f"{NAMESPACE}/{name}-v{VERSION}"


def register() -> dict[str, str]:
    """Give every task that the registry knows, ours and other packages', its id. Ids that are there stay as they are.

    A task that cannot be used has one too, and says why where it is made; a name that no id can be made of is left
    out. So a broken package never stands in the way of the others.

    Returns:
        The task's name of each id.
    """
    found: dict[str, str] = {}
    for task in registry.names("tasks"):
        name = id_of(task)
        if name in found:  # big_dog beside bigDog: the first one has it, and ours come first
            continue
        if name not in gymnasium.registry:
            try:
                # No `max_episode_steps`: gymnasium would put a time limit of its own around the task's.
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
