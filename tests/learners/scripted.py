"""An environment with scripted observations on any device: what a learner needs of an Env, without syncs."""

from __future__ import annotations

import torch

from robolearn.core.env import StepResult
from robolearn.learners.rollout import Batch
from robolearn.tasks.mdp.symmetry import Reflection, Symmetry

WIDTHS = {"policy": 6, "critic": 8}
ACTIONS = 2


def symmetry(device: torch.device | str = "cpu") -> Symmetry:
    """Left and right are swapped, a third column changes its sign."""

    def reflection(width: int) -> Reflection:
        permutation, sign = torch.arange(width), torch.ones(width)
        permutation[:2] = torch.tensor([1, 0])
        if width > 2:
            sign[2] = -1.0
        return Reflection(permutation.to(device), sign.to(device))

    return Symmetry({name: reflection(width) for name, width in WIDTHS.items()}, reflection(ACTIONS))


class Scripted:
    """N environments whose observations and ends were drawn beforehand, and whose rewards follow the actions."""

    resets_take_a_step = False

    def __init__(
        self,
        num_envs: int = 12,
        device: torch.device | str = "cpu",
        mirrored: Symmetry | None = None,
        ends: float = 0.15,
        seed: int = 0,
    ) -> None:
        """`ends` is the share of steps that end an episode, half of them by time."""
        self.device, self.num_envs, self.num_actions = torch.device(device), num_envs, ACTIONS
        self.mirrored, self.now = mirrored, 0
        random = torch.Generator().manual_seed(seed)
        frames, shape = 37, (37, num_envs)

        def drawn(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=random).to(self.device)

        self.script = {name: drawn(frames, num_envs, width) for name, width in WIDTHS.items()}
        self.terminal = {name: drawn(frames, num_envs, width) for name, width in WIDTHS.items()}
        self.wish = drawn(frames, num_envs, ACTIONS)
        end = torch.rand(shape, generator=random).to(self.device)
        self.terminated, self.truncated = end < ends / 2, (end >= ends / 2) & (end < ends)
        self.events = torch.rand(shape, generator=random).to(self.device) < 0.1
        self.observations = {name: frames[0] for name, frames in self.script.items()}

    def reset(self, stagger: bool = False) -> dict[str, torch.Tensor]:
        return self.observations

    def symmetry(self) -> Symmetry | None:
        return self.mirrored

    def step(self, action: torch.Tensor) -> StepResult:
        i = self.now = (self.now + 1) % len(self.wish)
        self.observations = {name: frames[i] for name, frames in self.script.items()}
        return StepResult(
            self.observations,
            -(action - self.wish[i]).square().sum(dim=1),
            self.terminated[i],
            self.truncated[i],
            {name: frames[i] for name, frames in self.terminal.items()},
            torch.zeros_like(self.terminated[i]),
            exogenous=self.events[i],
        )

    def drain(self) -> dict[str, float]:
        return {}


def random_batch(
    steps: int, num_envs: int, seed: int, device: torch.device | str = "cpu"
) -> tuple[Batch, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A batch of noise with advantages, returns and values (T, N)."""
    batch = Batch.empty(Scripted(num_envs, device), steps)
    random = torch.Generator().manual_seed(seed)

    def fill(tensor: torch.Tensor, scale: float = 1.0) -> None:
        tensor.copy_(scale * torch.randn(tensor.shape, generator=random))

    for tensor in (*batch.observations.values(), batch.action, batch.reward, *batch.terminal.values()):
        fill(tensor)
    fill(batch.mean, 0.1)
    batch.done.copy_(torch.rand(batch.done.shape, generator=random) < 0.2)
    three = [torch.randn(steps, num_envs, generator=random).to(device) for _ in range(3)]
    return batch, three[0], three[1], three[2]
