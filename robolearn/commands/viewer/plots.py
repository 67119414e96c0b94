"""Live plots: reward terms, observations, torques, and joint targets against positions of the robot that is shown."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from robolearn.core.env import Env

if TYPE_CHECKING:
    import viser

COLOURS = (
    "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b",
    "#e377c2", "#7f7f7f", "#bcbd22", "#17becf", "#393b79", "#ad494a",
)  # fmt: skip
SECONDS = 5.0
"""How much of the past a plot shows [s]."""
POINTS = 250
"""Most points of a curve that are sent to the browser."""
HEIGHT = 190
EVERY = "all"


class History:
    """The last SECONDS of named numbers, by the simulated time."""

    def __init__(self, dt: float) -> None:
        self.rows: deque[tuple[float, dict[str, np.ndarray]]] = deque(maxlen=max(2, round(SECONDS / dt) + 1))

    def add(self, time: float, values: dict[str, np.ndarray]) -> None:
        """Add the values of one control step, an array for each kind."""
        self.rows.append((time, values))

    def clear(self) -> None:
        """Forget everything."""
        self.rows.clear()

    def curves(self, kind: str, columns: Sequence[int]) -> tuple[np.ndarray, ...]:
        """Times before now [s] and one curve for each of the `columns` of a kind, as many points as are sent."""
        rows = list(self.rows)
        rows = rows[:: -max(1, -(-len(rows) // POINTS))][::-1]  # with the newest
        if len(rows) < 2:  # a plot without points has no axes
            return (np.array([-SECONDS, 0.0]), *(np.zeros(2) for _ in columns))
        table = np.array([values[kind][list(columns)] for _, values in rows], np.float64)
        return (np.array([time for time, _ in rows]) - rows[-1][0], *table.T.copy())


class Probe:
    """Reads the numbers that are plotted from an Env."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self.terms = env.task.reward_terms()
        stated = env.task.reward_weights()
        self.weights = [float(stated[name]) for name in self.terms]
        joints = [actuator.joint for actuator in env.robot.actuators]
        self.kinds = [actuator.kind for actuator in env.robot.actuators]
        self._places = [env.robot.joints.index(joint) for joint in joints]
        self.names: dict[str, list[str]] = {
            "reward": list(self.terms),
            "torque": list(env.robot.joints),
            "target": joints,
            "position": joints,
        }
        """Names of the columns of each kind."""
        self.items: dict[str, tuple[str, list[int]]] = {}
        """(group, columns in it) of each observation item, by the name shown."""
        for group, items in env.columns.items():
            begin = 0
            for item, width in items:
                label = item.name if group == "policy" else f"{group}: {item.name}"
                columns = list(range(begin, begin + width))
                known = self.items.setdefault(label, (group, []))
                known[1].extend(columns)
                begin += width
            self.names[group] = [f"{item.name} {i}" for item, width in items for i in range(width)]

    @torch.no_grad()
    def read(self, robot: int) -> dict[str, np.ndarray]:
        """The numbers of one robot after a step. Rewards are weighted, in reward per second, and of the State after the
        step: where an episode has just ended, of the first one of the next."""
        env = self.env
        state, ctx = env.backend.state, env.ctx
        rewards = [
            weight * float(term(state, ctx)[robot].float())
            for weight, term in zip(self.weights, self.terms.values(), strict=True)
        ]
        out = {
            "reward": np.array(rewards, np.float64),
            "torque": _row(state.robot.joint_torque, robot),
            "target": _row(env.state.transit["joint_targets"], robot),
            "position": _row(state.robot.joint_pos, robot)[self._places],
        }
        out |= {group: _row(values, robot) for group, values in env.observations.items()}
        return out


