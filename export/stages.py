"""`robolearn export`: the stages from a training run to a bundle, each with a line of output."""

from __future__ import annotations

import itertools
import json
import platform
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx
from torch import nn

from robolearn import __version__
from robolearn import config as configuration
from robolearn.config.run_config import Config
from robolearn.core.contract import Contract, contract_of
from robolearn.envs.robot import Robot
from robolearn.envs.state import Tensor
from robolearn.errors import ConfigError, MissingError, RunFailed, printable
from robolearn.export import bundle as bundles
from robolearn.export import other_simulators, profiles, team
from robolearn.export.closed_loop import DelayResult, Gap, closed_loop, one_step_late
from robolearn.export.consistent import require_consistent
from robolearn.export.controller import Controller, Exportable
from robolearn.export.external.export import ExternalTrial
from robolearn.export.golden import Golden, choose, eventful
from robolearn.export.latency import latency
from robolearn.export.onnx.check import check_graph, summary
from robolearn.export.onnx.graph import ExportModule, build_graph, exported
from robolearn.export.onnx.parity import Parity, check_parity
from robolearn.export.onnx.reference import ReferenceSession, TorchSession
from robolearn.export.record import Recording, on_robot, record
from robolearn.export.report import STAYS_UP, report, write_report
from robolearn.export.request import Checked, Request, check_request, require_same
from robolearn.export.robot_model import base_facts, bundle_model, joint_facts, motor_facts, part_entry
from robolearn.export.target import ExportTarget
from robolearn.learners.policy import Act, Policy, PolicyRunner
from robolearn.runtime.bundle import Bundle
from robolearn.runtime.engine import EngineSession, build_engine
from robolearn.runtime.errors import NOT_THE_SAME, OK, OVER_BUDGET, Refused
from robolearn.runtime.measure import measure, over_budget, processor
from robolearn.runtime.robot import Runtime, replay
from robolearn.runtime.sessions import OnnxSession, Session
from robolearn.runtime.signature import SIGNATURE, sign
from robolearn.simulation.episodes import NEVER_TRAINED
from robolearn.simulation.picture import draw
from robolearn.simulation.sim2sim import Comparison
from robolearn.training.build import acting_robot, make_env, make_robot, make_scene
from robolearn.training.runs import load_policy
from robolearn.training.train import set_threads

RECORDED = (16, 256)
"""Robots and control steps of the recording: 16 x 256 = 4096 observations."""

RECURRENT = ("h", "c")
"""Names of the network's recurrent state."""

LATENCY_SCHEMA = 1
"""Version of latency.json's layout."""


@dataclass
class Export:
    """Results of the stages, for the report."""

    checked: Checked
    manifest: dict[str, Any]
    graph: str
    parity: Parity
    gap: Gap
    golden: dict[str, dict[str, float]]
    """Largest differences of the golden check, by runtime."""
    verdict: latency.Verdict
    recommendation: latency.Recommendation | None
    estimates: list[latency.Estimate]
    measured: list[dict[str, Any]] = field(default_factory=list)
    engine: str = ""
    """Why there is no engine; empty where there is one."""
    profiles: dict[str, list[str]] = field(default_factory=dict)
    """The files of each profile."""
    warnings: list[str] = field(default_factory=list)
    drawn: bool = False
    """Whether there is a picture of the home pose."""
    late: DelayResult | None = None
    """Result with joint targets one control step late."""
    compared: list[Comparison] = field(default_factory=list)
    """The policy in other simulators."""


def show(verdict: str, stage: str, text: str) -> None:
    """Print the line of a stage, wrapped to the terminal. `verdict`: ok, warn, over, model or skip."""
    width = max(72, shutil.get_terminal_size((110, 24)).columns)
    head = f"  {verdict:<5} {stage:<12} "
    print(textwrap.fill(text, width, initial_indent=head, subsequent_indent=" " * len(head)), flush=True)


