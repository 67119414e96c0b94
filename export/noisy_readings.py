"""Noise of observations, as noise of the readings that they are computed from.

An Env adds noise to what the policy observes. A robot's computer computes observations from readings: what drives a
simulated robot from its readings meets the same noise only where the readings have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from robolearn.core.arrival import resolved
from robolearn.core.env import Env
from robolearn.core.measurable import sources
from robolearn.envs.state import Tensor, quat_multiply
from robolearn.tasks.mdp.observations import Observation
from robolearn.tasks.mdp.sensing import PERFECT, noisy
from robolearn.tasks.mdp.sensors import QUAT, measured

Change = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(reading (N, ...), observation of it (N, D), observation as it should be (N, D)) -> the reading that gives that."""
CLOSE = 1e-3
"""How near an observation must come to what it should be for a change to count as right, as a share of its noise."""
PROBES = 8
"""With how many readings that is tried."""


def added(reading: Tensor, seen: Tensor, wanted: Tensor) -> Tensor:
    """For an observation that is the reading less a constant."""
    return reading + (wanted - seen).view_as(reading)


def turned(quat: Tensor, seen: Tensor, wanted: Tensor) -> Tensor:
    """For a direction of the world in axes of the base, and an orientation (N, 4) as reading: turned as little as
    possible. Only where the noise points counts: no orientation makes a direction longer.

    With R(q)' c = seen, R(q r)' c = R(r)' seen, which is `wanted` for the r that turns `wanted` onto `seen`.
    """
    a, b = (x / x.norm(dim=1, keepdim=True).clamp(min=1e-9) for x in (wanted, seen))
    # The shortest turn of a onto b: (1 + a.b, a x b), of length 1.
    turn = torch.cat((1 + (a * b).sum(dim=1, keepdim=True), torch.linalg.cross(a, b)), dim=1)
    out = quat_multiply(quat, turn / turn.norm(dim=1, keepdim=True).clamp(min=1e-9))
    return out / out.norm(dim=1, keepdim=True)


class NoisyReadings:
    """Readings of an Env's robots from which the observations have the noise that the Env drew: white, slow and bias.

    An item has its noise where it is computed from one sensor and nothing else, and is its reading less a constant, as
    `joint_pos_rel` is, or a direction in axes of the base, as `projected_gravity` is. Of several items of a sensor the
    first has it.
    """

    def __init__(self, env: Env) -> None:
        """With a delay of the whole group, observations are not of the readings of a step, and none has its noise."""
        self.env = env
        self.sensors = {sensor.name: sensor for sensor in env.task.all_sensors()}
        self._changed: dict[str, tuple[Observation, slice, Change]] = {}
        """By sensor: the item whose noise its reading has, its newest sample's columns, and how it gets it."""
        self.left_out: list[str] = []
        """Items whose noise no reading has."""
        if not noisy(env.task):
            return
        of = sources(env.task, env.backend.state, env.ctx, env.num_actions).items
        items = [
            (item, whole)
            for item, (_, whole) in zip(env.task.items("policy"), env.columns["policy"], strict=True)
        ]
        sensing = resolved(env.task.sensing, items, of, list(self.sensors))
        column = 0
        for item, whole in items:
            width = whole // item.history
            # The newest sample is the last of a history.
            part = slice(column + whole - width, column + whole)
            column += whole
            each = sensing.get(item.name, PERFECT)
            size = env.task.noise.get(item.name, 0.0) + each.slow[0] + max(map(abs, each.bias))
            if not size:
                continue
            (name, *others) = of[item.name] or {""}
            plain = not others and name not in self._changed and not max(env.task.observation_delay)
            change = self._change(item, name, size) if plain else None
            if change is None:
                self.left_out.append(item.name)
            else:
                self._changed[name] = item, part, change

    @torch.no_grad()
    def _change(self, item: Observation, name: str, size: float) -> Change | None:
        """How a reading of the sensor `name`, which alone an item is computed from, gets noise of this size; None where
        the item is neither of the two. Tried with readings drawn at random: in a State many things are 0."""
        if name not in self.sensors:
            return None
        sensor = self.sensors[name]
        now = sensor(self.env.backend.state)
        if not now.is_floating_point():
            return None
        random = torch.Generator().manual_seed(0)
        change: Change = turned if name == QUAT else added
        if sensor.unit_length and change is added:
            return None  # what is added would change its length
        for _ in range(PROBES):
            reading = torch.randn(now.shape, generator=random).to(now)
            if sensor.unit_length:
                reading = reading / reading.norm(dim=-1, keepdim=True)
            seen = self._seen(item, {name: reading})
            wanted = seen + size * torch.randn(seen.shape, generator=random).to(seen)
            length = seen.norm(dim=1, keepdim=True)
            if change is turned:
                if seen.shape[1] != 3 or not bool(
                    ((length - length.mean()).abs() < 1e-4 * length.mean()).all()
                ):
                    return None
                wanted = length * wanted / wanted.norm(dim=1, keepdim=True)
            elif seen[0].numel() != reading[0].numel():
                return None
            got = self._seen(item, {name: change(reading, seen, wanted)})
            rounding = 16 * torch.finfo(seen.dtype).eps * (1 + wanted.abs())
            if not bool(((got - wanted).abs() < CLOSE * size + rounding).all()):
                return None
        return change

    def _seen(self, item: Observation, given: dict[str, Tensor]) -> Tensor:
        """An item (N, D) computed from these readings."""
        state = measured(self.env.backend.state, self.sensors.values(), given)
        return item.compute(state, self.env.ctx)

    @torch.no_grad()
    def __call__(self, names: Iterable[str]) -> dict[str, Tensor]:
        """What the robots' computers have of these sensors in this step (N, ...) each, with noise."""
        given = self.env.readings(names)
        observed = self.env.observations["policy"]
        for name, (item, part, change) in self._changed.items():
            if name in given:
                given[name] = change(given[name], self._seen(item, given), observed[:, part])
        return given
