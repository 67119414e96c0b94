"""step_threads: one thread of PyTorch within a step on a CPU, and the number before it afterwards."""

import pytest
import torch

from robolearn.core.threads import ONE_THREAD_ENVS, step_threads


@pytest.fixture(autouse=True)
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("num_envs", "device", "within"),
    [(ONE_THREAD_ENVS, "cpu", 1), (ONE_THREAD_ENVS + 1, "cpu", 3), (1, "cuda", 3)],
)
def test_few_environments_on_a_cpu_take_one_thread_and_the_number_before_comes_back(num_envs, device, within):
    with step_threads(num_envs, torch.device(device)):
        assert torch.get_num_threads() == within
    assert torch.get_num_threads() == 3


def test_the_number_before_comes_back_after_an_error_within_the_step():
    with pytest.raises(ZeroDivisionError), step_threads(1, torch.device("cpu")):
        _ = 1 // 0
    assert torch.get_num_threads() == 3
