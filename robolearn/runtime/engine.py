"""TensorRT engines: built on the robot's computer and loaded only there.

Uses only what TensorRT 10.13, 10.16 and 11.4 have in common, and CUDA through `cuda`. An engine belongs to one
TensorRT version and one compute capability. Its sidecar `<engine>.json` states what it was built from and on, and is
compared before TensorRT loads the engine.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from robolearn.runtime.cuda import Cuda, device_tree_model, power_mode, tensorrt_module, trt_errors
from robolearn.runtime.errors import BAD_INPUT, ENGINE, Refused

ENGINE_SCHEMA = 1
"""Version of the sidecar's layout."""
WRITTEN_FOR = ("10.13", "10.16", "11.4")
"""TensorRT versions that this module was checked against."""
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
"""Precisions of an ONNX graph. Only tf32 is set here; the others are in the types of the ONNX graph."""
WORKSPACE = 1 << 30
"""Limit of TensorRT's scratch memory [bytes]: on a Jetson, GPU and CPU share one memory with all other programs."""

_REBUILD = "run: python runtime.py build"
_SIDECAR_TEXTS = ("tensorrt", "compute_capability", "driver", "onnx_sha256", "engine_sha256", "precision")


def device() -> dict[str, Any]:
    """What an engine depends on: `tensorrt`, `compute_capability` ("11.0"), `driver` (newest CUDA version that it
    supports, "13.0"), `power_mode` and `board` (None where not known).

    Raises:
        Refused: NOT_HERE; TensorRT, the CUDA runtime or a device is missing.
    """
    trt, cuda = tensorrt_module(), Cuda()
    return {
        "tensorrt": str(trt.__version__),
        "compute_capability": cuda.compute_capability(),
        "driver": cuda.driver(),
        "power_mode": power_mode(),
        "board": device_tree_model(),
    }


def _fixed_shape(where: str, name: str, shape: Any, is_float32: bool) -> tuple[int, ...]:
    """The shape of an input or output; refused where it is not fixed or not float32."""
    sizes = tuple(int(size) for size in shape)
    if any(size < 1 for size in sizes):
        raise Refused(
            f"{where}: {name} has the dynamic shape {sizes}; export with a fixed batch of 1", BAD_INPUT
        )
    if not is_float32:
        raise Refused(f"{where}: {name} must be float32", BAD_INPUT)
    return sizes


