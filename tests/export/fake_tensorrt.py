"""A fake TensorRT in Python, from the list of names of one version.

A class has only the listed names, so a method of another version is an AttributeError. The classes that the runtime
uses work, for ONNX graphs of a few operators.
"""

from __future__ import annotations

import hashlib
import json
import types
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from tests.export.tensorrt.fake_cudart import FakeCudart

SNAPSHOTS = Path(__file__).parent / "tensorrt"
VERSIONS = ("10.13.3.9", "10.16.1.11", "11.4.0.106")
OPERATORS = {"Add", "Cast", "Gemm", "MatMul"}


def snapshot(version: str) -> set[str]:
    """Every public name of a version, as `Class.member`."""
    return set(json.loads((SNAPSHOTS / f"names-{version}.json").read_text()))


class Member:
    """A member of an enum of the bindings: equal to, but not identical with, another of its name."""

    def __init__(self, kind: str, name: str, value: int) -> None:
        self.kind, self.name, self.value = kind, name, value

    def __int__(self) -> int:
        return self.value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Member) and (self.kind, self.value) == (other.kind, other.value)

    def __hash__(self) -> int:
        return hash((self.kind, self.value))


def _members(names: set[str], kind: str) -> set[str]:
    return {name.partition(".")[2] for name in names if name.startswith(f"{kind}.")}


def _strict(names: set[str], kind: str, made: type | None, enum: dict[str, int] | None) -> type:
    """A class with the names that this version lists; those that the fake does not implement raise when used."""
    allowed = _members(names, kind)

    def absent(member: str) -> property:
        def use(_: object) -> None:
            raise NotImplementedError(f"the fake has no {kind}.{member}")

        return property(use)

    def no_new_names(self: object, key: str, value: Any) -> None:
        if type(self) is built and not key.startswith("_") and key not in allowed:
            raise AttributeError(f"'{kind}' object has no attribute '{key}'")
        object.__setattr__(self, key, value)

    body: dict[str, Any] = {member: absent(member) for member in allowed}
    written = vars(made) if made else {}
    body |= {key: value for key, value in written.items() if key.startswith("_") or key in allowed}
    body |= {key: Member(kind, key, value) for key, value in (enum or {}).items() if key in allowed}
    body["__setattr__"] = no_new_names
    for key in ("__dict__", "__weakref__"):
        body.pop(key, None)
    built = type(kind, (), body)
    return built


