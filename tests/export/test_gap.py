"""The arithmetic of parity and closed loop, with numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from robolearn.export.closed_loop import Gap, gap_between, student_t_975
from robolearn.export.onnx.parity import check_parity
from robolearn.export.record import Recording
from robolearn.runtime.errors import Refused


def gap(trained, shipped, seconds=10.0) -> Gap:
    up = np.ones(len(trained), bool)
    return gap_between(np.array(trained, float), np.array(shipped, float), up, up, seconds, 20.0)


def test_a_gap_is_a_share_of_the_mean_return_with_students_interval():
    # Differences 0, 1, 1, 2: mean 1, standard deviation sqrt(2/3); of a mean return of 100.
    found = gap([99, 101, 99, 101], [99, 102, 100, 103])
    assert found.mean == pytest.approx(0.01)
    half = 3.182 * (2 / 3) ** 0.5 / 2 / 100
    assert (found.low, found.high) == pytest.approx((0.01 - half, 0.01 + half), abs=2e-5)
    assert found.of == "of the trained policy's"


def test_the_whole_interval_must_lie_inside_not_only_the_mean():
    assert gap([100] * 4, [100.5] * 4).inside  # always half a per cent better
    wide = gap([100] * 4, [90, 110, 90, 110])
    assert wide.mean == pytest.approx(0)
    assert not wide.inside
    assert not gap([100] * 4, [98.9] * 4).inside


def test_returns_around_zero_are_compared_with_their_spread():
    found = gap([-100, 100, -100, 100], [-99, 101, -99, 101])
    assert found.mean == pytest.approx(0.01)
    assert "spread" in str(found)


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(3, 3.182), (7, 2.365), (15, 2.131), (31, 2.040), (511, 1.965)]
)
def test_students_quantiles_equal_published_tables(freedom, quantile):
    assert student_t_975(freedom) == pytest.approx(quantile, abs=4e-3)


def test_thorough_means_512_starts_of_10_s():
    few, many = [1.0] * 8, [1.0] * 512
    assert not gap(few, few).thorough
    assert gap(many, many).thorough
    assert not gap(many, many, seconds=2.0).thorough


class Linear:
    """A network whose first action is the sum of the observation, plus `bend(obs)`."""

    name, state_names = "linear", ()
    inputs, outputs = {"obs": (1, 2)}, {"actions": (1, 2)}

    def __init__(self, bend=lambda obs: 0.0):
        self.bend = bend

    def run(self, feeds):
        obs = feeds["obs"]
        return {"actions": np.array([[obs.sum() + self.bend(obs), 0.5]], np.float32)}

    def __call__(self, obs):
        import torch

        return torch.stack((obs.sum(dim=1), torch.full((len(obs),), 0.5)), dim=1)

    def initial_state(self, num_envs):
        return ()

    def parameters(self):
        import torch

        yield torch.zeros(1)


def recording() -> Recording:
    observations = np.random.default_rng(0).uniform(-1, 1, (20, 2, 2)).astype(np.float32)
    actions = np.stack((observations.sum(axis=-1), np.full((20, 2), 0.5)), axis=-1).astype(np.float32)
    reset = np.zeros((20, 2), bool)
    reset[0] = True
    return Recording({}, reset, observations, actions, actions, pushed=reset)


def parity(session: Linear):
    return check_parity(Linear(), session, recording(), ["hip", "knee"], "fp32")


def test_parity_is_a_share_of_the_largest_action_but_of_at_least_1():
    found = parity(Linear(lambda obs: 5e-6))
    assert found.recorded == pytest.approx(5e-6, rel=0.2)
    assert found.zeros == pytest.approx(5e-6, rel=0.01)
    assert (found.observations, found.resets) == (40, 2)


def test_a_difference_only_at_extreme_observations_is_refused():
    """Each column alone is tested at three times its largest value, with both signs."""
    with pytest.raises(Refused, match="extreme observations output hip is"):
        parity(Linear(lambda obs: 1.0 if obs[0, 1] < -2 else 0.0))


def test_a_difference_only_at_zero_is_refused():
    with pytest.raises(Refused, match="observations of zero output hip is"):
        parity(Linear(lambda obs: 1e-4 if not obs.any() else 0.0))


def test_an_output_that_is_not_finite_is_refused():
    with pytest.raises(Refused, match="output hip is nan"):
        parity(Linear(lambda obs: np.nan))
