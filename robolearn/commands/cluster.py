"""The commands `plan`, `sweep` and `workflow`: their options; the folders of these names do the work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robolearn.commands.exits import OK
from robolearn.commands.options import Overrides
from robolearn.errors import ConfigError, quote


def plan(
    overrides: Overrides = None,
    machine: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|NAME", help="Constants of another machine; this one is measured where omitted."
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write this machine's constants here (YAML).", show_default=False),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(min=0, max=1e6, metavar="USD_PER_HOUR", help="Price of one machine for an hour."),
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="File for the results, as JSON.", show_default=False)
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            help="Numbers of environments to measure; num_envs, a half and a quarter where omitted."
        ),
    ] = None,
    iterations: Annotated[int, typer.Option(min=2, max=1000, help="Measured iterations of each size.")] = 10,
    latency: Annotated[
        float | None, typer.Option(min=0, max=1e7, metavar="US", help="Of the network between machines [us].")
    ] = None,
    bandwidth: Annotated[
        float | None,
        typer.Option(min=1e-3, max=1e6, metavar="GBPS", help="Of the network between machines [Gb/s]."),
    ] = None,
    marginal: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Share of one process's speed that each further rank must add to pay."
        ),
    ] = 0.5,
    example: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE", help="The same formulas for a language model: llm.", show_default=False
        ),
    ] = None,
) -> int:
    """Tell what a run will take before it starts: memory, time, cost, ranks that pay, staleness.

    This machine is measured by a few short trainings, in about a minute.

    \b
    robolearn plan task=humanoid_walk num_envs=4096 --price 0.4
    robolearn plan task=humanoid_walk num_envs=4096 --save machine.yaml
    robolearn plan task=humanoid_walk num_envs=8192 --machine machine.yaml --bandwidth 25 --latency 30
    robolearn plan --example llm
    """
    from robolearn.commands.plan import plan as planning

    if example is not None:
        if overrides:
            raise ConfigError(
                f"{quote(overrides[0])} does not go with --example, whose file states all inputs"
            )
        planning.plan_example(example, json)
        return OK
    planning.plan(
        overrides or [], machine, save, price, json, sizes, iterations, latency, bandwidth, marginal
    )
    return OK


def sweep(
    overrides: Overrides = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, max=4096, help="Runs at once; one a core where omitted.", show_default=False),
    ] = None,
    ray: Annotated[
        bool,
        typer.Option("--ray", help="Run on Ray: the cluster of RAY_ADDRESS, or this machine's cores."),
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run failed runs again, from their last checkpoints.")
    ] = False,
    show: Annotated[bool, typer.Option("--show", help="Print the runs and exit.")] = False,
    last: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1_000_000_000,
            help="Iterations that the table's metrics are means of; the last tenth where omitted.",
            show_default=False,
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Columns of metrics.jsonl in the table.", show_default=False),
    ] = None,
    search: Annotated[
        bool, typer.Option("--search", help="Search with Optuna instead of running every combination.")
    ] = False,
    trials: Annotated[
        int | None,
        typer.Option(
            min=1, max=100_000, help="With --search: number of trials; 20 where omitted.", show_default=False
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="With --search: column of metrics.jsonl; episode/return where omitted.", show_default=False
        ),
    ] = None,
    direction: Annotated[
        str | None,
        typer.Option(
            metavar="maximize|minimize",
            help="With --search: what to do with the metric; maximize where omitted.",
            show_default=False,
        ),
    ] = None,
    pruner: Annotated[
        str | None,
        typer.Option(
            metavar="median|asha|none",
            help="With --search: which trials to end early; median where omitted.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Train many runs, each in its own process, and compare them; or search for good settings.

    Values that vary are written in Hydra's grammar: A,B,C, choice(A,B), range(START,STOP,STEP); with --search also
    interval(LOW,HIGH) and tag(log,interval(LOW,HIGH)). Exit code 4 where a run failed; the others are finished then.

    \b
    robolearn sweep task=humanoid_walk seed=1,2,3 learner.gamma=0.97,0.99 --jobs 2
    robolearn sweep resume=runs/sweeps/humanoid_walk/2026-01-31_12-00-00
    robolearn sweep task=humanoid_walk 'learner.learning_rate=tag(log,interval(1e-4,1e-2))' --search --trials 20
    """
    from robolearn.commands.sweep.sweep import Options
    from robolearn.commands.sweep.sweep import sweep as run

    options = Options(jobs, ray, retry_failed, show, last, columns, search, trials, metric, direction, pruner)
    return run(overrides or [], options)


