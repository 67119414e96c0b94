"""Envs on a CPU that behave as on a GPU: errors are raised only by `Env.check`, and `numpy` needs `cpu` first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch

from robolearn import config
from robolearn.core.env import Env
from robolearn.training.build import make_env


def unread(env: Env) -> Env:
    """Make `env` raise errors only in `check`, as on a GPU, and return it."""
    env.read_at_once = env._finite.at_once = False
    if hasattr(env.backend, "read_at_once"):
        env.backend.read_at_once = False
    return env


def warp_env(task: str, num_envs: int, *settings: str) -> Env:
    """An `unread` Env on mujoco_warp; skips the test if that is not installed."""
    pytest.importorskip("mujoco_warp")
    words = [f"task={task}", "backend=mujoco_warp", "device=cpu", f"num_envs={num_envs}", *settings]
    return unread(make_env(config.resolve(words)))


@contextmanager
def no_numpy_before_cpu() -> Iterator[None]:
    """Make `numpy` of a tensor raise, as on a GPU, unless the tensor comes from `cpu`."""
    cpu, numpy = torch.Tensor.cpu, torch.Tensor.numpy

    def fetch(self: torch.Tensor) -> torch.Tensor:
        out: Any = cpu(self).clone()
        out.fetched = True
        return out

    def read(self: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        if not getattr(self, "fetched", False):
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()")
        return numpy(self, *arguments, **named)

    with mock.patch.object(torch.Tensor, "cpu", fetch), mock.patch.object(torch.Tensor, "numpy", read):
        yield
