"""Signatures: who exported a bundle, for those who must also exclude a forgery that is consistent in itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from robolearn.runtime.errors import BAD_INPUT, NOT_HERE, Refused
from robolearn.runtime.files import read

SIGNATURE = "manifest.sig"
"""File with the ed25519 signature (64 bytes) of manifest.json, which holds the hash of every other file."""


def sign(folder: Path, key: Path) -> None:
    """Sign a bundle with an ed25519 private key in PEM, without a password.

    Raises:
        Refused: BAD_INPUT for a key that cannot be used, NOT_HERE without the package `cryptography`.
    """
    (folder / SIGNATURE).write_bytes(private_key(key).sign((folder / "manifest.json").read_bytes()))


def private_key(path: Path) -> Any:
    """The private key in a PEM file.

    Raises:
        Refused: see `sign`.
    """
    serialization, ed25519 = _cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        key = serialization.load_pem_private_key(_pem(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise Refused(f"{path} is no private key without a password: {error!s:.100}", BAD_INPUT) from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise Refused(f"{path} is no ed25519 key; make one: openssl genpkey -algorithm ed25519", BAD_INPUT)
    return key


def require_signed(folder: Path, key: Path) -> None:
    """Refuse a bundle that was not signed with the private key of `key`, a public ed25519 key in PEM.

    Raises:
        Refused: BAD_INPUT for a key that cannot be used, no signature or a wrong one, NOT_HERE without `cryptography`.
    """
    serialization, ed25519 = _cryptography()
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

    try:
        public = serialization.load_pem_public_key(_pem(key))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise Refused(f"{key} is no public key in PEM: {error!s:.100}", BAD_INPUT) from None
    if not isinstance(public, ed25519.Ed25519PublicKey):
        raise Refused(f"{key} is no public ed25519 key", BAD_INPUT)
    if not (folder / SIGNATURE).exists():
        raise Refused(f"the bundle is not signed: {SIGNATURE} is missing; export it with --sign", BAD_INPUT)
    try:
        public.verify(read(folder / SIGNATURE, 1 << 10), read(folder / "manifest.json"))
    except InvalidSignature:
        raise Refused(
            f"{SIGNATURE} is not a signature of manifest.json with the key of {key.name}", BAD_INPUT
        ) from None


def _pem(path: Path) -> bytes:
    return read(path, 1 << 16, missing=f"there is no key {path}")


def _cryptography() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise Refused(
            "signatures need the package cryptography: pip install cryptography", NOT_HERE
        ) from None
    return serialization, ed25519
