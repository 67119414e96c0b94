"""`robolearn workflow`: what it writes and what it refuses."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from robolearn.cli import main
from robolearn.commands.suite import spec
from robolearn.commands.workflow import slurm_rules, steps
from robolearn.config import overrides
from robolearn.errors import ConfigError
from tests.commands.workflows import IMAGE, TASK, needs_bash, written
from tests.test_docs import parse

# ---------------------------------------------------------------------------------------- what is written


@pytest.mark.parametrize("engine", steps.ENGINES)
def test_the_steps_of_every_engine_are_commands_that_robolearn_takes(engine, tmp_path):
    folder = written(engine, tmp_path, "--target", "jetson-thor", "learner.gamma=0.98")
    text = "\n".join(path.read_text() for path in folder.rglob("*") if path.is_file())
    found = [line.strip() for line in text.splitlines() if re.search(r"\brobolearn (eval|export|sim) ", line)]
    for line in found:
        parse(line[line.index("robolearn ") :].split()[1:])
    assert {line[line.index("robolearn ") :].split()[1] for line in found} == {"eval", "export", "sim"}
    assert "--target jetson-thor" in text
    assert "learner.gamma=0.98" in text
    assert "resume=run" in text


def test_the_files_of_an_engine_are_all_there(tmp_path):
    assert {p.name for p in written("osmo", tmp_path / "o").iterdir()} == {"workflow.yaml", "workflow.json"}
    jobs = {f"{step}.sbatch" for step in steps.STEPS}
    assert {p.name for p in written("slurm", tmp_path / "s").iterdir()} == {
        *jobs,
        *("submit.sh", "suite.yaml", "workflow.json"),
    }
    assert {p.name for p in written("kuberay", tmp_path / "k").iterdir()} == {
        *(f"{step}.yaml" for step in steps.STEPS),
        *("files.yaml", "submit.sh", "workflow.json"),
    }
    assert os.access(tmp_path / "s" / "submit.sh", os.X_OK)


def test_several_ranks_are_started_by_torchrun_with_the_two_variables(tmp_path):
    text = (written("slurm", tmp_path, "--nodes", "2", "--gpus-per-node", "4") / "train.sbatch").read_text()
    assert "export OMP_NUM_THREADS=1 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in text
    for word in (
        "--nproc-per-node=4",
        "--rdzv-conf=last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3",
        '--rdzv-id="$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"',
        "--signals-to-handle=SIGTERM,SIGINT,SIGUSR1",
    ):
        assert word in text
    options = {name: value for name, value, _ in slurm_rules.options(text, "x")}
    assert (options["nodes"], options["gpus-per-node"], options["signal"]) == ("2", "4", "USR1@120")


def test_one_rank_needs_no_torchrun(tmp_path):
    text = (written("slurm", tmp_path) / "train.sbatch").read_text()
    assert "torchrun --" not in text
    # A process without torchrun would be ended by USR1.
    assert {name: value for name, value, _ in slurm_rules.options(text, "x")}["signal"] == "TERM@120"


def test_ranks_say_how_many_processes_there_are_and_are_no_setting_of_each(tmp_path):
    text = (written("slurm", tmp_path, "--nodes", "2", "ranks=4") / "train.sbatch").read_text()
    assert "--nproc-per-node=2" in text
    assert "ranks=4" not in text


def test_osmo_passes_data_from_task_to_task_and_schedules_a_training_again(tmp_path):
    content = yaml.safe_load((written("osmo", tmp_path, "--nodes", "2") / "workflow.yaml").read_text())
    train, *rest = content["workflow"]["groups"]
    lead, other = train["tasks"]
    assert (lead["lead"], other["lead"], train["ignoreNonleadStatus"]) == (True, False, False)
    assert lead["exitActions"]["RESCHEDULE"] == "75"
    # What is uploaded while it runs is the input of the next attempt.
    (checkpoint,) = lead["checkpoint"]
    assert lead["inputs"] == other["inputs"] == [{"url": checkpoint["url"] + "/run"}]
    sources = [task["inputs"] for group in rest for task in group["tasks"]]
    assert sources == [[{"task": "train-0"}], [{"task": "evaluate"}], [{"task": "export"}]]


def test_slurm_begins_a_step_where_the_one_before_has_succeeded(tmp_path):
    text = (written("slurm", tmp_path) / "submit.sh").read_text()
    for before, step in zip(steps.STEPS, steps.STEPS[1:], strict=False):
        assert f'--dependency=afterok:"$job_{before}" {step}.sbatch' in text


def test_a_task_of_ones_own_is_taken_along(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("code").mkdir()
    source = (
        "from robolearn.tasks.cartpole import CartpoleBalance\n\nclass Mine(CartpoleBalance):\n    pass\n"
    )
    Path("code/mine.py").write_text(source)
    words = ["task=code/mine.py:Mine", "num_envs=4", "--output", "out"]
    assert main(["workflow", "--engine", "slurm", *words]) == 0
    assert Path("out/mine.py").read_text() == source
    assert "task=mine.py:Mine" in Path("out/train.sbatch").read_text()
    assert "robolearn eval run task=mine.py:Mine" in Path("out/evaluate.sbatch").read_text()
    (scenario,) = spec.read(Path("out/suite.yaml")).scenarios
    assert (scenario.policy, scenario.task) == ("bundle", "mine.py:Mine")
    assert (
        main(["workflow", "--engine", "osmo", *words[:2], "--output", "o", *IMAGE, "--store", "s3://b"]) == 0
    )
    content = yaml.safe_load(Path("o/workflow.yaml").read_text())
    files = {f["path"]: f["contents"] for f in content["workflow"]["groups"][1]["tasks"][0]["files"]}
    assert files["/tmp/mine.py"] == source


def test_relative_paths_are_those_of_this_folder_in_the_steps_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["task=cartpole_balance", "num_envs=4", "weights=pretrained:humanoid_walk"]
    kept, _, _ = steps.packed(
        [*words, "learner.teacher=runs/t", "learner.demonstrations=[a.npz,/b.npz]"], True
    )
    assert kept[:3] == words
    assert kept[3:] == [
        f"learner.teacher={tmp_path}/runs/t",
        f"learner.demonstrations=[{tmp_path}/a.npz,/b.npz]",
    ]
    assert steps.packed(["robot=mine.XML"], True)[0] == [f"robot={tmp_path}/mine.XML"]
    for name in ("unitree_g1", "package:mjlab/asset_zoo/g1.xml"):
        assert (
            steps.packed([f"robot={name}"])[0]
            == steps.packed([f"robot={name}"], True)[0]
            == [f"robot={name}"]
        )
    # What is written can be read again.
    for given in ("learner.teacher='runs/a,b'", "learner.demonstrations=['m\u00fcller/a.npz']"):
        (word,), _, _ = steps.packed([given], True)
        (before,), (after,) = overrides.parse([given]), overrides.parse([word])
        old, new = (x.value if isinstance(x.value, list) else [x.value] for x in (before, after))
        assert new == [f"{tmp_path}/{name}" for name in old]
    with pytest.raises(ConfigError, match="runs/t"):
        steps.packed(["learner.teacher=runs/t"])


def test_the_suite_that_is_written_is_one_that_sim_takes(tmp_path):
    (scenario,) = spec.read(written("slurm", tmp_path, "--min-survival", "0.75") / "suite.yaml").scenarios
    assert scenario.policy == "bundle"
    assert [(gate.measure, gate.low) for gate in scenario.gates] == [("survival", 0.75)]


def test_actors_on_kuberay_are_placed_on_workers_of_their_own(tmp_path):
    placement = tmp_path / "placement.yaml"
    text = "engine: ray\naddress: auto\nactor: {count: 2, labels: {role: sim}}\n"
    placement.write_text(text)
    words = ["--nodes", "3", "--gpus-per-node", "1", "mode=async", f"placement={placement}"]
    folder = written("kuberay", tmp_path / "out", *words)
    job = yaml.safe_load((folder / "train.yaml").read_text())
    groups = {g["groupName"]: g for g in job["spec"]["rayClusterSpec"]["workerGroupSpecs"]}
    assert groups["learner"]["replicas"] == 1
    assert groups["sim"]["replicas"] == 2
    files = yaml.safe_load((folder / "files.yaml").read_text())["data"]
    assert files["placement.yaml"] == text
    assert "mode=async placement=placement.yaml" in files["train.sh"]


@needs_bash
def test_odd_characters_in_names_stay_in_one_word_of_bash(tmp_path):
    place = tmp_path / "my place.yaml"
    place.write_text("staleness: 1\n")
    words = [
        "mode=async",
        f"placement={place}",
        "--image",
        "reg/a; touch b",
        "--store",
        str(tmp_path / "store $(touch there)"),
    ]
    folder = written("slurm", tmp_path / "out 1", *words)
    text = (folder / "evaluate.sbatch").read_text()
    assert " --container-image='reg/a; touch b' " in text
    assert f"cd '{tmp_path}/store $(touch there)'\n" in text
    # sbatch is not there: the script ends after it has copied the files.
    env = {"PATH": os.environ["PATH"]}
    subprocess.run(["bash", str(folder / "submit.sh")], env=env, capture_output=True, check=False)
    assert (tmp_path / "store $(touch there)" / "my place.yaml").read_text() == "staleness: 1\n"
    assert not (folder / "there").exists()


# ---------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("words", "offender"),
    [
        (["--engine", "slrum"], "slrum"),
        ([], "--engine"),
        (["--engine", "slurm", "--local"], "--local"),
        (["--engine", "osmo", "--store", "s3://b"], "--image"),
        (["--engine", "osmo", *IMAGE], "--store"),
        (["--engine", "osmo", *IMAGE, "--store", "ftp://b/x"], "ftp://b/x"),
        (["--engine", "kuberay", *IMAGE], "--store"),
        (["--engine", "kuberay", *IMAGE, "--store", "c", "--nodes", "2"], "mode=async"),
        (["--engine", "kuberay", *IMAGE, "--store", "c", "--name", "Walk"], "Walk"),
        (["--engine", "kuberay", *IMAGE, "--store", "Bad Name"], "--store 'Bad Name'"),
        (["--engine", "kuberay", *IMAGE, "--store", "a" * 254], "--store"),
        (["--engine", "kuberay", "--image", 'reg/x:1"; touch', "--store", "c"], "touch"),
        (["--engine", "osmo", "--image", "Reg/X", "--store", "s3://b"], "--image 'Reg/X'"),
        (["--engine", "osmo", *IMAGE, "--store", "/tmp/x"], "--store '/tmp/x'"),
        (["--engine", "kuberay", *IMAGE, "--store", "c", "--nodes", "2", "mode=async"], "placement=FILE"),
        (["--engine", "slurm", "--nodes", "2", "mode=async"], "mode=async"),
        (["--engine", "osmo", *IMAGE, "--store", "s3://b", "--nodes", "2", "mode=async"], "mode=async"),
        (["--engine", "slurm", "ranks=2", "mode=async"], "ranks=2"),
        (["--local", "ranks=2", "mode=async"], "ranks=2"),
        (["--engine", "slurm", "placement=p.yaml"], "mode=async"),
        (["--engine", "slurm", "--sbatch", "gpu"], "KEY=VALUE"),
        (["--engine", "slurm", "--memory", "lots"], "lots"),
        (["--engine", "slurm", "--sbatch", "partion=gpu"], "partion"),
        (["--engine", "slurm", "--sbatch", "time=soon"], "soon"),
        (["--engine", "slurm", "--setup", "if true"], "train.sbatch"),
        (["--engine", "slurm", "--target", "jetson-nix"], "jetson-nix"),
        (["--engine", "slurm", "--suite", "none.yaml"], "none.yaml"),
        (["--engine", "slurm", "ranks=3", "--nodes", "2"], "ranks=3"),
        (["--engine", "slurm", "ranks=3", "--gpus-per-node", "4"], "ranks=3"),
        (["--engine", "slurm", "ranks=32"], "ranks=32"),
        (["--engine", "slurm", "--nodes", "4", "--gpus-per-node", "8"], "ranks=32"),
        (["--engine", "slurm", "ranks=2", "num_envs=33"], "num_envs=33"),
        (["--engine", "slurm", "ranks=2", "shards=3"], "shards=3"),
        (["--local", "ranks=2", "shards=3"], "shards=3"),
        (["--engine", "slurm", "--sbatch", "comment=a\nrm -rf x"], "comment=a"),
        (["--engine", "slurm", "output=here"], "output=here"),
        (["--engine", "slurm", "resume=there"], "resume=there"),
        (["--engine", "slurm", "learner.gama=1"], "learner.gama"),
        (["--engine", "slurm", "robot=my.xml"], "my.xml"),
        (["--engine", "osmo", *IMAGE, "--store", "s3://b", "--sbatch", "partition=x"], "--sbatch"),
        (["--local", "--nodes", "2"], "--nodes"),
        (["--local", "--gpus-per-node", "1"], "--gpus-per-node"),
        (["--local", "--hours", "2"], "--hours"),
        (["--local", "--memory", "64Gi"], "--memory"),
        (["--local", "--setup", "source x/bin/activate"], "--setup"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(tmp_path, capsys, monkeypatch, words, offender):
    monkeypatch.chdir(tmp_path)
    assert main(["workflow", "--output", "out", *TASK, *words]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert offender in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("gpus", "envs", "wrong"), [("1", 512, 128), ("0", 128, 512)])
def test_a_placement_fits_the_number_of_environments_on_the_cluster_not_here(
    tmp_path, capsys, gpus, envs, wrong
):
    # humanoid_walk has 4096 environments on a GPU and 1024 on a CPU, eight actors a part each.
    placement = tmp_path / "p.yaml"
    words = ["workflow", "--engine", "slurm", "--output", str(tmp_path / "out"), "--gpus-per-node", gpus]
    words += ["task=humanoid_walk", "mode=async", f"placement={placement}"]
    placement.write_text(f"actor: {{count: 8, envs: {wrong}}}\n")
    assert main(words) == 2
    assert f"num_envs={8 * envs}" in capsys.readouterr().err
    placement.write_text(f"actor: {{count: 8, envs: {envs}}}\n")
    assert main(words) == 0


@pytest.mark.parametrize(
    ("text", "nodes", "offender"),
    [
        ("actors: 3\n", "1", "actors"),
        ("actor: {count: 5}\n", "1", "num_envs=16"),
        ("staleness: 1\n", "2", "address: auto"),  # all actors would run on the learner's node
        ("engine: local\naddress: auto\n", "2", "engine: ray"),
    ],
)
def test_a_placement_that_the_training_would_refuse_or_that_keeps_one_node_is_refused(
    tmp_path, capsys, text, nodes, offender
):
    placement = tmp_path / "p.yaml"
    placement.write_text(text)
    words = [
        "--engine",
        "kuberay",
        "--output",
        str(tmp_path / "out"),
        *IMAGE,
        "--store",
        "c",
        "--nodes",
        nodes,
    ]
    assert main(["workflow", *words, *TASK, "mode=async", f"placement={placement}"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "p.yaml" in line
    assert offender in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["partion=gpu", "time=soon"])
def test_a_fault_in_an_option_of_sbatch_is_placed_on_the_command_line(tmp_path, capsys, option):
    assert main(["workflow", "--engine", "slurm", "--output", str(tmp_path), *TASK, "--sbatch", option]) == 2
    said = capsys.readouterr().err
    assert "--sbatch" in said
    assert "line" not in said


@pytest.mark.parametrize(
    "image",
    [
        "ubuntu",
        "reg/robolearn:1",
        "localhost:5000/a/b__c-d:V1.0",
        "nvcr.io/nvidia/pytorch:25.01-py3",
        "reg.example.com/x@sha256:" + "0" * 64,
    ],
)
def test_references_of_images_are_taken(image):
    steps.require_image(image)


def test_a_training_on_kuberay_has_its_time_limit_in_each_attempt(tmp_path):
    job = yaml.safe_load((written("kuberay", tmp_path, "--hours", "24") / "train.yaml").read_text())
    assert job["spec"]["activeDeadlineSeconds"] == 86400
    assert job["spec"]["backoffLimit"] == 9


def test_steps_of_slurm_get_the_cores_of_their_job(tmp_path):
    folder = written("slurm", tmp_path, "--cpus", "4")
    for step in steps.STEPS:
        text = (folder / f"{step}.sbatch").read_text()
        assert "#SBATCH --cpus-per-task=4" in text
        assert 'srun --cpus-per-task="$SLURM_CPUS_PER_TASK" ' in text
    assert "torchrun" not in (folder / "train.sbatch").read_text()


def test_the_summary_says_what_was_written_and_how_it_trains(tmp_path, capsys):
    written("slurm", tmp_path / "a")
    said = capsys.readouterr().out
    assert "one process on 1 node" in said
    assert "workflow.json" in said
    assert "--setup" in said
    written("slurm", tmp_path / "b", "mode=async", "--setup", "module load cuda")
    said = capsys.readouterr().out
    assert "on Ray" not in said
    assert "--setup" not in said
    written("slurm", tmp_path / "c", "ranks=2", "--cpus", "1")
    said = capsys.readouterr().out
    assert "2 ranks on 1 node, with 1 core," in said


def test_a_folder_with_results_of_another_training_is_refused(tmp_path, capsys):
    written("slurm", tmp_path)
    written("slurm", tmp_path, "learner.gamma=0.9")  # nothing was run: it is written anew
    (tmp_path / "run").mkdir()
    assert main(["workflow", "--engine", "slurm", "--output", str(tmp_path), *TASK]) == 2
    assert "learner.gamma" in capsys.readouterr().err


def test_a_folder_that_no_workflow_has_made_is_refused_and_kept(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("mine")
    for how in (["--local"], ["--engine", "slurm"]):
        assert main(["workflow", *how, "--output", str(tmp_path), *TASK]) == 2
        assert "run/" in capsys.readouterr().err
    assert (tmp_path / "run" / "mine.txt").read_text() == "mine"
    assert not (tmp_path / "workflow.json").exists()


@pytest.mark.parametrize("engine", ["slurm", "kuberay"])
def test_a_store_with_the_results_of_another_workflow_ends_its_script(engine, tmp_path):
    """The lines themselves, in a folder as the store's."""
    lines = {}
    for gamma in ("0.97", "0.99"):
        words = [*TASK, f"learner.gamma={gamma}"]
        folder, store = tmp_path / gamma, tmp_path / "store"
        options = ["--store", str(store)] if engine == "slurm" else ["--store", "claim", "--image", "i"]
        assert main(["workflow", "--engine", engine, "--output", str(folder), *options, *words]) == 0
        if engine == "slurm":
            text = (folder / "train.sbatch").read_text()
        else:
            maps = [each.get("data", {}) for each in yaml.safe_load_all((folder / "files.yaml").read_text())]
            (text,) = [x for each in maps for x in each.values() if "> workflow.id" in x]
        begin, end = text.index(f"if [ -e {steps.RUN} ] && [ "), text.index("> workflow.id")
        lines[gamma] = text[begin:end] + "> workflow.id"
    store.mkdir(exist_ok=True)
    run = lambda gamma: subprocess.run(["bash", "-c", lines[gamma]], cwd=store, check=False).returncode  # noqa: E731
    assert run("0.97") == 0
    assert run("0.99") == 0  # nothing was trained yet
    (store / steps.RUN).mkdir()
    assert [run("0.99"), run("0.97"), run("0.99")] == [0, 2, 0]


def test_another_gate_is_checked_anew(tmp_path):
    marks = set()
    for survival in ("0.5", "0.99", "0.5"):
        words = ["--engine", "slurm", "--output", str(tmp_path), "--min-survival", survival, *TASK]
        assert main(["workflow", *words]) == 0
        text = (tmp_path / "simulate.sbatch").read_text()
        marks.add(text[text.index("touch done/") :].split()[1])
    assert len(marks) == 2
