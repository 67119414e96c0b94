"""Parity: compares the outputs of the exported network with those of the trained policy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from robolearn.export.record import Recording
from robolearn.learners.policy import Policy
from robolearn.runtime.errors import NOT_THE_SAME, Refused
from robolearn.runtime.robot import TOLERANCE
from robolearn.runtime.sessions import Session

STRETCH = 3.0
"""Extreme observations: each column alone, and all columns, at this multiple of the largest recorded magnitude."""


@dataclass(frozen=True)
class Parity:
    """Largest differences of actions between the trained and the exported policy, as shares of max(1, largest action of
    the step)."""

    recorded: float
    """Of the recorded observations."""
    zeros: float
    extremes: float
    observations: int
    """Number of recorded observations."""
    resets: int
    """Number of episodes among them."""
    limit: float
    """Largest allowed share."""
    cosine: float
    """Smallest cosine between both actions over the recorded observations."""


@torch.no_grad()
def check_parity(
    policy: Policy, session: Session, recording: Recording, joints: list[str], precision: str
) -> Parity:
    """Compare both policies over every recorded observation, in order with recurrent state, then zeros and extremes.

    Args:
        policy: the trained policy.
        session: the exported network.
        recording: T steps of N robots.
        joints: names of the actions, for messages.
        precision: of the exported network.

    Raises:
        Refused: NOT_THE_SAME where a difference is too large or not finite; the worst output is named.
    """
    limit = TOLERANCE[precision]
    steps, robots = recording.observations.shape[:2]
    exported = np.zeros_like(recording.actions)
    for robot in range(robots):
        state = _zero_state(session)
        for t in range(steps):
            if recording.reset[t, robot]:
                state = _zero_state(session)
            out = session.run({"obs": recording.observations[t, robot][None], **state})
            exported[t, robot] = out["actions"][0]
            state = {name: out[f"{name[:-3]}_out"].copy() for name in state}
    recorded = _compare("recorded observations", recording.actions, exported, limit, joints, precision)

    width = recording.observations.shape[-1]
    zeros = _single(policy, session, np.zeros((1, width), np.float32))
    zero = _compare("observations of zero", *zeros, limit, joints, precision)
    reach = STRETCH * np.abs(recording.observations).max(axis=(0, 1)).clip(min=0.1)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (64, width))
    corners = np.concatenate([np.diag(reach), -np.diag(reach), signs * reach]).astype(np.float32)
    extreme = _compare("extreme observations", *_single(policy, session, corners), limit, joints, precision)

    norms = np.linalg.norm(recording.actions, axis=-1) * np.linalg.norm(exported, axis=-1)
    cosine = (recording.actions * exported).sum(axis=-1) / np.maximum(norms, 1e-12)
    moved = norms > 1e-6
    return Parity(
        recorded, zero, extreme, steps * robots, int(recording.reset.sum()), limit,
        float(cosine[moved].min()) if moved.any() else 1.0,
    )  # fmt: skip


def _zero_state(session: Session) -> dict[str, np.ndarray]:
    return {name: np.zeros(shape, np.float32) for name, shape in session.inputs.items() if name != "obs"}


def _single(policy: Policy, session: Session, observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Actions (M, A) of both policies for observations (M, D), from zero recurrent state."""
    device = next(policy.parameters()).device
    out = policy(torch.from_numpy(observations).to(device), *policy.initial_state(len(observations)))
    trained = out[0] if isinstance(out, tuple) else out
    state = _zero_state(session)
    exported = [session.run({"obs": row[None], **state})["actions"][0].copy() for row in observations]
    return trained.cpu().numpy(), np.stack(exported)


def _compare(
    what: str, trained: np.ndarray, exported: np.ndarray, limit: float, joints: list[str], precision: str
) -> float:
    """Largest difference of actions (..., A), as a share of max(1, largest action of the step).

    Raises:
        Refused: NOT_THE_SAME; it is above `limit`, or not finite.
    """
    error = np.abs(exported - trained).reshape(-1, trained.shape[-1])
    size = np.maximum(1.0, np.abs(trained).max(axis=-1, keepdims=True)).reshape(-1, 1)
    share = np.where(np.isfinite(error), error / size, np.inf)
    row, column = np.unravel_index(int(share.argmax()), share.shape)
    if share[row, column] > limit:
        a, b = (x.reshape(error.shape)[row, column] for x in (trained, exported))
        unsafe = (
            "" if precision == "fp32" else f"{precision} is not safe for this policy, use --precision fp32: "
        )
        raise Refused(
            f"{unsafe}over {what} output {joints[column]} is {b:.6g} in the exported policy and {a:.6g} in the trained "
            f"one; the difference is {share[row, column]:.2g} of the largest action, allowed are {limit:.2g}",
            NOT_THE_SAME,
        )
    return float(share.max())
