"""Names a rank that takes longer than the others, which wait for it in every exchange."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from robolearn.core.timers import PHASES

SLOW = 1.3
"""A rank is slow that takes longer than this many times the median of all."""
WINDOW = 20
"""Iterations that are looked at, and between two looks."""


class Slow:
    """Times of every rank; `mine` and `found` are called once an iteration on each."""

    def __init__(self, hosts: Sequence[str], rank: int) -> None:
        """`hosts` are the machines of the ranks."""
        self.hosts, self.rank = hosts, rank
        self._past: deque[list[list[float]]] = deque(maxlen=WINDOW)
        self._quiet = 0
        self._state = (0.0, 0.0)

    def mine(self, seconds: Mapping[str, float], waited: float) -> list[float]:
        """What this rank tells of an iteration: its time without waiting for others, waiting, each phase [s]; clock
        [GHz] and temperature [degrees Celsius] of the processor, 0 where the system does not tell."""
        if len(self._past) == WINDOW - 1:
            self._state = clock(), temperature()
        return [seconds["total"] - waited, waited, *(seconds.get(name, 0.0) for name in PHASES), *self._state]

    def found(self, ranks: list[list[float]]) -> tuple[dict[str, float], str | None]:
        """Numbers for the log, and a line about a rank that is slow: at most one in WINDOW iterations."""
        if len(ranks) == 1:
            return {}, None
        self._past.append(ranks)
        row: dict[str, float] = {}
        for rank, (_, waited, *phases) in enumerate(ranks):
            row |= {f"rank{rank}/{name}": value for name, value in zip(PHASES, phases, strict=False)}
            row[f"rank{rank}/waiting"] = waited
        self._quiet -= 1
        if len(self._past) < WINDOW or self._quiet > 0:
            return row, None
        means = [
            [statistics.fmean(column) for column in zip(*(each[rank] for each in self._past), strict=True)]
            for rank in range(len(ranks))
        ]
        own = [mean[0] for mean in means]
        slowest, usual = max(range(len(own)), key=own.__getitem__), statistics.median(own)
        if own[slowest] < SLOW * usual:
            return row, None
        self._quiet = 5 * WINDOW
        phase = max(
            range(len(PHASES)),
            key=lambda i: means[slowest][2 + i] - statistics.median(m[2 + i] for m in means),
        )
        ghz, degrees = ranks[slowest][-2:]
        told = [f"{ghz:.1f} GHz" if ghz else "", f"{degrees:.0f} °C" if degrees else ""]
        beside = ", ".join(part for part in told if part)
        return row, (
            f"rank {slowest} on {self.hosts[slowest]} takes {own[slowest] / usual:.1f} times as long as the others "
            f"({PHASES[phase]} {means[slowest][2 + phase]:.2f} s, median "
            f"{statistics.median(m[2 + phase] for m in means):.2f} s{'; its processor: ' + beside if beside else ''}); "
            "they wait for it"
        )


def clock() -> float:
    """Mean clock of the processor's cores [GHz]; 0 where the system does not tell."""
    found = [_number(path) for path in Path("/sys/devices/system/cpu").glob("cpu*/cpufreq/scaling_cur_freq")]
    if any(found):
        return statistics.fmean(found) / 1e6
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.exists() else []
    mhz = [float(line.rpartition(":")[2]) for line in lines if line.startswith("cpu MHz")]
    return statistics.fmean(mhz) / 1e3 if mhz else 0.0


def temperature() -> float:
    """Highest temperature that the system tells [degrees Celsius]; 0 where it tells none."""
    return max((_number(p) / 1e3 for p in Path("/sys/class/thermal").glob("thermal_zone*/temp")), default=0.0)


def _number(path: Path) -> float:
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return 0.0