def export(request: Request) -> int:
    """Export a run; see `robolearn export --help`.

    Returns:
        OK, or OVER_BUDGET where the bundle is written but misses its budget.

    Raises:
        ConfigError: bad input.
        Refused: with its exit code; no file is left.
    """
    checked = check_request(request)
    set_threads(checked.found.config)
    if checked.policy is None and team.of(checked.found) is not None:
        return team.export_each(checked, _export, show)
    return _export(checked)


def _export(checked: Checked) -> int:
    """Export one policy; see `export`."""
    request, found, target = checked.request, checked.found, checked.target
    rate = 1 / checked.period
    name = printable(found.name) + (f", policy {checked.policy}," if checked.policy else "")
    print(f"export {name} to {target.name} ({target.title}), {rate:g} Hz, {request.precision}")
    policy, act = _policy(checked)
    trial = (ExternalTrial if found.config.backend_name == configuration.EXTERNAL else RobotTrial)(
        checked, act
    )
    contract = trial.contract()
    width = sum(item["width"] for item in contract.observations)
    show(
        "ok",
        "run",
        f"{trial.title(contract)}, iteration {found.iteration}, {width} observations, "
        f"{len(contract.actions)} actions, all weights finite",
    )
    entry = trial.entry(contract)
    notes = {"contract": entry}
    network = ExportModule(policy, request.precision)
    states = dict(zip(policy.state_names, policy.initial_state(1), strict=True))
    controller = trial.controller(network, states)
    ours = exported(controller, controller.example, controller.outputs, "controller", notes)
    model = build_graph(policy, width, request.precision, notes)
    show("ok", "onnx", f"controller: {summary(ours)}; policy: {summary(model)}")
    _check_graphs(ours, controller, model, width, len(contract.actions))
    show("ok", "checker", "valid, static shapes, allowed operators, fp32 in and out, no critic")

    manifest = bundles.manifest_entry(
        entry, model, controller, ours, request.precision, target_entry(target), run_entry(checked)
    )
    manifest |= trial.notes(controller)
    # Before the long stages: a profile refuses by the contract and the ONNX graph alone.
    extra = {name: profiles.load(name).files(manifest, model) for name in request.profiles}

    recording = trial.record(*RECORDED, controller)
    watched = ours
    if request.precision == "bf16":  # ONNX Runtime, which follows the branches, has no bf16 products
        plain = trial.controller(ExportModule(policy), states)
        watched = exported(plain, plain.example, plain.outputs, "controller", notes)
    golden = choose(recording, watched)
    show(*_golden(golden))
    with bundles.new_folder(checked.folder) as folder:
        bundles.write_parts(folder, manifest, model, ours, golden)
        trial.write(folder, controller)
        configuration.save(replace(found.config, resume=None, output=None), folder / configuration.FILE_NAME)
        session, judge = _sessions(folder / bundles.CONTROLLER, ours, request.precision)
        bare = _sessions(folder / bundles.GRAPH, model, request.precision)[1]
        parity = check_parity(
            policy, bare, recording, [a["joint"] for a in entry["actions"]], request.precision
        )
        show(
            "ok",
            "parity",
            f"{parity.observations} recorded observations: {parity.recorded:.1e}; zeros {parity.zeros:.1e}; extremes "
            f"{parity.extremes:.1e} of the largest action (allowed {parity.limit:.2g})",
        )
        bundle = Bundle.load(folder)
        agreed = trial.agree(bundle, recording)
        worst = {each.name: replay(bundle, each) for each in (session, judge)}
        show("ok", "contract", f"{agreed} to {worst[session.name]['observations']:.1e}")
        driving = session
        if isinstance(session, ReferenceSession):
            driving = TorchSession(controller, session)
        gap, late = trial.closed_loop(bundle, driving)
        for finding in trial.findings(gap, late):
            show(*finding)
        compared: list[Comparison] = []
        if request.require_sim2sim is not None:
            compared, text = other_simulators.other_simulators(checked, show)
            other_simulators.write(folder, text)
        sessions: list[Session] = [session] if isinstance(session, OnnxSession) else []
        why_no_engine = checked.engine_here
        if not why_no_engine:
            engine = _engine(bundle, request.precision)
            worst[engine.name] = replay(bundle, engine)
            sessions.append(engine)
            show(
                "ok", "engine", f"{bundle.engine.name} built and checked: {worst[engine.name]['actions']:.1e}"
            )
        else:
            show("skip", "engine", f"not-run: {why_no_engine}")
        if not sessions:
            show("skip", "measured", "bf16 needs TensorRT: ONNX Runtime has no bf16 products on a CPU")
        measured = [_measured(s, bundle, checked) for s in sessions] if request.measure_seconds else []
        estimates = latency.model(target, latency.cost_of(ours))
        best, verdict = latency.decide(
            target, bundle.rate, estimates, [latency.Measurement.read(result) for result in measured]
        )
        out = Export(
            checked,
            manifest,
            summary(model),
            parity,
            gap,
            worst,
            verdict,
            best,
            estimates,
            measured,
            why_no_engine,
            drawn=(folder / bundles.PICTURE).exists(),
            late=late,
            compared=compared,
        )
        if driving is not session:
            out.warnings.append(
                "In bf16 the torch module that was exported ran in the closed loop; the ONNX graph was compared with "
                "it over the recorded observations."
            )
        elif judge is not session:
            out.warnings.append(
                "ONNX Runtime computes fp16 in float32 on most CPUs: parity was checked in real half precision by "
                "ONNX's reference evaluator; ONNX Runtime ran in the closed loop."
            )
        out.warnings += getattr(trial, "warnings", [])
        for built in sessions:
            out.warnings += getattr(built, "warnings", [])
        _show_latency(out)
        _write_latency(folder, out)
        for name, files in extra.items():
            out.profiles[name] = _write_profile(folder / name, files)
            show("ok", "profile", f"{name}: {', '.join(out.profiles[name])}")
        write_report(folder, out, trial.report)
        bundles.seal(folder, manifest, golden.arrays)
        if request.sign is not None:
            sign(folder, request.sign)
            show("ok", "signature", f"{SIGNATURE}, with the key in {request.sign.name}")
    shown = request.output or found.folder / "export" / target.name
    part = checked.policy if checked.policy != request.policy else None
    show("ok", "bundle", printable(str(shown if part is None else shown / part)))
    if verdict.fits is False:
        how = "measured" if verdict.basis == "measured-on-target" else "modelled, not measured"
        print(
            f"over the budget of {target.title} ({how}): {next(line for line in verdict.lines if ' is over ' in line)}"
        )
        return OVER_BUDGET
    return OK