def build_engine(
    onnx: Path, engine: Path, precision: str = "fp32", timing_cache: Path | None = None
) -> dict[str, Any]:
    """Build an engine for this device and write it with its sidecar, both or neither.

    Args:
        onnx: the ONNX graph, in one file, with float32 inputs and outputs of static shape.
        engine: file to write, in an existing folder. The sidecar is `<engine>.json`.
        precision: of the ONNX graph; TF32 is off unless this is tf32.
        timing_cache: file of kernel timings to reuse and update; one of another device or version is replaced.

    Returns:
        The sidecar.

    Raises:
        Refused: NOT_HERE without TensorRT or device, BAD_INPUT for a file or precision that cannot be used, ENGINE
            where TensorRT cannot parse or build it.
    """
    if precision not in PRECISIONS:
        raise Refused(f"unknown precision {precision!r}; valid: {', '.join(PRECISIONS)}", BAD_INPUT)
    if not engine.parent.is_dir():
        raise Refused(f"cannot write {engine}: there is no folder {engine.parent}", BAD_INPUT)
    try:
        graph = onnx.read_bytes()
    except OSError as error:
        raise Refused(f"cannot read {onnx}: {error.strerror}", BAD_INPUT) from None
    trt, here = tensorrt_module(), device()
    plan, timings = _built(trt, onnx.name, graph, precision, timing_cache)
    sidecar = {
        "schema": ENGINE_SCHEMA,
        **here,
        "onnx_sha256": hashlib.sha256(graph).hexdigest(),
        "engine_sha256": hashlib.sha256(plan).hexdigest(),
        "precision": precision,
        "built_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    text = json.dumps(sidecar, indent=1, allow_nan=False) + "\n"
    files = {engine: plan, _sidecar_path(engine): text.encode()}
    # The engine before its sidecar: after a power failure between the two, the hashes differ and the pair is refused.
    _write_all(files if timing_cache is None or timings is None else {timing_cache: timings, **files})
    return sidecar


def _built(
    trt: Any, name: str, graph: bytes, precision: str, timing_cache: Path | None
) -> tuple[bytes, bytes | None]:
    """(engine, timing cache or None where `timing_cache` is None)."""
    with trt_errors(trt, f"cannot build an engine of {name}") as log:
        builder = trt.Builder(log)
        # The flag's number changed in TensorRT 11, where all networks are strongly typed.
        network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        parser = trt.OnnxParser(network, log)
        # Parsed without a path, so that weights in another file are an error: the hash would not cover them.
        if not parser.parse(graph) or parser.num_errors:
            errors = [parser.get_error(i) for i in range(parser.num_errors)]
            log.errors.clear()  # the log repeats these errors with file names of TensorRT's source
            why = "; ".join(
                f"node {e.node()} {e.node_operator()} {e.node_name()}: {e.desc()}" for e in errors[:3]
            )
            raise Refused(
                f"TensorRT {trt.__version__} cannot parse {name}: {why or 'no reason given'}", ENGINE
            )
        ports = [network.get_input(i) for i in range(network.num_inputs)]
        ports += [network.get_output(i) for i in range(network.num_outputs)]
        for port in ports:
            _fixed_shape(name, port.name, port.shape, port.dtype == trt.DataType.FLOAT)

        config = builder.create_builder_config()
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, WORKSPACE)
        # TF32 is on by default. It rounds float32 factors to 10 bits, also in the float32 part of an fp16 or bf16
        # graph.
        if precision != "tf32":
            config.clear_flag(trt.BuilderFlag.TF32)
        if timing_cache is not None:
            _reuse(config, timing_cache)
            log.errors.clear()  # a rejected timing cache is not an error
        plan = builder.build_serialized_network(network, config)
        if plan is None:
            raise Refused(
                f"TensorRT {trt.__version__} cannot build an engine of {name}: {log.words()}", ENGINE
            )
        cache = config.get_timing_cache() if timing_cache is not None else None
        return bytes(plan), bytes(cache.serialize()) if cache is not None else None


def _reuse(config: Any, path: Path) -> None:
    """Give the builder the timing cache in `path` if it accepts it, else an empty one."""
    former = b""
    with suppress(OSError):
        former = path.read_bytes()
    for content in dict.fromkeys((former, b"")):
        cache = config.create_timing_cache(content)
        # Rejected where it is of another device or version, whose timings would select the wrong kernels.
        if cache is not None and config.set_timing_cache(cache, False):
            return


def _sidecar_path(engine: Path) -> Path:
    return engine.with_name(f"{engine.name}.json")


def _write_all(files: dict[Path, bytes]) -> None:
    """Write all files under temporary names, then rename them in order."""
    parts = {path: path.with_name(f".{path.name}.{os.getpid()}.part") for path in files}
    moved: list[Path] = []
    try:
        for path, content in files.items():
            with parts[path].open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())  # a rename may reach the disk before the content
        for path, part in parts.items():
            os.replace(part, path)
            moved.append(path)
    except OSError as error:
        for path in moved:  # an engine without its sidecar is useless
            path.unlink(missing_ok=True)
        raise Refused(f"cannot write {error.filename or 'the engine'}: {error.strerror}", BAD_INPUT) from None
    finally:
        for part in parts.values():
            with suppress(OSError):
                part.unlink(missing_ok=True)


