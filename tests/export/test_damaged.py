"""Bundles that are damaged in every way: one line, exit code 2, within bounded memory and time."""

from __future__ import annotations

import copy
import io
import json
import os
import random
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from robolearn.cli import main
from robolearn.runtime import main as commands
from robolearn.runtime.bundle import Bundle
from robolearn.runtime.errors import BAD_INPUT, Refused
from robolearn.runtime.files import sha256_of
from robolearn.runtime.main import open_session
from robolearn.runtime.robot import Runtime

WRONG = [
    None, "", "x", "\x00", "a" * 5000, -1, 0, 1, 2**31, 10**400, -(10**30), 0.5, -1e308, float("nan"), float("inf"),
    True, [], {}, [[]], [None], {"": None}, [1, "a"], "../..", "/etc/passwd", 1e-320,
]  # fmt: skip
"""What an entry may be replaced by."""


def paths(tree, at=()):
    """Where each entry of a JSON document is."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*at, key)
        yield from paths(value, (*at, key))


def damaged(manifest, draw):
    """A copy with one entry replaced, removed, doubled or swapped with another one."""
    found = copy.deepcopy(manifest)
    places = [p for p in paths(found) if p[0] not in ("schema", "files", "run", "made_by")]
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        path = draw.choice(places)
        parent = found
        try:
            for key in path[:-1]:
                parent = parent[key]
            way = draw.randrange(6)
            if way == 0 and isinstance(parent, (dict, list)):
                del parent[path[-1]]
            elif way == 1 and isinstance(parent, list):
                parent.append(parent[path[-1]])
            elif way == 2 and isinstance(parent, list):
                parent.reverse()
            else:
                parent[path[-1]] = copy.deepcopy(draw.choice(WRONG))
        except (KeyError, IndexError, TypeError):
            continue  # removed with its parent
    return found


def forged(folder: Path, manifest: dict) -> None:
    """Write a manifest and a recording with the hashes and the copy that fit it."""
    with zipfile.ZipFile(folder / "golden.npz") as old:
        arrays = {name: old.read(name) for name in old.namelist() if name != "manifest.npy"}
    golden = manifest.get("golden")
    if isinstance(golden, dict):
        golden["sha256"] = ""
    text = io.BytesIO()
    np.save(text, np.array(json.dumps(manifest)))
    with zipfile.ZipFile(folder / "golden.npz", "w") as new:
        for name, content in {**arrays, "manifest.npy": text.getvalue()}.items():
            new.writestr(name, content)
    if isinstance(golden, dict):
        golden["sha256"] = sha256_of(folder / "golden.npz")
    (folder / "manifest.json").write_text(json.dumps(manifest))


def rehash(folder: Path) -> None:
    """Give the manifest the hash of the recording."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["golden"]["sha256"] = sha256_of(folder / "golden.npz")
    (folder / "manifest.json").write_text(json.dumps(manifest))


def tried(folder: Path) -> str:
    """What is said of a bundle, or an empty string where it is sound."""
    refused = None
    try:
        bundle = Bundle.load(folder)
        Runtime(bundle, open_session(bundle, "onnxruntime"))
    except Refused as refusal:
        refused = refusal
    if refused is None:
        return ""
    assert refused.code in (2, 3, 5)
    assert len(str(refused)) < 1500
    return str(refused)


@pytest.mark.slow
def test_1500_manifests_damaged_consistently_are_refused_or_sound(bundle):
    draw = random.Random(0)
    manifest = json.loads((bundle / "manifest.json").read_text())
    said = []
    for _ in range(1500):
        forged(bundle, damaged(manifest, draw))
        said.append(tried(bundle))
    refused = [line for line in said if line]
    assert len(refused) > 900
    assert all("\n" not in line for line in refused)


@pytest.mark.parametrize("value", WRONG, ids=range(len(WRONG)))
@pytest.mark.parametrize(
    "entry", ["contract", "controller", "golden", "files", "state", "sensors", "command_ranges"]
)
def test_a_part_of_the_manifest_of_another_kind_is_code_2(entry, value, bundle):
    manifest = json.loads((bundle / "manifest.json").read_text())
    forged(bundle, manifest | {entry: copy.deepcopy(value)})
    assert tried(bundle) or (entry, value) in (("files", {}), ("command_ranges", {}))


SMALL = "import resource; resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))\n"


def check(folder: Path) -> tuple[int, str]:
    """Exit code and stderr of `runtime.py check`, in 3 GiB and 60 s."""
    script = SMALL + (
        "import sys; from robolearn.runtime.main import main\n"
        f"sys.exit(main(['--bundle', {str(folder)!r}, 'check']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stderr


def test_a_manifest_that_is_a_pipe_a_device_or_a_folder_is_code_2(bundle):
    path = bundle / "manifest.json"
    path.unlink()
    os.mkfifo(path)
    assert check(bundle) == (2, "runtime.py: manifest.json is not a plain file\n")
    path.unlink()
    path.symlink_to("/dev/zero")
    assert check(bundle) == (2, "runtime.py: manifest.json is not a plain file\n")
    path.unlink()
    path.mkdir()
    code, said = check(bundle)
    assert (code, said.count("\n")) == (2, 1), said


def test_a_recording_that_claims_terabytes_is_code_2(bundle):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"shape": (10**13,), "fortran_order": False, "descr": "<f8"})
    with zipfile.ZipFile(bundle / "golden.npz", "a") as file:
        file.writestr("huge.npy", header.getvalue())
    rehash(bundle)
    code, said = check(bundle)
    assert (code, "claims 80000000000000 bytes" in said) == (2, True), said