class RobotTrial:
    """Checks of a bundle with simulated robots; `ExternalTrial` has the same methods for external environments."""

    report = staticmethod(report)

    def __init__(self, checked: Checked, act: Act) -> None:
        self.checked, self.act, self.config = checked, act, on_robot(checked.found.config)
        # What runs on the robot is what was trained, where settings of the command simulate something else.
        self.traced = replace(self.config, task=on_robot(checked.trained).task)
        self.driven = team.driven(checked.found, checked.policy)
        """Which robots have the exported policy; None: all."""
        self.parts: dict[str, Robot] = {}
        """Of a task whose agents are parts of a robot, those that have it, by agent."""

    def contract(self) -> Contract:
        """The policy's contract.

        Raises:
            ConfigError: it differs from the one in training; see `require_same`.
        """
        checked = self.checked
        contract = _contract(checked.trained)
        require_same(checked, contract, _contract(checked.found.config) if checked.changes else contract)
        return contract

    def title(self, contract: Contract) -> str:
        """Name of the exported task and robot."""
        return f"{contract.task} on {contract.robot}"

    def notes(self, controller: Exportable) -> dict[str, Any]:
        """Further entries of the manifest."""
        assert isinstance(controller, Controller)
        trained = self.checked.trained
        same = trained.robot == self.checked.found.config.robot
        motors = motor_facts(controller.robot if same else acting_robot(trained))
        return {
            "command_ranges": ranges_of(trained),
            "conditions": bundles.conditions(trained.task, make_scene(trained, make_robot(trained))),
            "base": base_facts(controller.robot),
            "joints": joint_facts(controller.robot),
            **(
                {"parts": {name: part_entry(robot) for name, robot in self.parts.items()}}
                if self.parts
                else {}
            ),
            **({"motors": motors} if motors else {}),
        }

    @property
    def warnings(self) -> list[str]:
        """Lines for the report: which parts of the robot the bundle is for, and which of them its model is not of."""
        lines = []
        for name, robot in self.parts.items():
            assert robot.part is not None
            named = ", ".join(f"{joint} is {robot.part.prefix}{joint}" for joint in robot.joints)
            lines.append(f"The agent {name} is a part of {robot.part.whole.name}: {named}.")
        for shown, other in itertools.pairwise(self.parts):
            if joint_facts(self.parts[shown]) != joint_facts(self.parts[other]):
                lines.append(
                    f"robot.xml and the directions of the joints are those of {next(iter(self.parts))}, and those of "
                    f"{other} differ from {shown}'s: look them up in the robot's file, or train a policy for each "
                    "(learner.policies)."
                )
        return lines

    def write(self, folder: Path, controller: Exportable) -> None:
        """Write the robot's model and, where something can draw, a picture of its home pose."""
        assert isinstance(controller, Controller)
        (folder / bundles.MODEL).write_text(
            bundle_model(controller.robot, controller.timestep), encoding="utf-8"
        )
        try:
            draw(controller.robot, folder / bundles.PICTURE)
        except MissingError as error:
            show("skip", "picture", f"none of the home pose: {error}")

    def entry(self, contract: Contract) -> dict[str, Any]:
        """The contract as in the manifest."""
        return bundles.contract_entry(contract, self.traced.task.items("policy"))

    def controller(self, network: nn.Module, recurrent: dict[str, Tensor]) -> Controller:
        """What runs on the robot, around the exported network.

        Raises:
            ConfigError: the policy observes what no robot measures.
        """
        env = make_env(self.traced, num_envs=1, rank=NEVER_TRAINED)
        try:
            made = Controller(env, network, recurrent)
            agents = team.agents_of(self.checked.found, self.checked.policy) or env.agent_names
            robots = {name: env.scene.robots[name] for name in agents}
            self.parts = {name: robot for name, robot in robots.items() if robot.part is not None}
            if robots:  # the model and the facts in the bundle are those of its own robot
                made.robot = next(iter(robots.values()))
            return made
        finally:
            env.close()

    def record(self, robots: int, steps: int, controller: Exportable) -> Recording:
        """Record `steps` control steps of the trained policy with `robots` robots."""
        env = make_env(eventful(self.checked.found.config), num_envs=robots, rank=NEVER_TRAINED)
        try:
            recorded = record(env, self.act, steps, controller.sensors, controller.initial)
            return recorded if self.driven is None else recorded.of(self.driven(env.num_envs))
        except RunFailed as error:
            raise Refused(f"the trained policy cannot be run: {error}", NOT_THE_SAME) from None
        finally:
            env.close()

    def agree(self, bundle: Bundle, recording: Recording) -> str:
        """Compare the written contract with the simulated robot; returns a line for the user.

        Raises:
            Refused: NOT_THE_SAME; the first difference is named.
        """
        trained = self.checked.trained
        require_consistent(bundle, trained, ranges_of(trained))
        joints = len(bundle.contract["joints"])
        return f"{joints} joints, gains, dt and observations equal the robot's; replayed from raw sensors"

    def closed_loop(self, bundle: Bundle, driving: Session) -> tuple[Gap, DelayResult]:
        """Compare the bundle with the trained policy; then run it with joint targets one control step late."""
        request, episode = self.checked.request, self.checked.trained.task.episode_length_s
        length = request.starts, request.seconds
        gap = closed_loop(self.config, self.act, bundle, driving, *length, episode, self.driven)
        return gap, one_step_late(self.config, bundle, driving, *length, self.act, self.driven)

    def findings(self, gap: Gap, late: DelayResult) -> list[tuple[str, str, str]]:
        """Arguments of `show` for both results."""
        fell = round(gap.starts * (1 - late.survival))
        said = f"joint targets one control step late: {fell} of {gap.starts} fell"
        return [
            ("ok" if gap.thorough and gap.bundle_survival >= STAYS_UP else "warn", "closed loop", str(gap)),
            ("ok" if late.survival >= STAYS_UP else "warn", "delay", said),
        ]


