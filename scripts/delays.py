"""A task and a learner whose parts take a given time, for scripts that measure how processes work together."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from robolearn.learners.ppo import PPO
from robolearn.tasks.cartpole import CartpoleBalance


@dataclass
class SlowTask(CartpoleBalance):
    """A cartpole whose steps take SIMULATE seconds."""

    def joint_targets(self, action: Any, ctx: Any) -> Any:
        """See `Task.joint_targets`; called once a step."""
        time.sleep(float(os.environ["SIMULATE"]))
        return super().joint_targets(action, ctx)


class SlowPPO(PPO):
    """PPO whose updates take LEARN seconds."""

    def orders(self) -> Any:
        """See `PPO.orders`; called once an update."""
        time.sleep(float(os.environ["LEARN"]))
        return super().orders()
