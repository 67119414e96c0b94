"""Generates Warp kernels from the equations of motion: one thread per environment, several substeps per launch."""

from __future__ import annotations

import hashlib
import linecache
from collections.abc import Callable, Sequence
from typing import Any

import warp as wp

from robolearn.envs.differentiable.mechanics import Mechanics
from robolearn.envs.differentiable.symbols import Recording, Scalar

SIZES = (8, 4, 2, 1, 0)
"""Numbers of substeps with a kernel; other numbers are sums of these. 0 only computes the outputs."""


def control_step_kernels(
    mechanics: Mechanics,
    width: int,
    motors: int,
    seen: int,
    params: tuple[str, ...],
    number: str = "float32",
) -> dict[int, wp.Kernel]:
    """Kernels of one robot by their number of substeps (`SIZES`).

    Inputs are rows (N, R), joint targets (N, A) and params (N, P); outputs are new rows (N, R) and the fields of
    Entity, `seen` (N, L). All have the type `number`; `width`, `motors` and `seen` are R, A and L. The code has no
    loops or branches and assigns each variable once, so that Warp's adjoint finds every intermediate value.
    """
    code, results = _record(mechanics.substep, width, motors, params, number)
    output_code, outputs = _record(mechanics.outputs, width, motors, params, number)
    vectors = {"Row": width, "Motors": max(1, motors), "Params": max(1, len(params)), "Seen": seen}
    arrays = ("rows", "targets", "params", "new_rows", "seen")
    lines = [
        "import warp as wp",
        *(f"{name} = wp.types.vector(length={size}, dtype=wp.{number})" for name, size in vectors.items()),
        *_function("substep", "Row", code, results),
        *_function("look", "Seen", output_code, outputs),
    ]
    for substeps in SIZES:
        lines += [
            "@wp.kernel",
            f"def steps_{substeps}({', '.join(f'{name}: wp.array2d(dtype=wp.{number})' for name in arrays)}):",
            "    i = wp.tid()",
            f"    x0 = {_read('Row', 'rows', width, number)}",
            f"    u = {_read('Motors', 'targets', motors, number)}",
            f"    p = {_read('Params', 'params', len(params), number)}",
            *(f"    x{k + 1} = substep(x{k}, u, p)" for k in range(substeps)),
            f"    y = look(x{substeps}, u, p)",
            *(f"    new_rows[i, {c}] = x{substeps}[{c}]" for c in range(width)),
            *(f"    seen[i, {c}] = y[{c}]" for c in range(seen)),
        ]
    defined = _execute("\n".join(lines) + "\n")
    return {substeps: defined[f"steps_{substeps}"] for substeps in SIZES}


def _record(
    function: Callable[..., Sequence[Scalar]], width: int, motors: int, params: tuple[str, ...], number: str
) -> tuple[list[str], list[str]]:
    recording = Recording()
    row: list[Scalar] = [recording.input(f"x[{c}]") for c in range(width)]
    target = [recording.input(f"u[{c}]") for c in range(motors)]
    values = {name: recording.input(f"p[{c}]") for c, name in enumerate(params)}
    literal = "{}" if number == "float32" else f"wp.{number}({{}})"
    return recording.code(function(row, target, values), literal)


def _function(name: str, result: str, code: list[str], values: list[str]) -> list[str]:
    return [
        "@wp.func",
        f"def {name}(x: Row, u: Motors, p: Params) -> {result}:",
        *(f"    {line}" for line in code),
        f"    return {result}({', '.join(values)})",
    ]


def _read(kind: str, array: str, width: int, number: str) -> str:
    return f"{kind}({', '.join(f'{array}[i, {c}]' for c in range(width)) or f'wp.{number}(0.0)'})"


def _execute(source: str) -> dict[str, Any]:
    """Execute Python source and return its namespace; `linecache` keeps the source, where Warp reads it."""
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    name = f"<robolearn control step {digest}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    defined: dict[str, Any] = {"__name__": f"robolearn_control_step_{digest}"}
    exec(compile(source, name, "exec"), defined)  # noqa: S102 - generated above, from numbers alone
    return defined
