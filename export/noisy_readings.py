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
from robolearn.tasks.mdp.sensing import noisy
from robolearn.tasks.mdp.sensors import Sensor, measured

Change = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(reading (N, ...), observation of it (N, D), observation as it should be (N, D)) -> the reading that gives that."""
CLOSE = 1e-4
"""How near an observation must come to what it should be, as a share of its noise, for a change to count as right."""


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

    An item has its noise where it is computed from one sensor alone, and is its reading less a constant, as
    `joint_pos_rel` is, or a direction in axes of the base, as `projected_gravity` is. Of several items of a sensor the
    first has it.
    """

    def __init__(self, env: Env) -> None:
        """`env` has no delay of the whole group of observations."""
        self.env = env
        self.sensors = {sensor.name: sensor for sensor in env.task.all_sensors()}
        self._changed: list[tuple[Observation, str, slice, Change]] = []
        self.left_out: list[str] = []
        """Items whose noise no reading can have."""
        if not noisy(env.task):
            return
        of = sources(env.task, env.backend.state, env.ctx, env.num_actions).items
        items = [
            (item, whole)
            for item, (_, whole) in zip(env.task.items("policy"), env.columns["policy"], strict=True)
        ]
        sensing = resolved(env.task.sensing, items, of, list(self.sensors))
        uneven = {name for name, each in sensing.items() if {"slow", "bias"} & set(each.stated())}
        white = {name for name, half_width in env.task.noise.items() if half_width}
        column, taken = 0, set[str]()
        for item, whole in items:
            width = whole // item.history
            # The newest sample is the last of a history.
            part = slice(column + whole - width, column + whole)
            column += whole
            if item.name not in uneven | white:
                continue
            found = self._change(item, of[item.name] - taken)
            if found is None:
                self.left_out.append(item.name)
            else:
                taken.add(found[0])
                self._changed.append((item, found[0], part, found[1]))

    def _change(self, item: Observation, of: Iterable[str]) -> tuple[str, Change] | None:
        """The one sensor that an item is computed from, and how its reading is changed; None where that is neither of
        the two ways."""
        names = [name for name in of if name in self.sensors]
        if len(names) != 1:
            return None
        sensor, env = self.sensors[names[0]], self.env
        reading = sensor(env.backend.state)
        seen = self._seen(item, {sensor.name: reading})
        if not reading.is_floating_point():
            return None
        generator = torch.Generator().manual_seed(0)
        noise = 0.1 * torch.randn(seen.shape, generator=generator).to(seen)
        for change, fits in (
            (added, seen[0].numel() == reading[0].numel()),
            (turned, self._is_turn(sensor, seen)),
        ):
            if not fits:
                continue
            wanted = seen + noise
            if change is turned:
                wanted = seen.norm(dim=1, keepdim=True) * wanted / wanted.norm(dim=1, keepdim=True)
            got = self._seen(item, {sensor.name: change(reading, seen, wanted)})
            if bool(((got - wanted).abs() < CLOSE).all()):
                return sensor.name, change
        return None

    @staticmethod
    def _is_turn(sensor: Sensor, seen: Tensor) -> bool:
        return sensor.name == "quat" and seen.shape[1] == 3

    def _seen(self, item: Observation, given: dict[str, Tensor]) -> Tensor:
        """An item (N, D) computed from these readings."""
        state = measured(self.env.backend.state, self.sensors.values(), given)
        return item.compute(state, self.env.ctx)

    @torch.no_grad()
    def __call__(self, names: Iterable[str]) -> dict[str, Tensor]:
        """What the robots' computers have of these sensors in this step (N, ...) each, with noise."""
        given = self.env.readings(names)
        observed = self.env.observations["policy"]
        for item, name, part, change in self._changed:
            if name in given:
                given[name] = change(given[name], self._seen(item, given), observed[:, part])
        return given
