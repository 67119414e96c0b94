"""The GPU's two libraries, how they are found and how their failures are told: TensorRT's module, and CUDA's runtime
through ctypes, for memory, streams and graphs, with nothing but libcudart installed.

Only CUDA calls whose signature is the same from CUDA 11.4 to 13 are used, and every return code is checked.
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
"""Names under which the loader may know CUDA's runtime, the newest first."""
DEVICE_TREE_MODEL = Path("/proc/device-tree/model")
"""Where Linux on an embedded board says which one it is."""

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
"""Arguments of what is called; all of them return a cudaError_t, an int."""

_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2
_MAJOR, _MINOR = 75, 76  # cudaDevAttrComputeCapabilityMajor and -Minor
_NON_BLOCKING = 1
# Calls of other threads, a camera's say, neither break the capture nor are refused while it lasts.
_THREAD_LOCAL = 1


def libcudart() -> Any:
    """CUDA's runtime library; the seam at which tests put one of their own.

    Raises:
        Refused: it is not installed (NOT_HERE).
    """
    for file in CUDART_FILES:
        with suppress(OSError):
            return ctypes.CDLL(file)
    raise Refused(
        f"CUDA's runtime is not here: the loader finds none of {', '.join(CUDART_FILES)}. On a Jetson: "
        "apt install nvidia-jetpack; where it is installed, add its folder to LD_LIBRARY_PATH",
        NOT_HERE,
    )


def tensorrt_module() -> Any:
    """TensorRT's Python module.

    Raises:
        Refused: it, or a library it needs, is not installed (NOT_HERE).
    """
    try:
        import tensorrt
    except Exception as error:  # besides ImportError, what its libraries fail with
        raise Refused(
            f"TensorRT's Python module cannot be imported ({error}). On a Jetson: apt install python3-libnvinfer, "
            "and make virtual environments with --system-site-packages; elsewhere: pip install tensorrt",
            NOT_HERE,
        ) from None
    return tensorrt


