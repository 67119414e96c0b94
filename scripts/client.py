"""Drives the robot of a bundle in plain MuJoCo: python scripts/client.py BUNDLE [--runs 10] [--seconds 20]

Written from docs/export.md alone: MuJoCo, onnxruntime and manifest.json, nothing of RoboLearn.
"""

import argparse
import json
from pathlib import Path

import mujoco
import numpy as np
import onnxruntime

COMMANDS = {
    "stand": (0, 0, 0),
    "walk": (0.8, 0, 0),
    "back": (-0.4, 0, 0),
    "aside": (0, 0.3, 0),
    "turn": (0.3, 0, 0.5),
}


def drive(bundle: Path, command: tuple[float, ...], seconds: float, seed: int) -> tuple[bool, np.ndarray]:
    """Whether the robot is still up at the end, and how far it came (3,) [m]."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    contract, controller = manifest["contract"], manifest["controller"]
    model = mujoco.MjModel.from_xml_path(str(bundle / "robot.xml"))
    data, session = mujoco.MjData(model), onnxruntime.InferenceSession(bundle / controller["file"])
    joints = [model.joint(joint["name"]) for joint in contract["joints"]]
    places, speeds = [int(j.qposadr[0]) for j in joints], [int(j.dofadr[0]) for j in joints]
    motors = [model.actuator(action["joint"]).id for action in contract["actions"]]
    state = {s["name"]: np.array(s["reset"], np.float32).reshape(s["shape"]) for s in manifest["state"]}
    mujoco.mj_resetDataKeyframe(model, data, 0)  # the home pose
    data.qpos[places] += np.random.default_rng(seed).uniform(-0.05, 0.05, len(places))
    mujoco.mj_forward(model, data)
    start = data.qpos[:3].copy()
    for _ in range(round(seconds / contract["control_dt"])):
        read = {"quat": data.qpos[3:7], "gyro": data.qvel[3:6], "command": np.array(command)}
        read |= {"joint_pos": data.qpos[places], "joint_vel": data.qvel[speeds]}
        read |= {f"{name}_in": value[0] for name, value in state.items()}
        feeds = {name: read[name][None].astype(np.float32) for name in controller["inputs"]}
        out = dict(zip(controller["outputs"], session.run(list(controller["outputs"]), feeds), strict=True))
        state = {name: out[f"{name}_out"] for name in state}
        data.ctrl[motors] = out["targets"][0]
        mujoco.mj_step(model, data, round(contract["control_dt"] / model.opt.timestep))
    return bool(data.qpos[2] > 0.5 * manifest["base"]["home_height"]), data.qpos[:3] - start


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    for name, command in COMMANDS.items():
        found = [drive(arguments.bundle, command, arguments.seconds, seed) for seed in range(arguments.runs)]
        moved = np.mean([distance for _, distance in found], axis=0)
        print(
            f"{name}: {sum(up for up, _ in found)} of {len(found)} up, moved {moved[0]:.2f}, {moved[1]:.2f} m"
        )