def _working(machine: Any) -> dict[str, type]:
    """The implemented classes by name, with the methods of all three versions."""
    trt, gpu = machine.trt, machine.gpu

    def said(text: str) -> None:
        machine.logger.log(trt.ILogger.ERROR, text)

    def starts(logger: Any, what: str) -> None:
        assert isinstance(logger, trt.ILogger)
        if not getattr(logger, "_made", False):
            raise TypeError("tensorrt.ILogger.__init__() must be called when overriding __init__")
        if machine.logger not in (None, logger):
            gpu.faults.append("a second logger: TensorRT goes on with the first one")
        machine.logger = machine.logger or logger
        if what in machine.broken:
            said(f"the {what} does not start")
            raise TypeError("pybind11::init(): factory function returned nullptr")

    def needs(kind: str, value: Any) -> None:
        if not isinstance(value, Member) or value.kind != kind:
            raise TypeError(f"incompatible function arguments: {value!r} is not of {kind}")

    class ILogger:
        def __init__(self) -> None:
            self._made = True

    class Builder:
        def __init__(self, logger: Any) -> None:
            starts(logger, "builder")

        def create_network(self, flags: int = 0) -> Any:
            machine.network_flags = flags
            return trt.INetworkDefinition()

        def create_builder_config(self) -> Any:
            machine.config = trt.IBuilderConfig()
            return machine.config

        def build_serialized_network(self, network: Any, config: Any) -> Any:
            if machine.broken & {"plan", "silent plan"}:
                if "plan" in machine.broken:
                    said("[optimizer.cpp] Could not find any implementation for node actions.")
                return None
            if config._cache is not None:
                config._cache._content += b" timed"
            return trt.IHostMemory(machine.plan(network._model.SerializeToString()))

    class IHostMemory:
        def __init__(self, content: bytes) -> None:
            self._content = content

        def __bytes__(self) -> bytes:
            return self._content

    class ITensor:
        def __init__(self, value: Any) -> None:
            kind = value.type.tensor_type
            self._name = value.name
            self._shape = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in kind.shape.dim)
            name = {onnx.TensorProto.FLOAT: "FLOAT", onnx.TensorProto.INT64: "INT64"}[kind.elem_type]
            self._dtype = Member("DataType", name, int(getattr(trt.DataType, name)))

        name = property(lambda self: self._name)
        shape = property(lambda self: self._shape)
        dtype = property(lambda self: self._dtype)

    class INetworkDefinition:
        _model: Any = onnx.ModelProto()

        def get_input(self, index: int) -> Any:
            return trt.ITensor(self._model.graph.input[index])

        def get_output(self, index: int) -> Any:
            return trt.ITensor(self._model.graph.output[index])

        num_inputs = property(lambda self: len(self._model.graph.input))
        num_outputs = property(lambda self: len(self._model.graph.output))

    class ParserError:
        def __init__(self, index: int, node: Any) -> None:
            self._index, self._node = index, node

        def node(self) -> int:
            return self._index

        def node_operator(self) -> str:
            return self._node.op_type

        def node_name(self) -> str:
            return self._node.name

        def desc(self) -> str:
            return f"no importer is registered\nfor {self._node.op_type}"

    class OnnxParser:
        def __init__(self, network: Any, logger: Any) -> None:
            assert logger is machine.logger
            self._network, self._errors = network, []

        def parse(self, model: bytes, path: str | None = None) -> bool:
            try:
                self._network._model = parsed = onnx.load_model_from_string(model)
            except Exception:
                said("ModelImporter.cpp: Failed to parse ONNX model from stream")
                return False
            nodes = enumerate(parsed.graph.node)
            self._errors = [trt.ParserError(i, n) for i, n in nodes if n.op_type not in OPERATORS]
            for error in self._errors:
                said(f"In node {error.node()} with name: {error.node_name()}: {error.desc()}")
            return not self._errors

        def get_error(self, index: int) -> Any:
            return self._errors[index]

        num_errors = property(lambda self: len(self._errors))

    class IBuilderConfig:
        def __init__(self) -> None:
            self._flags, self._limits, self._cache = {"TF32"}, {}, None

        def set_flag(self, flag: Any) -> None:
            needs("BuilderFlag", flag)
            self._flags.add(flag.name)

        def clear_flag(self, flag: Any) -> None:
            needs("BuilderFlag", flag)
            self._flags.discard(flag.name)

        def get_flag(self, flag: Any) -> bool:
            needs("BuilderFlag", flag)
            return flag.name in self._flags

        def set_memory_pool_limit(self, pool: Any, pool_size: int) -> None:
            needs("MemoryPoolType", pool)
            self._limits[pool.name] = pool_size

        def create_timing_cache(self, serialized_timing_cache: bytes) -> Any:
            if not serialized_timing_cache:
                return trt.ITimingCache(machine.cache())
            if not serialized_timing_cache.startswith(b"cache"):
                said("the timing cache cannot be read")
                return None
            return trt.ITimingCache(serialized_timing_cache)

        def set_timing_cache(self, cache: Any, ignore_mismatch: bool) -> bool:
            if not ignore_mismatch and not cache._content.startswith(machine.cache()):
                said("the timing cache is of another device")
                return False
            self._cache = cache
            return True

        def get_timing_cache(self) -> Any:
            return self._cache

    class ITimingCache:
        def __init__(self, content: bytes) -> None:
            self._content = content

        def serialize(self) -> Any:
            return trt.IHostMemory(self._content)

    class Runtime:
        def __init__(self, logger: Any) -> None:
            starts(logger, "runtime")

        def deserialize_cuda_engine(self, serialized_engine: bytes) -> Any:
            head, _, model = serialized_engine.partition(b"\n")
            if "engine" in machine.broken or head != machine.plan(model).partition(b"\n")[0]:
                said(
                    "IRuntime::deserializeCudaEngine: Error Code 1: Serialization (Magic tag does not match)"
                )
                return None
            return trt.ICudaEngine(onnx.load_model_from_string(model))

    class ICudaEngine:
        def __init__(self, model: Any) -> None:
            self._model = model
            self._tensors = {v.name: trt.ITensor(v) for v in (*model.graph.input, *model.graph.output)}

        num_io_tensors = property(lambda self: len(self._tensors))

        def get_tensor_name(self, index: int) -> str:
            return list(self._tensors)[index]

        def get_tensor_shape(self, name: str) -> tuple[int, ...]:
            return self._tensors[name].shape

        def get_tensor_dtype(self, name: str) -> Any:
            return self._tensors[name].dtype

        def get_tensor_mode(self, name: str) -> Any:
            is_input = name in [value.name for value in self._model.graph.input]
            return trt.TensorIOMode.INPUT if is_input else trt.TensorIOMode.OUTPUT

        def create_execution_context(self) -> Any:
            return None if "context" in machine.broken else trt.IExecutionContext(self)

    class IExecutionContext:
        def __init__(self, engine: Any) -> None:
            self._engine, self._addresses, self._warm = engine, {}, False

        def set_tensor_address(self, name: str, memory: int) -> bool:
            if not isinstance(memory, int):
                raise TypeError("incompatible function arguments")
            self._addresses[name] = memory
            return "address" not in machine.broken

        def execute_async_v3(self, stream_handle: int) -> bool:
            captured = stream_handle in gpu.capturing
            if "queue" in machine.broken or (captured and ("capture" in machine.broken or not self._warm)):
                if captured:  # an allocation breaks a capture
                    gpu.capturing[stream_handle] = None
                said("IExecutionContext::enqueueV3: Error Code 1: Cuda Runtime")
                return False
            assert set(self._addresses) == set(self._engine._tensors)
            return gpu.queue(stream_handle, self._compute) == 0

        def _compute(self) -> None:
            self._warm = True
            graph = self._engine._model.graph
            memory = {
                name: np.frombuffer(gpu.device[self._addresses[name]], np.float32).reshape(tensor.shape)
                for name, tensor in self._engine._tensors.items()
            }
            feeds = {value.name: memory[value.name].copy() for value in graph.input}
            results = ReferenceEvaluator(self._engine._model).run(None, feeds)
            for value, result in zip(graph.output, results, strict=True):
                memory[value.name][...] = result

    return {name: made for name, made in locals().items() if isinstance(made, type)}


def fake_tensorrt(version: str, gpu: FakeCudart, calls_itself: str | None = None) -> Any:
    """TensorRT of a version on a device. `machine` holds its settings and records:

    `broken`: parts that fail: builder, plan, silent plan, runtime, engine, context, address, queue, capture.
    `network_flags`, `config`: arguments of the last build.
    """
    names = snapshot(version)
    values = json.loads((SNAPSHOTS / "values.json").read_text())[version]
    trt: Any = types.ModuleType("tensorrt")
    trt.__version__ = calls_itself or version
    machine = types.SimpleNamespace(
        gpu=gpu, trt=trt, broken=set(), logger=None, network_flags=None, config=None
    )

    def cache() -> bytes:
        return f"cache {version} {gpu.attributes}".encode()

    def plan(model: bytes) -> bytes:
        return f"plan {version} {gpu.attributes} {hashlib.sha256(model).hexdigest()}".encode() + b"\n" + model

    machine.cache, machine.plan = cache, plan
    made = _working(machine)
    for name in names:
        if "." not in name:
            setattr(trt, name, _strict(names, name, made.get(name), values.get(name)))
    trt.float32 = Member("DataType", "FLOAT", values["DataType"]["FLOAT"])
    trt.machine = machine
    return trt
