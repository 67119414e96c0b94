"""Fits the network of `model: network` to a log of motors; the columns are in `robolearn/simulation/motor_fit.py`.

python scripts/fit_motor.py log.csv knee.onnx --joint l_knee --joint r_knee --history 3 --interval 0.005
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from robolearn.errors import ConfigError
from robolearn.simulation.motor_fit import UNIT, fit, read_logs


def main() -> int:
    """Read, fit, write; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("log", type=Path, help="CSV or NPZ")
    parser.add_argument("output", type=Path, help="ONNX file to write")
    parser.add_argument(
        "--joint", action="append", default=[], help="a motor of the log; all without this option"
    )
    parser.add_argument("--history", type=int, default=3, help="samples of error and velocity")
    parser.add_argument(
        "--interval", type=float, default=0.0, help="time between two of them [s]; 0: the log's"
    )
    parser.add_argument("--hidden", type=int, nargs="+", default=[32, 32], help="widths of the hidden layers")
    parser.add_argument("--unit", choices=list(UNIT), default="Softsign", help="activation function")
    parser.add_argument("--steps", type=int, default=3000, help="gradient steps")
    parser.add_argument("--seed", type=int, default=0, help="of weights and batches")
    args = parser.parse_args()
    try:
        logs = read_logs(args.log, args.joint)
        fitted = fit(logs, args.history, args.interval, args.hidden, args.unit, args.steps, args.seed)
        fitted.write(args.output)
    except (ConfigError, OSError) as error:
        sys.stderr.write(f"fit_motor.py: {error}\n")
        return 2
    print(
        f"{len(logs)} motors, {fitted.history} samples, {fitted.interval:g} s apart; on the last fifth of the log the "
        f"error is {fitted.error:.3g} Nm, {100 * fitted.share:.1f} % of the torque's standard deviation"
    )
    print(f"wrote {args.output}: state model: network, network: {args.output.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
