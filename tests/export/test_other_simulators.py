"""`export --require-sim2sim`."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from robolearn.cli import main
from robolearn.export import other_simulators
from robolearn.runtime.bundle import Bundle
from robolearn.runtime.errors import NOT_THE_SAME, Refused
from tests.factories import INSTALLED
from tests.simulation.test_sim2sim import side

QUICK = ["--starts", "4", "--seconds", "0.2", "--measure-seconds", "0", "task.episode_length_s=0.4"]


@pytest.mark.skipif("mujoco_warp" not in INSTALLED, reason="MuJoCo Warp is not installed")
def test_a_bundle_of_a_policy_that_survives_elsewhere_says_so_and_holds_the_comparison(
    trained, tmp_path, capsys
) -> None:
    out = tmp_path / "bundle"
    assert main(["export", str(trained), "--require-sim2sim", "0.9", "--output", str(out), *QUICK]) == 0
    assert "% of 4 episodes survive" in " ".join(capsys.readouterr().out.split())
    found = json.loads((out / "sim2sim.json").read_text())
    assert found["comparisons"]["mujoco_warp"]["survival_share"] == 1.0
    assert "Does it work in other simulators?" in (out / "REPORT.md").read_text()
    assert "sim2sim.json" in Bundle.load(out).manifest["files"]


@pytest.mark.parametrize(
    ("survived", "required", "refused"), [(3, 0.9, False), (2, 0.9, True), (2, 0.6, False)]
)
def test_survival_in_the_worst_simulator_is_required_as_a_share(
    monkeypatch, survived, required, refused
) -> None:
    """Three of four survive at home, and `survived` of four elsewhere: shares 1 and 2/3."""

    def simulated(request) -> object:
        made = side("mujoco")
        if "backend=mujoco" in request.words:
            return made
        values = np.array([1.0] * survived + [0.0] * (4 - survived))
        return replace(side("mujoco_warp"), episodes={**made.episodes, "survival": values, "return": values})

    at_home = {"return": np.zeros(4)}
    monkeypatch.setattr(
        other_simulators,
        "simulate",
        lambda request: replace(found := simulated(request), episodes={**at_home, **found.episodes}),  # type: ignore[type-var, attr-defined]
    )
    entries = {name: SimpleNamespace(hint="") for name in ("mujoco", "mujoco_warp")}
    monkeypatch.setattr(other_simulators.registry, "entries", lambda kind: entries)
    request = SimpleNamespace(require_sim2sim=required, starts=4, overrides=())
    found = SimpleNamespace(name="run", config=SimpleNamespace(backend_name="mujoco"))
    checked = SimpleNamespace(request=request, found=found)
    lines: list[tuple[str, ...]] = []
    if refused:
        with pytest.raises(Refused) as caught:
            other_simulators.other_simulators(checked, lambda *words: lines.append(words))  # type: ignore[arg-type]
        assert caught.value.code == NOT_THE_SAME
        assert "mujoco_warp" in str(caught.value)
    else:
        comparisons, _ = other_simulators.other_simulators(checked, lambda *words: lines.append(words))  # type: ignore[arg-type]
        assert comparisons[0].survival == pytest.approx(survived / 3)


def test_a_share_outside_0_to_1_is_refused_by_name(trained, capsys) -> None:
    assert main(["export", str(trained), "--require-sim2sim", "1.5"]) == 2
    assert "--require-sim2sim" in capsys.readouterr().err.replace("'", "")
