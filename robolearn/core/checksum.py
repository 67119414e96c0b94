"""Checksums of a State: equal bits give equal text."""

from __future__ import annotations

import hashlib

from robolearn.envs.state import State, Tensor


def checksum(state: State) -> str:
    """sha256 of the names, shapes, dtypes and bytes of all tensors of a State."""
    tensors = {"diverged": state.diverged, **{f"params.{k}": v for k, v in state.params.items()}}
    for name, entity in state.entities.items():
        tensors |= {f"{name}.{field}": tensor for field, tensor in entity.tensors().items()}
    digest = hashlib.sha256()
    add_tensors(digest, tensors)
    return digest.hexdigest()


def add_tensors(digest: hashlib._Hash, tensors: dict[str, Tensor]) -> None:
    """Add the names, shapes, dtypes and bytes of tensors to a hash."""
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
