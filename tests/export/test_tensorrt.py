"""Every TensorRT and CUDA name that engine.py and cuda.py use exists in every version; the fake is as strict.

The snapshots in tensorrt/ hold every public name of three versions of TensorRT's Python bindings, and the numbers of
the enums that are used. Building and running against the fake is tested beside them.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from robolearn.runtime import cuda
from robolearn.runtime import engine as engine_module
from tests.export.fake_tensorrt import VERSIONS, fake_tensorrt, snapshot
from tests.export.tensorrt.fake_cudart import PROTOTYPES, FakeCudart

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [Path(module.__file__ or "") for module in (engine_module, cuda)]
NEW = VERSIONS[-1]


def chains(text: str) -> set[str]:
    """Every attribute chain `trt.X.Y` in a source as `X.Y`, the longest of each; without dunder names."""
    found, inner = set(), set()
    for node in ast.walk(ast.parse(text)):
        names, at = [], node
        while isinstance(at, ast.Attribute):
            names.append(at.attr)
            inner.add(at.value)
            at = at.value
        if names and isinstance(at, ast.Name) and at.id == "trt" and node not in inner:
            found.add(".".join(name for name in reversed(names) if not name.startswith("__")))
    return found - {""}


def missing(text: str, version: str) -> set[str]:
    return chains(text) - snapshot(version)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_used_name_exists_in_every_version(version: str) -> None:
    for path in SOURCES:
        assert missing(path.read_text(), version) == set(), path.name


def test_the_walk_finds_the_used_names() -> None:
    seen = set().union(*(chains(path.read_text()) for path in SOURCES))
    some = {
        "NetworkDefinitionCreationFlag.STRONGLY_TYPED",
        "BuilderFlag.TF32",
        "ILogger",
        "ILogger.ERROR",
        "Runtime",
    }
    assert some <= seen


@pytest.mark.parametrize(
    "name", ["BuilderFlag.FP16", "ILayer.precision", "IInt8Calibrator", "Builder.max_batch_size"]
)
def test_a_name_missing_in_one_version_is_found(name: str) -> None:
    assert missing(f"def f(trt, x):\n    x.set_flag(trt.{name})\n", NEW) == {name}


def test_the_fake_has_only_the_methods_of_its_version() -> None:
    old, new = (fake_tensorrt(version, FakeCudart()) for version in (VERSIONS[0], NEW))
    assert hasattr(old.BuilderFlag, "FP16")
    assert not hasattr(new.BuilderFlag, "FP16")
    assert "supports_model" in dir(old.OnnxParser)
    assert "supports_model" not in dir(new.OnnxParser)
    config = new.IBuilderConfig()
    with pytest.raises(AttributeError, match="max_workspace_size"):
        config.max_workspace_size = 1
    with pytest.raises(AttributeError, match="set_quantization_flag"):
        config.set_quantization_flag(0)
    with pytest.raises(TypeError, match="BuilderFlag"):
        config.set_flag(new.MemoryPoolType.WORKSPACE)


def test_the_repository_holds_no_binary_libraries_and_engines(tmp_path: Path) -> None:
    def binaries(root: Path) -> list[str]:
        files = [p for p in root.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
        kinds = {".so", ".whl", ".engine", ".plan", ".trt", ".deb", ".a", ".dll"}
        return [
            p.name for p in files if p.suffix in kinds or ".so." in p.name or p.read_bytes()[:4] == b"\x7fELF"
        ]

    folders = ("docs", "envs", "export", "robolearn", "scripts", "tasks", "tests")
    assert [name for folder in folders for name in binaries(ROOT / folder)] == []
    for name, content in (("libnvinfer.so.10", b""), ("renamed", b"\x7fELF\2"), ("policy.engine", b"")):
        (tmp_path / name).write_bytes(content)
    assert sorted(binaries(tmp_path)) == ["libnvinfer.so.10", "policy.engine", "renamed"]


def test_argument_types_of_cuda_calls_are_those_of_the_header() -> None:
    assert PROTOTYPES == cuda._CUDART_CALLS