class Plots:
    """The plots in the current container of the panel."""

    def __init__(self, server: viser.ViserServer, probe: Probe, history: History) -> None:
        self.server, self.probe, self.history = server, probe, history
        self._drawn: list[Callable[[], None]] = []
        self.charts: dict[str, Any] = {}
        """The charts by what they show."""
        gui, names = server.gui, probe.names
        with gui.add_folder("Rewards", expand_by_default=True):
            self._one("reward", "Term", names["reward"], "reward [1/s]")
        with gui.add_folder("Joint: target and position", expand_by_default=True):
            self._joint()
        with gui.add_folder("Torques", expand_by_default=False):
            self._one("torque", "Joint", names["torque"], "Nm or N")
        with gui.add_folder("Observations", expand_by_default=False):
            self._observations()

    def update(self) -> None:
        """Send the newest curves."""
        with self.server.atomic():
            for draw in self._drawn:
                draw()

    def _chart(self, key: str, labels: Callable[[], list[str]], curves: Callable[[], Any], unit: str) -> None:
        shown = labels()
        chart = self.server.gui.add_uplot(
            curves(),
            _series(shown),
            height=HEIGHT,
            axes=({}, {"label": unit, "labelSize": 20, "size": 48}),
            scales={"x": {"time": False, "range": (-SECONDS, 0.0)}},
            legend={"show": True, "live": False},
            cursor={"show": False},
        )
        self.charts[key] = chart

        def draw() -> None:
            nonlocal shown
            if labels() != shown:
                shown = labels()
                chart.series = _series(shown)
            chart.data = curves()

        self._drawn.append(draw)

    def _one(self, kind: str, label: str, names: list[str], unit: str) -> None:
        chosen = self.server.gui.add_dropdown(label, (EVERY, *names), initial_value=EVERY)

        def columns() -> list[int]:
            first = list(range(min(len(names), len(COLOURS))))
            return first if chosen.value == EVERY else [names.index(chosen.value)]

        self._chart(
            kind,
            lambda: [names[i] for i in columns()],
            lambda: self.history.curves(kind, columns()),
            unit,
        )

    def _observations(self) -> None:
        gui, items = self.server.gui, self.probe.items
        chosen = gui.add_dropdown("Item", tuple(items))
        column: Any = gui.add_dropdown("Column", (EVERY, *self._columns_of(chosen.value)))

        @chosen.on_update
        def _(event: Any) -> None:
            column.value = EVERY
            column.options = (EVERY, *self._columns_of(chosen.value))

        def columns() -> list[int]:
            names, asked = self._columns_of(chosen.value), column.value
            return [names.index(asked)] if asked in names else list(range(len(names)))[: len(COLOURS)]

        def labels() -> list[str]:
            names = self._columns_of(chosen.value)
            return [names[i] for i in columns()]

        def curves() -> tuple[np.ndarray, ...]:
            group, places = items[chosen.value]
            return self.history.curves(group, [places[i] for i in columns()])

        self._chart("observation", labels, curves, "value")

    def _columns_of(self, item: str) -> list[str]:
        """Names of an observation item's columns: the joints where there is one for each, else numbers."""
        width = len(self.probe.items[item][1])
        for names in (self.probe.names["torque"], self.probe.names["target"]):
            if width == len(names) and width > 1:
                return names
        return [str(i) for i in range(width)]

    def _joint(self) -> None:
        names = self.probe.names["target"]
        chosen = self.server.gui.add_dropdown("Joint", tuple(names))

        def labels() -> list[str]:
            force = self.probe.kinds[names.index(chosen.value)] == "force"
            return ["force asked for [Nm or N]" if force else "target", "position"]

        def curves() -> tuple[np.ndarray, ...]:
            i = names.index(chosen.value)
            times, target = self.history.curves("target", [i])
            return times, target, self.history.curves("position", [i])[1]

        self._chart("joint", labels, curves, "rad or m")


def _series(labels: Sequence[str]) -> tuple[Any, ...]:
    curves = [
        {"label": label, "stroke": COLOURS[i % len(COLOURS)], "width": 1.5, "points": {"show": False}}
        for i, label in enumerate(labels)
    ]
    return ({"label": "s"}, *curves)


def _row(values: torch.Tensor, robot: int) -> np.ndarray:
    return values[robot].detach().float().cpu().numpy().copy()
