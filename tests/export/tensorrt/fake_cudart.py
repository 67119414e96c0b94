"""A fake CUDA runtime in Python: ctypes functions that fail where the real ones would.

Work on a stream is done when the stream is synchronized; captured work is not done. Buffers hold NaN until something
is written. Forbidden calls are recorded in `faults`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

_C = {
    "int": ctypes.c_int,
    "int*": ctypes.POINTER(ctypes.c_int),
    "size_t": ctypes.c_size_t,
    "uint": ctypes.c_uint,
    "ulonglong": ctypes.c_ulonglong,
    "void*": ctypes.c_void_p,
    "void**": ctypes.POINTER(ctypes.c_void_p),
}
# As declared by cuda_runtime_api.h of CUDA 12.9 and 13.5: handles and pointers are void*, enums are int.
HEADER = {
    "cudaGetDeviceCount": "int*",
    "cudaDriverGetVersion": "int*",
    "cudaDeviceGetAttribute": "int* int int",
    "cudaGetLastError": "",
    "cudaMalloc": "void** size_t",
    "cudaFree": "void*",
    "cudaMallocHost": "void** size_t",
    "cudaFreeHost": "void*",
    "cudaMemcpyAsync": "void* void* size_t int void*",
    "cudaStreamCreateWithFlags": "void** uint",
    "cudaStreamSynchronize": "void*",
    "cudaStreamDestroy": "void*",
    "cudaStreamBeginCapture": "void* int",
    "cudaStreamEndCapture": "void* void**",
    "cudaGraphInstantiateWithFlags": "void** void* ulonglong",
    "cudaGraphLaunch": "void* void*",
    "cudaGraphDestroy": "void*",
    "cudaGraphExecDestroy": "void*",
}
PROTOTYPES = {name: tuple(_C[word] for word in words.split()) for name, words in HEADER.items()}
ERRORS = {
    1: ("cudaErrorInvalidValue", "invalid argument"),
    2: ("cudaErrorMemoryAllocation", "out of memory"),
    35: ("cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"),
    100: ("cudaErrorNoDevice", "no CUDA-capable device is detected"),
    719: ("cudaErrorLaunchFailure", "unspecified launch failure"),
    900: ("cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"),
    901: ("cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"),
}


class FakeCudart:
    """Replaces `libcudart` of cuda.py.

    `fail[name] = (n, code)` makes the n-th call of that name fail, counted from 1.
    """

    def __init__(self, capability: tuple[int, int] = (11, 0), driver: int = 13000, devices: int = 1) -> None:
        self.attributes, self.driver, self.devices = (
            dict(zip((75, 76), capability, strict=True)),
            driver,
            devices,
        )
        self.calls: list[str] = []
        self.faults: list[str] = []
        self.fail: dict[str, tuple[int, int]] = {}
        self.last_error = 0
        self.freed: list[Any] = []
        self.device: dict[int, Any] = {}
        self.pinned: dict[int, Any] = {}
        self.streams: dict[int, list[Callable[[], None]]] = {}
        self.capturing: dict[int, list[Callable[[], None]] | None] = {}
        """Captured nodes by stream; None once a forbidden call was made."""
        self.graphs: dict[int, list[Callable[[], None]]] = {}
        self.execs: dict[int, list[Callable[[], None]]] = {}
        self._next = 0x1000
        for name, arguments in PROTOTYPES.items():
            setattr(self, name, ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(self._recorded(name)))
        self._texts = {
            code: [ctypes.create_string_buffer(t.encode()) for t in texts] for code, texts in ERRORS.items()
        }
        for which, name in enumerate(("cudaGetErrorName", "cudaGetErrorString")):

            def text(code: int, which: int = which) -> int:
                return ctypes.addressof(self._texts[code][which])

            setattr(self, name, ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int)(text))

    def _recorded(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self.calls.append(name)
            nth, code = self.fail.get(name, (0, 0))
            try:
                if self.calls.count(name) != nth:
                    code = getattr(self, f"_{name}")(*arguments) or 0
                elif name == "cudaStreamEndCapture":  # ends the capture even where it fails
                    self.capturing.pop(arguments[0])
            except Exception as error:  # ctypes would print it and go on with 0
                self.faults.append(f"{name}: {type(error).__name__} {error}")
                code = 1
            if name != "cudaGetLastError":
                self.last_error = code or self.last_error
            return code

        return call

    def held(self) -> int:
        """Number of handles and buffers that are not freed."""
        return sum(map(len, (self.device, self.pinned, self.streams, self.graphs, self.execs)))

    def count(self, name: str) -> int:
        return self.calls.count(name)

    def queue(self, stream: int | None, work: Callable[[], None]) -> int:
        if stream is None or stream not in self.streams:
            raise ValueError("queued on a stream that does not exist, or on the default stream")
        if stream in self.capturing:
            nodes = self.capturing[stream]
            if nodes is None:
                return 901
            nodes.append(work)
        else:
            self.streams[stream].append(work)
        return 0

    def _not_while_capturing(self) -> int:
        for stream in self.capturing:
            self.capturing[stream] = None
        return 900 if self.capturing else 0

    def _cudaGetDeviceCount(self, out: Any) -> int:
        out[0] = self.devices
        return 0 if self.devices else 100

    def _cudaDriverGetVersion(self, out: Any) -> None:
        out[0] = self.driver

    def _cudaDeviceGetAttribute(self, out: Any, which: int, device: int) -> None:
        assert device == 0
        out[0] = self.attributes[which]

    def _cudaGetLastError(self) -> int:
        code, self.last_error = self.last_error, 0
        return code

    def _new(self, table: dict[int, Any], out: Any, content: Any) -> None:
        self._next += 16
        table[self._next] = content
        out[0] = self._next

    def _memory(self, table: dict[int, Any], out: Any, size: int) -> int:
        if code := self._not_while_capturing():
            return code
        buffer = (ctypes.c_ubyte * size)(*[255] * size)  # NaN until something is written
        table[ctypes.addressof(buffer)] = buffer
        out[0] = ctypes.addressof(buffer)
        return 0

    def _cudaMalloc(self, out: Any, size: int) -> int:
        return self._memory(self.device, out, size)

    def _cudaMallocHost(self, out: Any, size: int) -> int:
        return self._memory(self.pinned, out, size)

    def _release(self, table: dict[int, Any], pointer: int) -> None:
        buffer = table.pop(pointer)
        ctypes.memset(buffer, 255, ctypes.sizeof(buffer))
        self.freed.append(buffer)  # kept: a read after free finds NaN

    def _cudaFree(self, pointer: int) -> None:
        self._release(self.device, pointer)

    def _cudaFreeHost(self, pointer: int) -> None:
        self._release(self.pinned, pointer)

    def _cudaMemcpyAsync(self, to: int, source: int, size: int, kind: int, stream: int) -> int:
        tables = {1: (self.device, self.pinned), 2: (self.pinned, self.device)}[kind]
        for table, pointer in zip(tables, (to, source), strict=True):
            assert ctypes.sizeof(table[pointer]) == size, "the copy is not of the buffer's size"
        return self.queue(stream, lambda: ctypes.memmove(to, source, size))  # type: ignore[arg-type, return-value]

    def _cudaStreamCreateWithFlags(self, out: Any, flags: int) -> None:
        assert flags == 1, "the stream synchronizes with the default stream"
        self._new(self.streams, out, [])

    def _cudaStreamDestroy(self, stream: int) -> None:
        assert stream not in self.capturing
        del self.streams[stream]

    def _cudaStreamSynchronize(self, stream: int) -> int:
        if stream in self.capturing:
            return self._not_while_capturing()
        work, self.streams[stream] = self.streams[stream], []
        for item in work:
            item()
        return 0

    def _cudaStreamBeginCapture(self, stream: int, mode: int) -> None:
        assert stream in self.streams
        assert not self.streams[stream], "work is pending"
        assert mode in (0, 1, 2)
        self.capturing[stream] = []

    def _cudaStreamEndCapture(self, stream: int, out: Any) -> int:
        nodes = self.capturing.pop(stream)
        if nodes is None:
            out[0] = None
            return 901
        self._new(self.graphs, out, nodes)
        return 0

    def _cudaGraphInstantiateWithFlags(self, out: Any, graph: int, flags: int) -> None:
        assert flags == 0
        self._new(self.execs, out, list(self.graphs[graph]))

    def _cudaGraphLaunch(self, graph: int, stream: int) -> None:
        for node in self.execs[graph]:
            self.queue(stream, node)

    def _cudaGraphDestroy(self, graph: int) -> None:
        del self.graphs[graph]

    def _cudaGraphExecDestroy(self, graph: int) -> None:
        del self.execs[graph]