def _checked_engine(engine: Path, onnx_sha256: str) -> tuple[bytes, dict[str, Any], list[str]]:
    """(engine, sidecar, warnings); refused unless the engine belongs to this ONNX graph, device and TensorRT version.

    TensorRT version and compute capability must match: TensorRT loads no other engine. Another driver, power mode or
    board is a warning: kernels were selected by timings that may no longer hold, so the engine may be slower than a
    new one, but it computes the same, which the golden check confirms at every load. A refusal would stop a robot
    because its power mode was changed. Where another driver or board does matter, TensorRT refuses the engine.
    """
    sidecar_path = _sidecar_path(engine)
    try:
        sidecar = json.loads(sidecar_path.read_bytes())
    except OSError as error:
        raise Refused(f"cannot read {sidecar_path}: {error.strerror}; {_REBUILD}", ENGINE) from None
    except ValueError:
        raise Refused(f"{sidecar_path} is not JSON; {_REBUILD}", ENGINE) from None
    schema = sidecar.get("schema") if isinstance(sidecar, dict) else None
    if schema != ENGINE_SCHEMA:
        raise Refused(
            f"{sidecar_path} has schema {schema}; this runtime reads {ENGINE_SCHEMA}; {_REBUILD}", ENGINE
        )
    for key in _SIDECAR_TEXTS:
        if not isinstance(sidecar.get(key), str):
            raise Refused(
                f"{sidecar_path}: {key} is {sidecar.get(key)!r}; it must be text; {_REBUILD}", ENGINE
            )
    try:
        plan = engine.read_bytes()
    except OSError as error:
        raise Refused(f"cannot read {engine}: {error.strerror}; {_REBUILD}", ENGINE) from None

    here = {**device(), "onnx_sha256": onnx_sha256, "engine_sha256": hashlib.sha256(plan).hexdigest()}
    for key, built, now in (
        ("onnx_sha256", "was built from the ONNX graph", "this bundle's is"),
        ("engine_sha256", "was written with hash", "the file now has"),
        ("tensorrt", "was built by TensorRT", "this machine has"),
        ("compute_capability", "was built for compute capability", "this device has"),
    ):
        if sidecar[key] != here[key]:
            raise Refused(f"{engine.name} {built} {sidecar[key]}, {now} {here[key]}; {_REBUILD}", ENGINE)
    warnings = [
        f"{engine.name} was built with {what} {sidecar.get(key) or 'unknown'}, this machine has "
        f"{here[key] or 'unknown'}: the results are the same, but other kernels "
        f"may be faster; to select them again, {_REBUILD}"
        for key, what in (
            ("driver", "a driver for CUDA"),
            ("power_mode", "power mode"),
            ("board", "the board"),
        )
        if sidecar.get(key) != here[key]
    ]
    if ".".join(here["tensorrt"].split(".")[:2]) not in WRITTEN_FOR:
        warnings.append(
            f"TensorRT {here['tensorrt']} is none of {', '.join(WRITTEN_FOR)}, "
            "the versions that this runtime was checked against"
        )
    return plan, sidecar, warnings