# ---------------------------------------------------------------------------------------- the stages


def _policy(checked: Checked) -> tuple[Policy, Act]:
    """(the trained policy, the same as a function of observations that holds its recurrent state).

    Raises:
        ConfigError: the actor takes another observation group than `policy`.
    """
    act = load_policy(checked.found, tell=False)  # the export refuses a robot of another contract
    policy = act.policy if isinstance(act, PolicyRunner) else act.team.named(checked.policy or "")
    inputs = list(policy.spec.inputs)
    if inputs != ["policy"]:
        raise ConfigError(
            f"the actor takes observation groups {', '.join(inputs)}, but a robot has only `policy`; train with "
            "learner.actor_groups=[policy]"
        )
    return policy, act


def _contract(config: Config) -> Contract:
    env = make_env(config, num_envs=1)
    try:
        return contract_of(env)
    finally:
        env.close()


def _check_graphs(
    ours: onnx.ModelProto, controller: Exportable, model: onnx.ModelProto, width: int, actions: int
) -> None:
    """Check the controller and the bare network, see `check_graph`."""
    shapes = {name: tuple(value.shape) for name, value in controller.example.items()}
    state = {name: tuple(value.shape) for name, value in controller.initial.items()}
    outputs = {"targets": (1, actions), "actions": (1, actions), "observations": (1, width)}
    check_graph(ours, shapes, outputs | {f"{name}_out": shape for name, shape in state.items()})
    recurrent = {name: shape for name, shape in state.items() if name in RECURRENT}
    check_graph(
        model,
        {"obs": (1, width)} | {f"{name}_in": shape for name, shape in recurrent.items()},
        {"actions": (1, actions)} | {f"{name}_out": shape for name, shape in recurrent.items()},
    )


