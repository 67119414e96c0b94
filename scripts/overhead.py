"""Overhead of a bundle's runtime over bare ONNX Runtime, measured side by side.

    python scripts/overhead.py runs/walk/export/host

"step" is a whole control step, from raw sensor readings to joint targets: checks and the controller. "bare" is
`InferenceSession.run` of policy.onnx, the network alone, on the same observation. Both run in a hot loop, in turns of
200 calls, and at the control rate, in alternate periods.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np

from robolearn.runtime.bundle import Bundle
from robolearn.runtime.robot import Runtime
from robolearn.runtime.sessions import OnnxSession

TURN = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--rounds", type=int, default=50, help="turns of each call in the hot loop")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of the paced part [s]")
    args = parser.parse_args()
    bundle = Bundle.load(args.bundle)
    session = OnnxSession(bundle.graph)
    runtime, alone = Runtime(bundle, session), OnnxSession(args.bundle / bundle.manifest["policy"]["file"])
    bare = alone._session
    golden = bundle.golden
    rows = [
        ({n: golden[n][t] for n in runtime.sensors}, golden["command"][t])
        for t in range(len(golden["reset"]))
    ]
    feeds = {name: np.zeros(shape, np.float32) for name, shape in alone.inputs.items()}
    feeds["obs"][0] = golden["observations"][0]
    outputs = list(alone.outputs)

    def step(i: int) -> float:
        readings, command = rows[i % len(rows)]
        began = time.perf_counter()
        runtime.step(readings, command)
        return time.perf_counter() - began

    def network(i: int) -> float:
        began = time.perf_counter()
        bare.run(outputs, feeds)
        return time.perf_counter() - began

    hot: dict[str, list[float]] = {"bare": [], "step": []}
    for _ in range(args.rounds):
        for name, call in (("bare", network), ("step", step)):
            hot[name].append(statistics.median(call(i) for i in range(TURN)))
    cold: dict[str, list[float]] = {"bare": [], "step": []}
    due = time.perf_counter()
    for i in range(round(args.seconds * bundle.rate)):
        due += 1 / bundle.rate
        time.sleep(max(0.0, due - time.perf_counter()))
        name = ("bare", "step")[i % 2]
        cold[name].append((network if name == "bare" else step)(i))
    ports = ", ".join(f"{n} {'x'.join(map(str, shape))}" for n, shape in alone.inputs.items())
    print(f"{args.bundle}: {ports}, {bundle.rate:g} Hz")
    print(f"{'':<8}{'bare [us]':>12}{'step [us]':>12}{'more [us]':>12}{'ratio':>8}")
    for name, times in (("hot", hot), ("paced", cold)):
        a, b = (1e6 * float(np.median(times[key])) for key in ("bare", "step"))
        print(f"{name:<8}{a:>12.1f}{b:>12.1f}{b - a:>12.1f}{b / a:>8.2f}")


if __name__ == "__main__":
    main()