def test_a_zip_bomb_is_code_2(bundle):
    with (
        zipfile.ZipFile(bundle / "golden.npz", "w", zipfile.ZIP_DEFLATED) as file,
        file.open("bomb.npy", "w", force_zip64=True) as member,
    ):
        for _ in range(600):
            member.write(bytes(1 << 20))
    rehash(bundle)
    code, said = check(bundle)
    assert (code, "would take 600 MiB" in said) == (2, True), said


def test_an_overlong_name_is_code_2(bundle):
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["golden"]["file"] = "a" * 5000
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    code, said = check(bundle)
    assert (code, said.count("\n"), len(said) < 300) == (2, 1, True), said
    assert commands.main(["--bundle", "b" * 5000, "check"]) == BAD_INPUT


@pytest.mark.parametrize(
    "name",
    ["policy.onnx", "runtime.py", "config.yaml", "REPORT.md", "latency.json", "robot.xml", "robot.png"],
)
def test_check_names_every_file_that_differs(name, bundle, capsys):
    assert commands.main(["--bundle", str(bundle), "check"]) == 0
    (bundle / name).write_bytes((bundle / name).read_bytes() + b" ")
    assert commands.main(["--bundle", str(bundle), "check"]) == 2
    assert f"{name} was changed since the export" in capsys.readouterr().err
    (bundle / name).unlink()
    assert commands.main(["--bundle", str(bundle), "check"]) == 2
    assert f"{name} is missing" in capsys.readouterr().err


def test_times_that_were_measured_again_are_told_and_not_refused(bundle, capsys):
    before = (bundle / "latency.json").read_bytes()
    assert commands.main(["--bundle", str(bundle), "measure", "--seconds", "0.2"]) == 0
    assert (bundle / "latency.json").read_bytes() != before
    assert (bundle / "latency.png").read_bytes()[:4] == b"\x89PNG"
    capsys.readouterr()
    assert commands.main(["--bundle", str(bundle), "check"]) == 0
    assert "measured again since the export" in capsys.readouterr().out


def test_a_signature_covers_the_manifest_and_names_what_is_wrong(bundle, tmp_path, capsys):
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from robolearn.runtime.signature import sign

    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    keys = {}
    for name in ("mine", "other"):
        key = Ed25519PrivateKey.generate()
        keys[name] = tmp_path / f"{name}.pub"
        (tmp_path / f"{name}.pem").write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
        )
        public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
        keys[name].write_bytes(public)

    def check(key):
        code = commands.main(["--bundle", str(bundle), "check", "--key", str(key)])
        return code, capsys.readouterr().err

    code, said = check(keys["mine"])
    assert (code, "not signed" in said) == (2, True)
    sign(bundle, tmp_path / "mine.pem")
    assert check(keys["mine"])[0] == 0
    code, said = check(keys["other"])
    assert (code, "not a signature of manifest.json with the key of other.pub" in said) == (2, True)
    code, said = check(tmp_path / "mine.pem")
    assert (code, "is no public key" in said) == (2, True)
    # A forgery that is consistent in itself: only the signature tells.
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["run"]["name"] = "another"
    forged(bundle, manifest)
    assert commands.main(["--bundle", str(bundle), "check"]) == 0
    assert check(keys["mine"])[0] == 2


def test_a_runtime_that_was_changed_with_its_hash_is_not_run_by_deploy(bundle, capsys):
    """The recording holds the manifest of the export."""
    (bundle / "runtime.py").write_text("print('it ran')")
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["files"]["runtime.py"] = sha256_of(bundle / "runtime.py")
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    assert main(["deploy", str(bundle), "--seconds", "0.1"]) == 2
    said = capsys.readouterr()
    assert "manifest.json was changed since the export: manifest.files.runtime.py" in said.err
    assert "it ran" not in said.out


def test_an_edited_config_is_not_used_by_deploy(bundle, capsys):
    path = bundle / "config.yaml"
    path.write_text(path.read_text().replace("seed: 1", "seed: 77"))
    assert main(["deploy", str(bundle), "--seconds", "0.1"]) == 2
    assert "config.yaml was changed" in capsys.readouterr().err


def test_a_pipe_in_the_place_of_latency_json_is_code_2(bundle):
    (bundle / "latency.json").unlink()
    os.mkfifo(bundle / "latency.json")
    code, said = check(bundle)
    assert (code, "latency.json is not a plain file" in said) == (2, True), said


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_recording_packed_in_another_way_is_code_2(method, bundle):
    with zipfile.ZipFile(bundle / "golden.npz") as old:
        arrays = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(bundle / "golden.npz", "w", method) as new:
        for name, content in arrays.items():
            new.writestr(name, content)
    rehash(bundle)
    code, said = check(bundle)
    assert (code, "packed in a way" in said) == (2, True), said


def test_a_ragged_reset_is_code_2(bundle):
    manifest = json.loads((bundle / "manifest.json").read_text())
    reset = manifest["state"][0]["reset"]
    manifest["state"][0]["reset"] = [reset[0][:20], reset[0][20:]]
    forged(bundle, manifest)
    assert "the reset of state last_action" in tried(bundle)


def test_a_file_that_is_not_of_the_export_is_told_and_a_module_beside_the_runtime_is_not_run(bundle):
    (bundle / "numpy.py").write_text("print('it ran')")
    command = [sys.executable, str(bundle / "runtime.py"), "check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "it ran" not in done.stdout
    assert "not of the export, and not compared: numpy.py" in done.stdout


@pytest.mark.parametrize("command", [None, 0.5, [1, 2, 3, 4], "x"])
def test_a_command_of_another_kind_is_a_value_error(command, bundle):
    found = Bundle.load(bundle)
    robot = Runtime(found, open_session(found, "onnxruntime"))
    sensors = {name: found.golden[name][0] for name in robot.sensors}
    with pytest.raises(ValueError, match="command must be 3 numbers"):
        robot.step(sensors, command)