def _golden(golden: Golden) -> tuple[str, str, str]:
    """Arguments of `show` for the golden steps."""
    entry, absent = golden.entry(), [name for name, count in golden.events.items() if not count]
    said = f"{entry['steps']} steps of {entry['episodes']} episodes"
    if ways := golden.taken[1]:
        said += f"; {golden.taken[0]} of {ways} ways of the branches taken"
        some = ", ".join(golden.not_taken[:4]) + ", ..." * (len(golden.not_taken) > 4)
        said += f"; not taken: {some}" * bool(golden.not_taken)
    said += f"; without {', without '.join(absent)}" * bool(absent)
    return "warn" if absent or golden.not_taken else "ok", "golden", said


def _sessions(path: Path, model: onnx.ModelProto, precision: str) -> tuple[Session, Session]:
    """(session for the closed loop, session for parity) of a written ONNX graph.

    ONNX Runtime computes fp16 in float32 on most CPUs, where nothing overflows, and has no bf16 products. ONNX's
    reference evaluator rounds and overflows in both as a GPU does, on every machine.
    """
    if precision == "fp32":
        session = OnnxSession(path)
        return session, session
    judge = ReferenceSession(model)
    return (judge if precision == "bf16" else OnnxSession(path)), judge


def _engine(bundle: Bundle, precision: str) -> EngineSession:
    build_engine(bundle.graph, bundle.engine, precision, bundle.folder / "timing.cache")
    return EngineSession(bundle.engine, bundle.manifest["controller"]["sha256"])


