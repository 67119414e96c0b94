"""TensorRT's Python module, and the CUDA runtime through ctypes: buffers, streams and CUDA graphs.

Needs nothing but libcudart. Uses only CUDA calls with the same signature from CUDA 11.4 to 13, and checks every return
code.
"""

from __future__ import annotations

import ctypes
import functools
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from robolearn.runtime.errors import ENGINE, NOT_HERE, Refused

CUDART_FILES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so")
"""File names of the CUDA runtime, newest first."""
DEVICE_TREE_MODEL = Path("/proc/device-tree/model")
"""File in which Linux on an embedded board gives the board's name."""

_HANDLE, _HANDLE_OUT, _INT_OUT = (
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_int),
)
_CUDART_CALLS: dict[str, tuple[Any, ...]] = {
    "cudaGetDeviceCount": (_INT_OUT,),
    "cudaDriverGetVersion": (_INT_OUT,),
    "cudaDeviceGetAttribute": (_INT_OUT, ctypes.c_int, ctypes.c_int),
    "cudaGetLastError": (),
    "cudaMalloc": (_HANDLE_OUT, ctypes.c_size_t),
    "cudaFree": (_HANDLE,),
    "cudaMallocHost": (_HANDLE_OUT, ctypes.c_size_t),
    "cudaFreeHost": (_HANDLE,),
    "cudaMemcpyAsync": (_HANDLE, _HANDLE, ctypes.c_size_t, ctypes.c_int, _HANDLE),
    "cudaStreamCreateWithFlags": (_HANDLE_OUT, ctypes.c_uint),
    "cudaStreamSynchronize": (_HANDLE,),
    "cudaStreamDestroy": (_HANDLE,),
    "cudaStreamBeginCapture": (_HANDLE, ctypes.c_int),
    "cudaStreamEndCapture": (_HANDLE, _HANDLE_OUT),
    "cudaGraphInstantiateWithFlags": (_HANDLE_OUT, _HANDLE, ctypes.c_ulonglong),
    "cudaGraphLaunch": (_HANDLE, _HANDLE),
    "cudaGraphDestroy": (_HANDLE,),
    "cudaGraphExecDestroy": (_HANDLE,),
}
"""Argument types by function; all return a cudaError_t, an int."""

_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2
_MAJOR, _MINOR = 75, 76  # cudaDevAttrComputeCapabilityMajor and -Minor
_NON_BLOCKING = 1
# CUDA calls of other threads, such as a camera's, neither break the capture nor fail during it.
_THREAD_LOCAL = 1


def libcudart() -> Any:
    """The CUDA runtime library; tests replace this function.

    Raises:
        Refused: NOT_HERE; it is not installed.
    """
    for file in CUDART_FILES:
        with suppress(OSError):
            return ctypes.CDLL(file)
    raise Refused(
        f"the CUDA runtime is not installed: the loader finds none of {', '.join(CUDART_FILES)}. On a Jetson: "
        "apt install nvidia-jetpack; if it is installed, add its folder to LD_LIBRARY_PATH",
        NOT_HERE,
    )


def tensorrt_module() -> Any:
    """TensorRT's Python module.

    Raises:
        Refused: NOT_HERE; it, or a library that it needs, is not installed.
    """
    try:
        import tensorrt
    except Exception as error:  # its libraries raise more than ImportError
        raise Refused(
            f"TensorRT's Python module cannot be imported ({error}). On a Jetson: apt install python3-libnvinfer, "
            "and make virtual environments with --system-site-packages; elsewhere: pip install tensorrt",
            NOT_HERE,
        ) from None
    return tensorrt