@functools.cache  # a process has one: TensorRT keeps to the first logger it is given
def _trt_log(trt: Any) -> Any:
    """A logger that keeps the errors, so that a refusal can name the cause."""

    class Log(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []

        # Called from the builder's own threads, where an exception would end the process.
        def log(self, severity: Any, msg: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                self.errors.append(msg)

        def words(self) -> str:
            """The first errors, each once, for later ones are consequences; none are left after that."""
            text = "; ".join(list(dict.fromkeys(self.errors))[:3])
            self.errors.clear()
            return text or "it does not say why"

    return Log()


@contextmanager
def trt_errors(trt: Any, what: str) -> Iterator[Any]:
    """The logger, emptied. What goes wrong below is refused as ENGINE, with TensorRT's own words for it."""
    log = _trt_log(trt)
    log.errors.clear()
    try:
        yield log
    except Refused as error:
        if error.code != ENGINE or not log.errors:
            raise
        raise Refused(f"{error}: {log.words()}", ENGINE) from None
    except Exception as error:  # its objects fail as TypeError or RuntimeError, with the cause in the log
        why = log.words() if log.errors else f"{type(error).__name__}: {error}"
        raise Refused(f"TensorRT {trt.__version__} {what}: {why}", ENGINE) from None


def power_mode() -> str | None:
    """What `nvpmodel -q` calls the power mode, such as MAXN; None where there is no such program."""
    try:
        asked = subprocess.run(
            ["nvpmodel", "-q"], capture_output=True, text=True, errors="replace", timeout=5, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    lines = [line.strip() for line in asked.stdout.splitlines()]
    for number, line in enumerate(lines):
        if line.startswith("NV Power Mode"):
            return (
                line.removeprefix("NV Power Mode").lstrip(" :")
                or "".join(lines[number + 1 : number + 2])
                or None
            )
    return None


def device_tree_model() -> str | None:
    """The board's name for itself; None where there is no device tree."""
    try:
        return DEVICE_TREE_MODEL.read_bytes().decode("utf-8", "replace").strip("\0 \n") or None
    except OSError:
        return None


class Cuda:
    """Device 0. Pointers, streams and graphs are the integers that CUDA gives out; the caller gives them back."""

    def __init__(self) -> None:
        self._lib = libcudart()
        for name, arguments in _CUDART_CALLS.items():
            try:
                function = getattr(self._lib, name)
            except AttributeError:
                raise Refused(
                    f"this CUDA runtime has no {name}: install CUDA 11.4 or later", NOT_HERE
                ) from None
            function.argtypes, function.restype = arguments, ctypes.c_int
        for name in ("cudaGetErrorName", "cudaGetErrorString"):
            function = getattr(self._lib, name)
            function.argtypes, function.restype = (ctypes.c_int,), ctypes.c_char_p
        try:
            count = self._number("cudaGetDeviceCount")
        except Refused as error:  # without a driver, and without a device, this call fails
            raise Refused(f"no CUDA device can be used here: {error}", NOT_HERE) from None
        if count < 1:
            raise Refused("no CUDA device can be used here: CUDA counts 0 of them", NOT_HERE)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._lib, name)(*arguments)
        if code:
            # Otherwise the next library to ask for the last error, TensorRT say, takes it for its own.
            self._lib.cudaGetLastError()
            label, text = (getattr(self._lib, f"cudaGetError{what}")(code) for what in ("Name", "String"))
            raise Refused(f"{name} failed: {label.decode()} ({text.decode()})", ENGINE)

    def _handle(self, name: str, *arguments: Any) -> int:
        """What a call writes to its first argument, a pointer or a handle."""
        out = ctypes.c_void_p()
        self._call(name, ctypes.byref(out), *arguments)
        return out.value or 0

    def _number(self, name: str, *arguments: Any) -> int:
        """The same of a call that gives out an int."""
        out = ctypes.c_int()
        self._call(name, ctypes.byref(out), *arguments)
        return out.value

    def compute_capability(self) -> str:
        """The device's, as "11.0"."""
        major, minor = (self._number("cudaDeviceGetAttribute", which, 0) for which in (_MAJOR, _MINOR))
        return f"{major}.{minor}"

    def driver(self) -> str:
        """The newest CUDA version that the installed driver supports, as "13.0"."""
        version = self._number("cudaDriverGetVersion")
        return f"{version // 1000}.{version % 1000 // 10}"

    def malloc(self, size: int) -> int:
        """`size` bytes on the device."""
        return self._handle("cudaMalloc", size)

    def free(self, pointer: int) -> None:
        """Gives back what `malloc` gave out."""
        self._call("cudaFree", pointer)

    def malloc_host(self, size: int) -> int:
        """`size` bytes that are never paged out, so that copies from and to them need not wait."""
        return self._handle("cudaMallocHost", size)

    def free_host(self, pointer: int) -> None:
        """Gives back what `malloc_host` gave out; arrays that view it must not be touched again."""
        self._call("cudaFreeHost", pointer)

    def view(self, pointer: int, shape: tuple[int, ...]) -> np.ndarray:
        """A float32 array of `shape` over memory from `malloc_host`, all zeros."""
        size = int(np.prod(shape, dtype=np.int64))
        array = np.ctypeslib.as_array((ctypes.c_float * size).from_address(pointer)).reshape(shape)
        array.fill(0.0)
        return array

    def to_device(self, device: int, host: int, size: int, stream: int) -> None:
        """Queues a copy of `size` bytes to the device."""
        self._call("cudaMemcpyAsync", device, host, size, _HOST_TO_DEVICE, stream)

    def to_host(self, host: int, device: int, size: int, stream: int) -> None:
        """Queues a copy of `size` bytes from the device."""
        self._call("cudaMemcpyAsync", host, device, size, _DEVICE_TO_HOST, stream)

    def stream(self) -> int:
        """A new stream that does not wait for the default stream, nor that for it."""
        return self._handle("cudaStreamCreateWithFlags", _NON_BLOCKING)

    def synchronize(self, stream: int) -> None:
        """Waits until all that was queued on a stream is done."""
        self._call("cudaStreamSynchronize", stream)

    def destroy_stream(self, stream: int) -> None:
        """Gives back what `stream` gave out."""
        self._call("cudaStreamDestroy", stream)

    def capture(self, stream: int, enqueue: Callable[[], None]) -> int:
        """What `enqueue` queues on a stream, as a graph to launch; none of it is run.

        Raises:
            Refused: something in it cannot be captured (ENGINE); the stream is as it was before.
        """
        self._call("cudaStreamBeginCapture", stream, _THREAD_LOCAL)
        try:
            enqueue()
        except BaseException:
            with suppress(Refused):  # a stream left in capture would refuse everything from here on
                self._call("cudaGraphDestroy", self._handle_of_capture(stream))
            raise
        graph = self._handle_of_capture(stream)
        try:
            return self._handle("cudaGraphInstantiateWithFlags", graph, 0)
        finally:
            self._call("cudaGraphDestroy", graph)  # the instance does not need it any more

    def _handle_of_capture(self, stream: int) -> int:
        """Ends a capture; here CUDA writes to the second argument."""
        out = ctypes.c_void_p()
        self._call("cudaStreamEndCapture", stream, ctypes.byref(out))
        return out.value or 0

    def launch(self, graph: int, stream: int) -> None:
        """Queues a captured graph."""
        self._call("cudaGraphLaunch", graph, stream)

    def destroy_graph(self, graph: int) -> None:
        """Gives back what `capture` gave out."""
        self._call("cudaGraphExecDestroy", graph)