def _measured(session: Session, bundle: Bundle, checked: Checked) -> dict[str, Any]:
    result = measure(Runtime(bundle, session), bundle.golden, checked.request.measure_seconds)
    status = "measured-on-target" if checked.on_target else "measured-other-device"
    return result | {"status": status, "board": checked.board, "processor": processor()}


def _show_latency(out: Export) -> None:
    for result in out.measured:
        step, over = result["paced"], over_budget(result, out.manifest["target"]["budget"])
        show(
            "over" if over else "ok",
            "measured",
            f"on {out.checked.board or 'this machine'}, {result['runtime']}: p50 {step['p50_ms']:.3f}, p99 "
            f"{step['p99_ms']:.3f}, max {step['max_ms']:.3f} ms a control step, paced; hot p50 "
            f"{result['hot']['p50_ms']:.3f} ms",
        )
    said = {True: "ok", False: "over", None: "warn"}[out.verdict.fits]
    if out.verdict.basis == "modelled" and out.verdict.fits:
        said = "model"  # a model is not a measurement, so not `ok`
    subject, *compared = out.verdict.lines
    told = [line for line in compared if " is over " in line] or compared[:1]
    show(said, "latency", "; ".join([subject, *told]))


def _write_latency(folder: Path, out: Export) -> None:
    target, verdict = out.checked.target, out.verdict
    rate = 1 / out.manifest["contract"]["control_dt"]
    content = {
        "schema": LATENCY_SCHEMA,
        "status": verdict.basis,
        "target": target.name,
        "rate_hz": rate,
        "budget_ms": target.budget.ms(rate),
        "fits": verdict.fits,
        "lines": list(verdict.lines),
        "recommended": out.recommendation.runtime if out.recommendation else None,
        "measured": [{k: v for k, v in result.items() if k != "paced_ms"} for result in out.measured],
        "modelled": [
            {
                "runtime": e.runtime,
                "total_ms": e.total_ms,
                "terms_ms": dict(e.terms_ms),
                "figures": {name: asdict(figure) for name, figure in e.figures.items()},
                "notes": list(e.notes),
            }
            for e in out.estimates
        ],
        "engine": {"status": "not-run", "why": out.engine} if out.engine else {"status": "built"},
    }
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    (folder / "latency.json").write_text(text, encoding="utf-8")


def _write_profile(folder: Path, files: dict[str, bytes]) -> list[str]:
    """Write a profile's files; returns their paths in the bundle."""
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return [f"{folder.name}/{path}" for path in files]


# ---------------------------------------------------------------------------------------- the manifest's parts


def target_entry(target: ExportTarget) -> dict[str, Any]:
    """The manifest's `target`: how to recognize the board, and the budget."""
    return {
        "name": target.name,
        "title": target.title,
        "any_machine": target.any_machine,
        "detect": list(target.detect),
        "compute_capability": target.compute_capability,
        "budget": {name: figure.value for name, figure in vars(target.budget).items()},
    }


def run_entry(checked: Checked) -> dict[str, Any]:
    """The manifest's `run`: origin of the policy."""
    found = checked.found
    packages = ("torch", "onnx", "onnxruntime", "numpy")
    return {
        "name": found.name,
        "iteration": found.iteration,
        **({} if checked.policy is None else {"policy": checked.policy}),
        "seed": found.config.seed,
        "overrides": list(checked.changes),
        "exported_at": datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": f"{processor()}, {platform.machine()}, {platform.system()}",
        "versions": {"robolearn": __version__, **{name: version(name) for name in packages}},
    }


def ranges_of(config: Config) -> dict[str, Sequence[float]]:
    """(low, high) of each column of the commands in training, by name; empty for a task without commands."""
    commands = config.task.commands
    return {} if commands is None else {name: list(ends) for name, ends in commands.ranges().items()}
