"""Parity: the exported network against the one that was trained, number by number."""

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
"""Extremes: each column alone, and all at once, at so many times the largest magnitude that was recorded."""


@dataclass(frozen=True)
class Parity:
    """Largest differences between the trained policy and the exported one, each as a share of the largest action of
    its step, or of 1 where that is smaller."""

    recorded: float
    """Over the recorded observations."""
    zeros: float
    extremes: float
    observations: int
    """How many were recorded."""
    resets: int
    """How often an episode began among them."""
    limit: float
    """What is allowed, as the same share."""
    cosine: float
    """Smallest cosine between the two actions over the recorded observations."""


@torch.no_grad()
def check_parity(
    policy: Policy, session: Session, recording: Recording, joints: list[str], precision: str
) -> Parity:
    """Run every recorded observation through both, each robot's in order, with memory where the policy has one; then
    zeros and extremes.

    Args:
        policy: what was trained.
        session: what was exported, loaded.
        recording: T steps of N robots.
        joints: names of the actions, for messages.
        precision: of the exported network.

    Raises:
        Refused: a difference is too large, or an output not finite; the worst output is named.
    """
    limit = TOLERANCE[precision]
    steps, robots = recording.observations.shape[:2]
    theirs = np.zeros_like(recording.actions)
    for robot in range(robots):
        memory = _empty(session)
        for t in range(steps):
            if recording.reset[t, robot]:
                memory = _empty(session)
            out = session.run({"obs": recording.observations[t, robot][None], **memory})
            theirs[t, robot] = out["actions"][0]
            memory = {name: out[f"{name[:-3]}_out"].copy() for name in memory}
    recorded = _compare("recorded observations", recording.actions, theirs, limit, joints, precision)

    width = recording.observations.shape[-1]
    zeros = _single(policy, session, np.zeros((1, width), np.float32))
    zero = _compare("observations of zero", *zeros, limit, joints, precision)
    reach = STRETCH * np.abs(recording.observations).max(axis=(0, 1)).clip(min=0.1)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (64, width))
    corners = np.concatenate([np.diag(reach), -np.diag(reach), signs * reach]).astype(np.float32)
    extreme = _compare("extreme observations", *_single(policy, session, corners), limit, joints, precision)

    norms = np.linalg.norm(recording.actions, axis=-1) * np.linalg.norm(theirs, axis=-1)
    cosine = (recording.actions * theirs).sum(axis=-1) / np.maximum(norms, 1e-12)
    moved = norms > 1e-6
    return Parity(
        recorded, zero, extreme, steps * robots, int(recording.reset.sum()), limit,
        float(cosine[moved].min()) if moved.any() else 1.0,
    )  # fmt: skip


def _empty(session: Session) -> dict[str, np.ndarray]:
    return {name: np.zeros(shape, np.float32) for name, shape in session.inputs.items() if name != "obs"}


def _single(policy: Policy, session: Session, observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Actions (M, A) of both for observations (M, D), nothing remembered."""
    device = next(policy.parameters()).device
    out = policy(torch.from_numpy(observations).to(device), *policy.initial_state(len(observations)))
    ours = out[0] if isinstance(out, tuple) else out
    memory = _empty(session)
    theirs = [session.run({"obs": row[None], **memory})["actions"][0].copy() for row in observations]
    return ours.cpu().numpy(), np.stack(theirs)


def _compare(
    what: str, ours: np.ndarray, theirs: np.ndarray, limit: float, joints: list[str], precision: str
) -> float:
    """The largest difference of actions (..., A), as a share of max(1, the largest action of its step).

    Raises:
        Refused: it is above `limit`, or not finite.
    """
    error = np.abs(theirs - ours).reshape(-1, ours.shape[-1])
    size = np.maximum(1.0, np.abs(ours).max(axis=-1, keepdims=True)).reshape(-1, 1)
    share = np.where(np.isfinite(error), error / size, np.inf)
    row, column = np.unravel_index(int(share.argmax()), share.shape)
    if share[row, column] > limit:
        a, b = (x.reshape(error.shape)[row, column] for x in (ours, theirs))
        unsafe = (
            "" if precision == "fp32" else f"{precision} is not safe for this policy, use --precision fp32: "
        )
        raise Refused(
            f"{unsafe}over {what} the exported policy's output {joints[column]} is {b:.6g} and the trained one's "
            f"{a:.6g}; the difference is {share[row, column]:.2g} of the largest action, allowed is {limit:.2g}",
            NOT_THE_SAME,
        )
    return float(share.max())