def workflow(
    overrides: Overrides = None,
    engine: Annotated[
        str | None, typer.Option(help="Write the files of osmo, slurm or kuberay.", show_default=False)
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="Run the steps on this machine instead.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="Folder to write to.", show_default=False)
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the jobs; the task's where omitted.")] = None,
    nodes: Annotated[int, typer.Option(min=1, max=4096, help="Nodes of the training.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(min=0, max=64, help="GPUs of each node.")] = 0,
    cpus: Annotated[int, typer.Option(min=1, max=1024, help="Cores of each node.")] = 8,
    memory: Annotated[str, typer.Option(help="Memory of each node.")] = "32Gi",
    image: Annotated[
        str | None, typer.Option(help="Container with robolearn in it; Slurm needs none.", show_default=False)
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            help="Where data is kept: a URL (osmo), a volume claim (kuberay), a shared folder (slurm; --output where "
            "omitted).",
            show_default=False,
        ),
    ] = None,
    hours: Annotated[
        float, typer.Option(min=0.1, max=8760, help="Time limit of the training; of the others a quarter.")
    ] = 24.0,
    retries: Annotated[
        int, typer.Option(min=0, max=1000, help="Times that a training is started again after a checkpoint.")
    ] = 9,
    target: Annotated[str, typer.Option(help="The robot's computer, as in `robolearn export`.")] = "host",
    suite: Annotated[
        Path | None,
        typer.Option(help="Scenarios to simulate; as it was trained where omitted.", show_default=False),
    ] = None,
    min_survival: Annotated[
        float, typer.Option(min=0, max=1, help="Without --suite: share of robots that must not fall.")
    ] = 0.9,
    setup: Annotated[
        list[str] | None,
        typer.Option(metavar="LINE", help="Line of bash before each step; may be repeated."),
    ] = None,
    sbatch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="Further option of sbatch, such as partition=gpu; may be repeated."
        ),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Only check this file of the engine.", show_default=False),
    ] = None,
) -> int:
    """Train, evaluate, export, simulate: written for a cluster, or run here.

    Every file is checked before it is written. Steps that are done are skipped, and a training resumes from its last
    checkpoint, on every engine. With --local the exit code is that of the first step that failed.

    \b
    robolearn workflow --local --output work task=cartpole_balance
    robolearn workflow --engine slurm --output work --gpus-per-node 4 --sbatch partition=gpu task=humanoid_walk
    robolearn workflow --engine osmo --output work --image reg/robolearn:1 --store s3://bucket/g1 task=humanoid_walk
    robolearn workflow --engine slurm --check work/train.sbatch
    """
    from robolearn.commands.workflow import workflow as flow

    if check is not None:
        return flow.check(check, engine)
    if output is None:
        raise ConfigError("--output DIR is missing: the folder to write to")
    return flow.workflow(
        overrides or [],
        output,
        engine,
        local,
        name=name,
        nodes=nodes,
        gpus=gpus_per_node,
        cpus=cpus,
        memory=memory,
        image=image,
        store=store,
        hours=hours,
        retries=retries,
        target=target,
        suite=suite,
        min_survival=min_survival,
        setup=setup or [],
        sbatch=sbatch or [],
    )