class EngineSession:
    """A TensorRT engine, warmed up; one CUDA graph holds the network and the copies from and to the host.

    Args:
        engine: file from `build_engine`, with its sidecar beside it.
        onnx_sha256: hash of the ONNX file that it must have been built from.

    Raises:
        Refused: NOT_HERE without TensorRT or device, ENGINE for an engine that belongs to another ONNX graph, device or
            TensorRT version or does not run, BAD_INPUT for dynamic shapes or inputs or outputs that are not float32.
    """

    name = "tensorrt"

    def __init__(self, engine: Path, onnx_sha256: str) -> None:
        plan, sidecar, warnings = _checked_engine(engine, onnx_sha256)
        self.sidecar: dict[str, Any] = sidecar
        """What the engine was built from and on."""
        self.warnings: list[str] = warnings
        """Differences from the build and reasons for lower speed that do not prevent running."""
        self.inputs: dict[str, tuple[int, ...]] = {}
        self.outputs: dict[str, tuple[int, ...]] = {}
        self._trt, self._cuda = tensorrt_module(), Cuda()
        self._host: dict[str, np.ndarray] = {}  # float32 views of the pinned buffers
        self._buffers: dict[str, tuple[int, int, int]] = {}  # (host, device, bytes)
        self._graph: int | None = None
        self._opened = ExitStack()
        self._open = True
        try:
            with trt_errors(self._trt, f"cannot run {engine.name}") as log:
                self._log = log
                self._load(engine.name, plan)
                self._warm_up()
        except BaseException:
            with suppress(Refused):  # the first failure is the one to tell
                self.close()
            raise
        # Copies: `close` frees the pinned buffers, and a view would then read freed memory.
        self._returned = {name: self._host[name].copy() for name in self.outputs}

    def _load(self, name: str, plan: bytes) -> None:
        """The engine's buffers, its addresses and the stream; each with what gives it back."""
        trt, cuda = self._trt, self._cuda
        runtime = trt.Runtime(self._log)
        loaded = runtime.deserialize_cuda_engine(plan)
        if loaded is None:
            raise Refused(
                f"TensorRT {trt.__version__} cannot load {name} ({self._log.words()}); {_REBUILD}", ENGINE
            )
        self._loaded: tuple[Any, ...] = (
            runtime,
            loaded,
        )  # the engine needs the trt.Runtime as long as it exists
        for port in (loaded.get_tensor_name(i) for i in range(loaded.num_io_tensors)):
            ports = self.inputs if loaded.get_tensor_mode(port) == trt.TensorIOMode.INPUT else self.outputs
            is_float32 = loaded.get_tensor_dtype(port) == trt.DataType.FLOAT
            ports[port] = _fixed_shape(name, port, loaded.get_tensor_shape(port), is_float32)
        self._stream = self._hold(cuda.stream(), cuda.destroy_stream)
        self._context = loaded.create_execution_context()
        if self._context is None:
            raise Refused(f"TensorRT {trt.__version__} cannot allocate memory to run {name}", ENGINE)
        for port, shape in {**self.inputs, **self.outputs}.items():
            size = 4 * int(np.prod(shape, dtype=np.int64))
            host = self._hold(cuda.malloc_host(size), cuda.free_host)
            on_device = self._hold(cuda.malloc(size), cuda.free)
            self._buffers[port], self._host[port] = (host, on_device, size), cuda.view(host, shape)
            if not self._context.set_tensor_address(port, on_device):
                raise Refused(f"TensorRT {trt.__version__} rejects the address of {port}", ENGINE)

    def _hold(self, handle: int, free: Callable[[int], None]) -> int:
        self._opened.callback(free, handle)
        return handle

    def _warm_up(self) -> None:
        """Run once, so that everything is allocated, then capture: allocations would break the capture."""
        self._enqueue()
        self._cuda.synchronize(self._stream)
        try:
            self._graph = self._hold(
                self._cuda.capture(self._stream, self._enqueue), self._cuda.destroy_graph
            )
        except Refused as error:
            self.warnings.append(f"runs without a CUDA graph, with more CPU time per step: {error}")
        self._replay()  # the first launch is slow

    def _enqueue(self) -> None:
        """Enqueue copies of the inputs, the network, and copies of the outputs; does not wait."""
        for port in self.inputs:
            host, on_device, size = self._buffers[port]
            self._cuda.to_device(on_device, host, size, self._stream)
        if not self._context.execute_async_v3(self._stream):
            raise Refused(f"TensorRT could not enqueue the network: {self._log.words()}", ENGINE)
        for port in self.outputs:
            host, on_device, size = self._buffers[port]
            self._cuda.to_host(host, on_device, size, self._stream)

    def _replay(self) -> None:
        if self._graph is None:
            self._enqueue()
        else:
            self._cuda.launch(self._graph, self._stream)
        self._cuda.synchronize(self._stream)

    def run(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Every output by name, float32; the next call overwrites the arrays.

        Args:
            feeds: every input by name, float32, of exactly its shape.

        Raises:
            Refused: BAD_INPUT for other inputs or a closed session, ENGINE where TensorRT or CUDA fails.
        """
        if not self._open:
            raise Refused("this TensorRT session is closed", BAD_INPUT)
        if feeds.keys() != self.inputs.keys():
            raise Refused(f"inputs are {sorted(feeds)}; the engine needs {sorted(self.inputs)}", BAD_INPUT)
        for port, value in feeds.items():
            # The assignment below would broadcast or round silently.
            if value.shape != self.inputs[port] or value.dtype != np.float32:
                given = f"{value.dtype} {value.shape}"
                raise Refused(f"{port} is {given}; the engine needs float32 {self.inputs[port]}", BAD_INPUT)
            self._host[port][...] = value
        self._replay()
        for port, array in self._returned.items():
            array[...] = self._host[port]
        return dict(self._returned)

    def close(self) -> None:
        """Free all memory on device and host; may be called twice."""
        self._open = False
        self._host.clear()
        self._context = None  # before the buffers that it points to, and before its engine
        self._loaded = ()
        self._opened.close()

    def __enter__(self) -> EngineSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
