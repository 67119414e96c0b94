"""`python runtime.py check | build | measure`: what is done with a bundle on the robot's computer."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robolearn.runtime.bundle import Bundle
from robolearn.runtime.cuda import device_tree_model
from robolearn.runtime.engine import EngineSession, build_engine, device
from robolearn.runtime.errors import BAD_INPUT, ENGINE, OK, OVER_BUDGET, Refused
from robolearn.runtime.measure import is_target, measure, over_budget
from robolearn.runtime.robot import Runtime, replay
from robolearn.runtime.sessions import OnnxSession, Session

RUNTIMES = ("onnxruntime", "tensorrt")


def open_session(bundle: Bundle, name: str) -> Session:
    """The bundle's network in a runtime, checked against the recorded observations before anybody uses it.

    Raises:
        Refused: it cannot be loaded here, is another device's engine, or does not do what the trained policy did.
    """
    session: Session
    if name == "tensorrt":
        if not bundle.engine.is_file():
            raise Refused(f"{bundle.engine.name} is not built yet: python runtime.py build", ENGINE)
        session = EngineSession(bundle.engine, bundle.manifest["graph"]["sha256"])
    else:
        session = OnnxSession(bundle.graph)
    replay(bundle, session)
    return session


def available(bundle: Bundle) -> list[str]:
    """The runtimes this bundle has here: TensorRT where an engine is built, ONNX Runtime where it is installed and
    multiplies in the graph's precision."""
    found = ["tensorrt"] if bundle.engine.is_file() else []
    try:
        OnnxSession(bundle.graph)
    except Refused as error:
        if found:
            return found
        raise Refused(
            f"{error}; and no TensorRT engine is built (python runtime.py build)", error.code
        ) from None
    return [*found, "onnxruntime"]


def check(bundle: Bundle, runtimes: Sequence[str]) -> int:
    """The golden check in each runtime."""
    for name in runtimes:
        session = open_session(bundle, name)
        worst = replay(bundle, session)
        steps = len(bundle.golden["reset"])
        print(
            f"ok    {name}: {steps} recorded control steps repeated from raw sensors; largest differences "
            + ", ".join(f"{key} {value:.1e}" for key, value in worst.items())
        )
        for warning in getattr(session, "warnings", ()):
            print(f"warn  {name}: {warning}")
    return OK


def build(bundle: Bundle) -> int:
    """A TensorRT engine for this very machine; it stays only if it passes the golden check."""
    sidecar = build_engine(
        bundle.graph, bundle.engine, bundle.manifest["graph"]["precision"], bundle.folder / "timing.cache"
    )
    try:
        code = check(bundle, ["tensorrt"])
    except Refused:
        for path in (bundle.engine, bundle.engine.with_name(bundle.engine.name + ".json")):
            path.unlink(missing_ok=True)
        raise
    print(
        f"wrote {bundle.engine} (TensorRT {sidecar['tensorrt']}, compute capability {sidecar['compute_capability']})"
    )
    return code


def measure_all(bundle: Bundle, runtimes: Sequence[str], seconds: float, write: bool) -> int:
    """Time each runtime at the control rate, say whether it fits, and write latency.json."""
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
        results.append(result | {"status": status, "over_budget": over, "board": here})
        step, network, hot, late = (result[key] for key in ("paced", "network", "hot", "late"))
        print(
            f"{name} on {where}, paced at {bundle.rate:g} Hz: p50 {step['p50_ms']:.3f}, p99 {step['p99_ms']:.3f}, "
            f"max {step['max_ms']:.3f} ms of {period:g} ms (network alone p50 {network['p50_ms']:.3f}); hot p50 "
            f"{hot['p50_ms']:.3f}; first call {result['first_ms']:.1f}; begun late p99 {late['p99_ms']:.3f} ms"
        )
        for line in over:
            print(f"  over: {line}")
    best = min(results, key=lambda result: (len(result["over_budget"]), result["paced"]["p99_ms"]))
    fits = not best["over_budget"]
    said = "fits" if fits else "misses"
    if mine:
        print(f"verdict: measured on {target['title']}: {best['runtime']} {said} the budget")
    else:
        print(
            f"verdict: none for {target['title']}: this is {where}, where {best['runtime']} {said} the same budget"
        )
    if write:
        path = bundle.folder / "latency.json"
        saved = {
            "schema": 1,
            "status": status,
            "target": target["name"],
            "fits": fits if mine else None,
            "recommended": best["runtime"] if mine else None,
            "measured": results,
        }
        if "tensorrt" in runtimes:
            saved["device"] = device()
        part = path.with_name(f".latency.{os.getpid()}.part.json")
        part.write_text(json.dumps(saved, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        os.replace(part, path)
        print(f"wrote {path}")
    return OK if fits else OVER_BUDGET


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="runtime.py",
        description="A trained policy on the robot's computer.",
        epilog="Exit codes: 0 done, 2 bad input, 3 not the policy that was trained, 4 over the budget, 5 not possible "
        "on this machine, 6 engine of another device or not buildable.",
    )
    parser.add_argument("--bundle", type=Path, default=Path(__file__).parent, help="folder of the bundle")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("check", "repeat the recorded control steps and compare"),
        ("build", "build a TensorRT engine for this machine, and check it"),
        ("measure", "time control steps at the control rate, against the budget"),
    ):
        sub = commands.add_parser(name, help=text, description=text)
        if name != "build":
            sub.add_argument(
                "--runtime", choices=RUNTIMES, help="only this one; all that are here where omitted"
            )
        if name == "measure":
            sub.add_argument(
                "--seconds", type=float, default=20.0, help="how long to go at the control rate [s]"
            )
    asked = parser.parse_args(argv)
    try:
        bundle = Bundle.load(asked.bundle)
        if asked.command == "build":
            return build(bundle)
        runtimes = [asked.runtime] if asked.runtime else available(bundle)
        if asked.command == "check":
            return check(bundle, runtimes)
        if not 0 < asked.seconds <= 86400:
            raise Refused(f"--seconds {asked.seconds:g} is not within 0..86400", BAD_INPUT)
        return measure_all(bundle, runtimes, asked.seconds, write=True)
    except Refused as error:
        print(f"runtime.py: {error}", file=sys.stderr)
        return error.code
    except OSError as error:
        print(f"runtime.py: {error.filename or 'a file'}: {error.strerror}", file=sys.stderr)
        return BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
