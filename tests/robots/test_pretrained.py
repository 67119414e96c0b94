"""The pretrained policies of robots of other packages: each walks and survives pushes; `make robots`."""

import pytest

from robolearn.config import catalog
from tests.training.test_pretrained import OF_OTHER_PACKAGES, require_walking_under_pushes, robot_of


@pytest.mark.parametrize("name", OF_OTHER_PACKAGES)
def test_a_shipped_policy_of_an_installed_robot_walks_and_survives_pushes(name, tmp_path):
    robot = robot_of(name)
    if catalog.find(robot) is None:
        pytest.skip(f"{robot} {catalog.hint(robot)}")
    require_walking_under_pushes(name, "mujoco", tmp_path)