@functools.cache  # one per process: TensorRT uses only the first logger that it gets
def _trt_log(trt: Any) -> Any:
    """A logger that collects errors, so that a message can give the cause."""

    class Log(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []

        # Called from the builder's own threads, where an exception would end the process.
        def log(self, severity: Any, msg: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                self.errors.append(msg)

        def words(self) -> str:
            """The first three distinct errors, since later ones are consequences; clears the list."""
            text = "; ".join(list(dict.fromkeys(self.errors))[:3])
            self.errors.clear()
            return text or "no reason given"

    return Log()


@contextmanager
def trt_errors(trt: Any, what: str) -> Iterator[Any]:
    """Yields the cleared logger; errors inside become Refused with code ENGINE and TensorRT's messages."""
    log = _trt_log(trt)
    log.errors.clear()
    try:
        yield log
    except Refused as error:
        if error.code != ENGINE or not log.errors:
            raise
        raise Refused(f"{error}: {log.words()}", ENGINE) from None
    except Exception as error:  # its objects raise TypeError or RuntimeError; the log holds the cause
        why = log.words() if log.errors else f"{type(error).__name__}: {error}"
        raise Refused(f"TensorRT {trt.__version__} {what}: {why}", ENGINE) from None


def power_mode() -> str | None:
    """The power mode that `nvpmodel -q` prints, such as MAXN; None where that program is missing."""
    try:
        done = subprocess.run(
            ["nvpmodel", "-q"], capture_output=True, text=True, errors="replace", timeout=5, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    lines = [line.strip() for line in done.stdout.splitlines()]
    for number, line in enumerate(lines):
        if line.startswith("NV Power Mode"):
            return (
                line.removeprefix("NV Power Mode").lstrip(" :")
                or "".join(lines[number + 1 : number + 2])
                or None
            )
    return None


def device_tree_model() -> str | None:
    """The board's name in the device tree; None where there is no device tree."""
    try:
        return DEVICE_TREE_MODEL.read_bytes().decode("utf-8", "replace").strip("\0 \n") or None
    except OSError:
        return None


class Cuda:
    """CUDA device 0. Pointers, streams and CUDA graphs are CUDA's integer handles; the caller frees them.

    Every method raises Refused with code ENGINE where its CUDA call fails.
    """

    def __init__(self) -> None:
        self._lib = libcudart()
        for name, arguments in _CUDART_CALLS.items():
            try:
                function = getattr(self._lib, name)
            except AttributeError:
                raise Refused(
                    f"the CUDA runtime has no {name}; install CUDA 11.4 or later", NOT_HERE
                ) from None
            function.argtypes, function.restype = arguments, ctypes.c_int
        for name in ("cudaGetErrorName", "cudaGetErrorString"):
            function = getattr(self._lib, name)
            function.argtypes, function.restype = (ctypes.c_int,), ctypes.c_char_p
        try:
            count = self._number("cudaGetDeviceCount")
        except Refused as error:  # this call fails without a driver and without a device
            raise Refused(f"no usable CUDA device: {error}", NOT_HERE) from None
        if count < 1:
            raise Refused("no usable CUDA device: CUDA counts 0", NOT_HERE)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._lib, name)(*arguments)
        if code:
            # Clears the error: otherwise TensorRT would find it as CUDA's last error and report it.
            self._lib.cudaGetLastError()
            label, text = (getattr(self._lib, f"cudaGetError{what}")(code) for what in ("Name", "String"))
            raise Refused(f"{name} failed: {label.decode()} ({text.decode()})", ENGINE)

    def _handle(self, name: str, *arguments: Any) -> int:
        """The pointer or handle that a call writes to its first argument."""
        out = ctypes.c_void_p()
        self._call(name, ctypes.byref(out), *arguments)
        return out.value or 0

    def _number(self, name: str, *arguments: Any) -> int:
        """The int that a call writes to its first argument."""
        out = ctypes.c_int()
        self._call(name, ctypes.byref(out), *arguments)
        return out.value

    def compute_capability(self) -> str:
        """Compute capability of the device, such as "11.0"."""
        major, minor = (self._number("cudaDeviceGetAttribute", which, 0) for which in (_MAJOR, _MINOR))
        return f"{major}.{minor}"

    def driver(self) -> str:
        """Newest CUDA version that the driver supports, such as "13.0"."""
        version = self._number("cudaDriverGetVersion")
        return f"{version // 1000}.{version % 1000 // 10}"

    def malloc(self, size: int) -> int:
        """Allocate `size` bytes on the device."""
        return self._handle("cudaMalloc", size)

    def free(self, pointer: int) -> None:
        """Free device memory from `malloc`."""
        self._call("cudaFree", pointer)

    def malloc_host(self, size: int) -> int:
        """Allocate `size` bytes of pinned host memory, so that copies are asynchronous."""
        return self._handle("cudaMallocHost", size)

    def free_host(self, pointer: int) -> None:
        """Free host memory from `malloc_host`; do not use arrays that view it afterwards."""
        self._call("cudaFreeHost", pointer)

    def view(self, pointer: int, shape: tuple[int, ...]) -> np.ndarray:
        """A float32 array of `shape` over host memory from `malloc_host`, set to zero."""
        size = int(np.prod(shape, dtype=np.int64))
        array = np.ctypeslib.as_array((ctypes.c_float * size).from_address(pointer)).reshape(shape)
        array.fill(0.0)
        return array

    def to_device(self, device: int, host: int, size: int, stream: int) -> None:
        """Enqueue a copy of `size` bytes to the device."""
        self._call("cudaMemcpyAsync", device, host, size, _HOST_TO_DEVICE, stream)

    def to_host(self, host: int, device: int, size: int, stream: int) -> None:
        """Enqueue a copy of `size` bytes from the device."""
        self._call("cudaMemcpyAsync", host, device, size, _DEVICE_TO_HOST, stream)

    def stream(self) -> int:
        """Create a stream that does not synchronize with the default stream."""
        return self._handle("cudaStreamCreateWithFlags", _NON_BLOCKING)

    def synchronize(self, stream: int) -> None:
        """Wait until all work on a stream is done."""
        self._call("cudaStreamSynchronize", stream)

    def destroy_stream(self, stream: int) -> None:
        """Destroy a stream from `stream`."""
        self._call("cudaStreamDestroy", stream)

    def capture(self, stream: int, enqueue: Callable[[], None]) -> int:
        """Capture what `enqueue` queues on a stream as an executable CUDA graph, without running it.

        Raises:
            Refused: ENGINE; something in it cannot be captured. The capture is ended.
        """
        self._call("cudaStreamBeginCapture", stream, _THREAD_LOCAL)
        try:
            enqueue()
        except BaseException:
            with suppress(Refused):  # ends the capture: otherwise every later call on the stream fails
                self._call("cudaGraphDestroy", self._handle_of_capture(stream))
            raise
        graph = self._handle_of_capture(stream)
        try:
            return self._handle("cudaGraphInstantiateWithFlags", graph, 0)
        finally:
            self._call("cudaGraphDestroy", graph)  # the executable CUDA graph does not need it

    def _handle_of_capture(self, stream: int) -> int:
        """End a capture; here CUDA writes the handle to the second argument."""
        out = ctypes.c_void_p()
        self._call("cudaStreamEndCapture", stream, ctypes.byref(out))
        return out.value or 0

    def launch(self, graph: int, stream: int) -> None:
        """Enqueue a captured CUDA graph."""
        self._call("cudaGraphLaunch", graph, stream)

    def destroy_graph(self, graph: int) -> None:
        """Destroy a CUDA graph from `capture`."""
        self._call("cudaGraphExecDestroy", graph)
