"""`python runtime.py check | build | measure`: the command line of a bundle."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from robolearn.runtime.bundle import Bundle
from robolearn.runtime.cuda import device_tree_model, power_mode
from robolearn.runtime.engine import EngineSession, build_engine
from robolearn.runtime.errors import BAD_INPUT, ENGINE, OK, OVER_BUDGET, Refused
from robolearn.runtime.files import MALFORMED, read
from robolearn.runtime.measure import LEAST_STEPS, best_of, is_target, measure, over_budget, processor
from robolearn.runtime.picture import draw_latency
from robolearn.runtime.robot import Runtime, replay
from robolearn.runtime.sessions import OnnxSession, Session
from robolearn.runtime.signature import require_signed

INTERRUPTED = 130

RUNTIMES = ("onnxruntime", "tensorrt")

BESIDE = ("manifest.json", "golden.npz", "manifest.sig", "timing.cache", "__pycache__")
"""Names in a bundle whose hashes are not in the manifest."""
ANY = {"p50": 1.0, "p99": 1.0, "max": 1.0, "jitter": 1.0}
"""A budget to try a measurement with."""
TIMES = ("latency.json", "latency.png")
"""Files that `measure` writes anew."""


def open_session(bundle: Bundle, name: str) -> Session:
    """The bundle's network, loaded in the runtime `name`, one of RUNTIMES; runs the golden check.

    Raises:
        Refused: it cannot be loaded on this machine, its engine is for another device, or the golden check failed.
    """
    session: Session
    if name not in RUNTIMES:
        raise Refused(f"unknown runtime {name!r}; valid: {', '.join(RUNTIMES)}", BAD_INPUT)
    if name == "tensorrt":
        if not bundle.engine.is_file():
            raise Refused(f"{bundle.engine.name} is not built yet: python runtime.py build", ENGINE)
        session = EngineSession(bundle.engine, bundle.manifest["controller"]["sha256"])
    else:
        session = OnnxSession(bundle.graph)
    replay(bundle, session)
    return session


def available(bundle: Bundle) -> list[str]:
    """Names of the runtimes that can run the bundle here: TensorRT where an engine is built, ONNX Runtime where it is
    installed and supports the precision.

    Raises:
        Refused: there is none.
    """
    found = ["tensorrt"] if bundle.engine.is_file() else []
    try:
        OnnxSession(bundle.graph)
    except Refused as error:
        if found:
            return found
        raise Refused(
            f"{error}; and no TensorRT engine is built: python runtime.py build", error.code
        ) from None
    return [*found, "onnxruntime"]


def check(bundle: Bundle, runtimes: Sequence[str]) -> int:
    """Compare every file with its hash in the manifest, and run the golden check in each runtime."""
    _require_unaltered(bundle)
    for name in runtimes:
        session = open_session(bundle, name)
        _say_checked(bundle, name, replay(bundle, session), getattr(session, "warnings", ()))
        session.close()
    return OK


def _require_unaltered(bundle: Bundle) -> None:
    """Refuse a bundle in which a file differs from the export; times that `measure` wrote are only told.

    Raises:
        Refused: BAD_INPUT; every file that differs is named.
    """
    found = bundle.altered()
    again = [name for name in found if name in TIMES and _measured_again(bundle)]
    other = [f"{name} {why}" for name, why in found.items() if name not in again]
    if other:
        raise Refused(f"{'; '.join(other[:8])}{'; ...' * (len(other) > 8)}", BAD_INPUT)
    known = {
        *bundle.manifest["files"],
        *BESIDE,
        bundle.graph.name,
        bundle.engine.name,
        f"{bundle.engine.name}.json",
    }
    places = {path.name for path in bundle.folder.iterdir()} - {name.partition("/")[0] for name in known}
    if places:
        print(f"note  not of the export, and not compared: {', '.join(sorted(places)[:8])}")
    if again:
        print(f"note  {' and '.join(again)}: measured again since the export, so not compared with it")


def _measured_again(bundle: Bundle) -> bool:
    """Whether `measure` has written its times into latency.json."""
    return bool(_read_latency(bundle.folder / "latency.json").get("measured_again"))


def build(bundle: Bundle) -> int:
    """Build a TensorRT engine for this machine; it replaces an older one only after it passes the golden check."""
    new = bundle.folder / ".new.engine"
    pair = {new: bundle.engine, _sidecar(new): _sidecar(bundle.engine)}
    try:
        graph = bundle.manifest["controller"]
        sidecar = build_engine(bundle.graph, new, graph["precision"], bundle.folder / "timing.cache")
        session = EngineSession(new, graph["sha256"])
        worst = replay(bundle, session)
        warnings = session.warnings
        session.close()
        for path, place in pair.items():  # killed in between, the hashes differ and the engine is refused
            os.replace(path, place)
    finally:
        for path in pair:
            path.unlink(missing_ok=True)
    _say_checked(bundle, "tensorrt", worst, warnings)
    print(
        f"wrote {bundle.engine} (TensorRT {sidecar['tensorrt']}, compute capability {sidecar['compute_capability']})"
    )
    return OK


def _sidecar(engine: Path) -> Path:
    return engine.with_name(f"{engine.name}.json")


def _say_checked(bundle: Bundle, name: str, worst: dict[str, float], warnings: Sequence[str]) -> None:
    steps = len(bundle.golden["reset"])
    source = "raw sensors" if bundle.contract["joints"] else "recorded observations"
    print(
        f"ok    {name}: {steps} recorded control steps replayed from {source}; largest differences "
        + ", ".join(f"{key} {value:.1e}" for key, value in worst.items())
    )
    for warning in warnings:
        print(f"warn  {name}: {warning}")


def measure_all(bundle: Bundle, runtimes: Sequence[str], seconds: float, write: bool) -> int:
    """Measure each runtime at the control rate, print whether it meets the budget, and write latency.json."""
    target = bundle.manifest["target"]
    here = device_tree_model()
    mine = is_target(target, here)
    budget, period = target["budget"], 1e3 / bundle.rate
    status = "measured-on-target" if mine else "measured-other-device"
    where = here or "this machine"
    results: list[dict[str, Any]] = []
    pictured: list[dict[str, Any]] = []
    for name in runtimes:
        result = measure(Runtime(bundle, open_session(bundle, name)), bundle.golden, seconds)
        over = over_budget(result, budget)
        pictured.append(dict(result))
        del result["paced_ms"]
        about: dict[str, Any] = {
            "status": status,
            "board": here,
            "processor": processor(),
            "power_mode": power_mode(),
        }
        about |= {"date": datetime.now(timezone.utc).isoformat(timespec="seconds")}
        results.append({**about, **result, "over_budget": over})
        step, network, hot, late = (result[key] for key in ("paced", "network", "hot", "late"))
        print(
            f"{name} on {where}, paced at {bundle.rate:g} Hz: p50 {step['p50_ms']:.3f}, p99 {step['p99_ms']:.3f}, "
            f"max {step['max_ms']:.3f} ms of {period:g} ms (network alone p50 {network['p50_ms']:.3f}); hot p50 "
            f"{hot['p50_ms']:.3f}; start delay p99 {late['p99_ms']:.3f} ms"
        )
        for line in over:
            print(f"  over: {line}")
    path = bundle.folder / "latency.json"
    saved = _with(_read_latency(path), results)
    # The verdict takes every measurement on this machine with enough steps, new or old. A PC has no name of a board.
    machine = here, processor()
    judged = [r for r in saved["measured"] if _machine(r) == machine and r["paced"]["count"] >= LEAST_STEPS]
    code = OK
    if not mine:
        best = best_of(results, budget)
        said = "misses" if best["over_budget"] else "meets"
        print(
            f"verdict: none for {target['title']}: this is {where}; here {best['runtime']} {said} the same budget"
        )
    elif not judged:
        count = results[0]["paced"]["count"]
        print(
            f"verdict: none: {count} control steps measured, at least {LEAST_STEPS} needed; raise --seconds"
        )
    else:
        best = best_of(judged, budget)
        over = over_budget(best, budget)
        said = "misses" if over else "meets"
        code = OVER_BUDGET if over else OK
        print(f"verdict: measured on {target['title']}: {best['runtime']} {said} the budget")
        lines = [f"measured on {where}, {best['runtime']}: {said} the budget", *over]
        saved |= {"status": status, "fits": not over, "recommended": best["runtime"], "lines": lines}
    if write:
        _write_latency(path, saved | {"measured_again": results[0]["date"]})
        title = f"measured on {where}" if mine else f"not {target['title']}: measured on {where}"
        drawn = _draw(path.with_suffix(".png"), pictured, {k: v * period for k, v in budget.items()}, title)
        print(f"wrote {path}{drawn}; REPORT.md still shows the export's measurements")
    return code


def _draw(path: Path, results: list[dict[str, Any]], budget_ms: dict[str, float], title: str) -> str:
    """Draw latency.png anew, and say so."""
    part = path.with_name(f".latency.{os.getpid()}.part.png")
    try:
        draw_latency(part, results, budget_ms, title)
        os.replace(part, path)
    except ImportError:
        return "; latency.png still shows the export's times (it needs matplotlib: pip install matplotlib)"
    finally:
        part.unlink(missing_ok=True)
    return f" and {path.name}"


def _read_latency(path: Path) -> dict[str, Any]:
    """Content of latency.json; without measurements where it is missing or malformed."""
    try:
        saved = json.loads(read(path, 1 << 24).decode("utf-8"))
        for result in saved["measured"]:
            int(result["paced"]["count"]), str(result["runtime"]), over_budget(result, ANY)
        return dict(saved)
    except (OSError, Refused, *MALFORMED):
        return {"schema": 1, "status": "not-run", "measured": []}


def _machine(result: dict[str, Any]) -> tuple[str | None, str | None]:
    """The board and the processor that a measurement is of."""
    return result.get("board"), result.get("processor")


def _with(saved: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    """latency.json's content with new measurements: for each runtime and machine the newest one, but a measurement with
    enough steps is not replaced by a shorter one."""
    kept = {(result["runtime"], *_machine(result)): result for result in saved["measured"]}
    for result in results:
        key = (result["runtime"], *_machine(result))
        long = [r["paced"]["count"] >= LEAST_STEPS for r in (kept.get(key, result), result)]
        if long[1] or not long[0]:
            kept[key] = result
    return saved | {"measured": list(kept.values())}


def _write_latency(path: Path, saved: dict[str, Any]) -> None:
    part = path.with_name(f".latency.{os.getpid()}.part.json")
    try:
        part.write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="runtime.py",
        description="A trained policy on the robot's computer.",
        epilog="Exit codes: 0 done, 2 bad input, 3 not the trained policy, 4 over the budget, 5 TensorRT, GPU or "
        "package missing, 6 engine for another device or build failed.",
    )
    parser.add_argument("--bundle", type=Path, default=Path(__file__).parent, help="folder of the bundle")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("check", "replay the recorded control steps and compare with the trained policy"),
        ("build", "build a TensorRT engine for this machine and check it"),
        ("measure", "measure control steps at the control rate and compare with the budget"),
    ):
        sub = commands.add_parser(name, help=text, description=text)
        if name != "build":
            sub.add_argument("--runtime", choices=RUNTIMES, help="only this runtime; default: all available")
        if name == "check":
            sub.add_argument(
                "--key", type=Path, help="public ed25519 key (PEM) that the bundle must be signed with"
            )
        if name == "measure":
            sub.add_argument("--seconds", type=float, default=60.0, help="duration of the measurement [s]")
    arguments = parser.parse_args(argv)
    try:
        if getattr(arguments, "key", None):
            require_signed(arguments.bundle, arguments.key)
        bundle = Bundle.load(arguments.bundle)
        if arguments.command == "build":
            return build(bundle)
        runtimes = [arguments.runtime] if arguments.runtime else available(bundle)
        if arguments.command == "check":
            return check(bundle, runtimes)
        if not 0 < arguments.seconds <= 86400:
            raise Refused(f"--seconds {arguments.seconds:g} is not within 0..86400", BAD_INPUT)
        return measure_all(bundle, runtimes, arguments.seconds, write=True)
    except Refused as error:
        print(f"runtime.py: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        print(f"runtime.py: {error.filename or 'a file'}: {error.strerror}", file=sys.stderr)
        return BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
