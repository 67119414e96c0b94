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

from robolearn.runtime.bundle import MALFORMED, Bundle
from robolearn.runtime.cuda import device_tree_model, power_mode
from robolearn.runtime.engine import EngineSession, build_engine
from robolearn.runtime.errors import BAD_INPUT, ENGINE, OK, OVER_BUDGET, Refused
from robolearn.runtime.measure import LEAST_STEPS, best_of, is_target, measure, over_budget, processor
from robolearn.runtime.robot import Runtime, replay
from robolearn.runtime.sessions import OnnxSession, Session

INTERRUPTED = 130

RUNTIMES = ("onnxruntime", "tensorrt")


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
        session = EngineSession(bundle.engine, bundle.manifest["graph"]["sha256"])
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
    """Run the golden check in each runtime."""
    for name in runtimes:
        session = open_session(bundle, name)
        _say_checked(bundle, name, replay(bundle, session), getattr(session, "warnings", ()))
        session.close()
    return OK


def build(bundle: Bundle) -> int:
    """Build a TensorRT engine for this machine; it replaces an older one only after it passes the golden check."""
    new = bundle.folder / ".new.engine"
    pair = {new: bundle.engine, _sidecar(new): _sidecar(bundle.engine)}
    try:
        graph = bundle.manifest["graph"]
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
    for name in runtimes:
        result = measure(Runtime(bundle, open_session(bundle, name)), bundle.golden, seconds)
        over = over_budget(result, budget)
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
    # The verdict takes every measurement on this board with enough steps, new or old.
    judged = [r for r in saved["measured"] if r.get("board") == here and r["paced"]["count"] >= LEAST_STEPS]
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
        _write_latency(path, saved)
        print(f"wrote {path}; REPORT.md still shows the export's measurements")
    return code


def _read_latency(path: Path) -> dict[str, Any]:
    """Content of latency.json; without measurements where it is missing or malformed."""
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        for result in saved["measured"]:
            int(result["paced"]["count"]), float(result["paced"]["p99_ms"]), str(result["runtime"])
        return dict(saved)
    except (OSError, *MALFORMED):
        return {"schema": 1, "status": "not-run", "measured": []}


def _with(saved: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    """latency.json's content with new measurements: for each runtime and board the newest one, but a measurement with
    enough steps is not replaced by a shorter one."""
    kept = {(result["runtime"], result.get("board")): result for result in saved["measured"]}
    for result in results:
        key = (result["runtime"], result["board"])
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
        if name == "measure":
            sub.add_argument("--seconds", type=float, default=60.0, help="duration of the measurement [s]")
    arguments = parser.parse_args(argv)
    try:
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
