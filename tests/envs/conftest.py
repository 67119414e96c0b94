"""Robots as fixtures."""

import pytest

from robolearn.envs import mjcf
from tests.factories import load_robot


@pytest.fixture(scope="module")
def humanoid():
    return load_robot("humanoid")


@pytest.fixture(scope="module")
def model(humanoid):
    return mjcf.build_model(humanoid)


@pytest.fixture(scope="module")
def cartpole():
    return load_robot("cartpole")
