"""Registry: names of RoboLearn, of other packages and of files, found without importing; and their errors."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from robolearn import cli, config
from robolearn.commands import exits
from robolearn.config import discovery as discover
from robolearn.config import registry
from robolearn.config.registry import Row
from robolearn.errors import ConfigError, MissingError

HEAVY = ("torch", "mujoco", "rsl_rl", "tensordict", "gymnasium")

TASK = """
from __future__ import annotations

from dataclasses import dataclass

from robolearn.tasks.cartpole import CartpoleBalance


@dataclass
class Nearby(CartpoleBalance):
    \"\"\"A task in a user's file.\"\"\"

    shift: float = 0.25
    \"\"\"A number.\"\"\"


class NotATask:
    pass
"""


@pytest.fixture
def task_file(tmp_path: Path) -> Path:
    path = tmp_path / "my task.py"  # with a space, as in many home folders
    path.write_text(TASK)
    return path


def run_python(code: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["list"], ["train", "num_env=3"]])
def test_help_list_and_a_misspelt_key_import_no_torch_and_no_simulator(words: list[str]) -> None:
    code = (
        f"import sys; from robolearn import cli; cli.main({words!r}); "
        f"heavy = [m for m in {HEAVY!r} if m in sys.modules]; assert not heavy, heavy"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_names_includes_robolearns_tasks_robots_backends_and_learners() -> None:
    assert {"cartpole_balance", "humanoid_walk"} <= set(registry.names("tasks"))
    assert {"cartpole", "humanoid"} <= set(registry.names("robots"))
    assert "mujoco" in registry.names("backends")
    assert "ppo" in registry.names("learners")


@pytest.mark.parametrize("kind", registry.KINDS)
def test_every_entry_of_robolearn_has_a_description_and_loads(kind: str) -> None:
    for name, entry in registry.entries(kind).items():
        if entry.source == registry.OURS:
            assert entry.description
            assert not entry.problem
            if entry.missing:  # an environment holds one or a few of the backends
                assert entry.install or entry.extra
                continue
            assert registry.load(kind, name) is not None


@pytest.mark.parametrize(
    ("camel", "snake"),
    [
        ("HumanoidWalk", "humanoid_walk"),
        ("Go1Joystick", "go1_joystick"),
        ("G1WalkHTTPServer", "g1_walk_http_server"),
        ("Reach", "reach"),
    ],
)
def test_a_task_is_named_by_its_class_in_snake_case(camel: str, snake: str) -> None:
    assert discover.snake_case(camel) == snake


def test_tasks_are_found_through_base_classes_and_a_broken_file_is_listed_with_its_problem(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.py").write_text(
        "class _Legged(Task):\n    pass\nclass TrotFast(_Legged):\n    '''Trots.\n\n    More.'''\nclass Helper: ..."
    )
    (tmp_path / "b.py").write_text("import nowhere\nclass Hop(task.Task):\n    pass\n")
    (tmp_path / "c.py").write_text("class Broken(Task:\n")
    found = {f.name: f for f in discover.tasks(tmp_path, "pkg")}
    assert set(found) == {"trot_fast", "hop", "c"}
    assert found["trot_fast"].location == "pkg.a:TrotFast"
    assert found["trot_fast"].description == "Trots."
    assert "c.py cannot be read" in found["c"].problem


def test_a_robot_yaml_without_a_description_is_listed_with_its_problem(tmp_path: Path) -> None:
    for name, text in {"good": "description: fine", "none": "mjcf: x", "bad": "a: [1", "empty": ""}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "robot.yaml").write_text(text)
    problems = {f.name: f.problem for f in discover.robots(tmp_path)}
    assert problems["good"] == ""
    assert all(problems[name] for name in ("none", "bad", "empty"))


@pytest.mark.parametrize(
    ("kind", "wrong", "right"),
    [
        ("tasks", "humanoid_wlak", "humanoid_walk"),
        ("tasks", "HumanoidWalk", "humanoid_walk"),
        ("tasks", "cartpole", "cartpole_balance or cartpole_swingup"),
        ("robots", "humanod", "humanoid"),
        ("backends", "mujco", "mujoco"),
        ("learners", "PP0", "ppo"),
    ],
)
def test_a_misspelt_name_is_refused_and_the_right_one_suggested(kind: str, wrong: str, right: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean {right}"):
        registry.load(kind, wrong)


def test_an_unknown_name_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown task 'zzz'\. Valid: .*humanoid_walk"):
        registry.load("tasks", "zzz")


@pytest.mark.parametrize("name", ["gymnasium", "gymnasium:", "isaaclab"])
def test_a_third_party_task_without_an_id_is_refused_with_the_form(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config.resolve([f"task={name}"])
    said, word = str(refused.value), name.rstrip(":")
    assert f"{word}:ID" in said
    assert "did you mean" not in said
    assert "\n" not in said


# Another package ------------------------------------------------------------------------------------------


def test_task_robot_and_backend_of_another_package_resolve(outside: dict[str, str]) -> None:
    run = config.resolve(["task=longpole_balance", "backend=careful"])
    assert (run.task_name, run.backend_name) == ("longpole_balance", "careful")
    assert run.num_envs == 64  # the task's `defaults`
    assert run.learner.num_steps == 16
    assert run.task.robot == "longpole"
    assert run.backend.threads == 1
    assert (registry.load("robots", "longpole") / "robot.yaml").is_file()
    assert registry.devices("careful") == ("cpu",)
    with pytest.raises(ConfigError, match="did you mean longpole_balance"):
        config.resolve(["task=longpole_balence"])


def test_another_package_is_listed_without_importing_it(outside: dict[str, str]) -> None:
    done = run_python(
        "import sys; from robolearn import cli; cli.main(['list']); "
        "assert not [m for m in sys.modules if m.startswith('robolearn_outside') or m == 'torch']",
        outside,
    )
    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert "A cart keeps a pole of two metres upright." in lines["longpole_balance"]
    assert (
        "A longer pole, from another package" in lines["longpole"]
    )  # a robot has no docstring: the package's summary
    assert "MuJoCo on one thread" in lines["careful"]
    assert all("robolearn-outside 0.3" in lines[n] for n in ("longpole_balance", "longpole", "careful"))


def write_package(site: Path, name: str, entry_points: str) -> None:
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "site"
    path.mkdir()
    monkeypatch.syspath_prepend(str(path))
    yield path
    monkeypatch.undo()
    registry.refresh()


def test_broken_entry_points_are_listed_with_the_reason_and_others_stay_usable(site: Path, capsys) -> None:
    (site / "half.py").write_text("import torch_that_is_not_there\nclass Here:\n    '''Is here.'''\n")
    (site / "wrong.py").write_text("class Unfinished(\n")
    write_package(
        site,
        "breakage",
        "[robolearn.tasks]\ngone = no_such_module_x:Task\nnameless = half:NotHere\nsyntax = wrong:Unfinished\n"
        "shapeless = half\nneedy = half:Here\n",
    )
    registry.refresh()
    hints = {row.name: row.hint for row in registry.describe("tasks")}
    assert "no module no_such_module_x" in hints["gone"]
    assert "half has no NotHere" in hints["nameless"]
    assert "wrong.py cannot be read" in hints["syntax"]
    assert "not 'module:object'" in hints["shapeless"]
    assert hints["humanoid_walk"] == ""
    assert cli.main(["list", "tasks"]) == 0
    assert "no: there is no module no_such_module_x" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="cannot be used: there is no module"):
        registry.load("tasks", "gone")
    with pytest.raises(MissingError, match="needs torch_that_is_not_there"):
        registry.load("tasks", "needy")
    assert cli.main(["train", "task=needy", "--show"]) == exits.MISSING


def test_a_package_without_metadata_is_listed(site: Path) -> None:
    (site / "bare.py").write_text("class Here:\n    '''Is here.'''\n")
    write_package(site, "bare", "[robolearn.tasks]\nbare = bare:Here\n")
    (site / "bare-1.0.dist-info" / "METADATA").unlink()
    registry.refresh()
    assert registry.entries("tasks")["bare"].description == "Is here."


def test_a_malformed_entry_points_file_is_named_and_robolearns_names_stay_usable(site: Path, capsys) -> None:
    write_package(site, "malformed", "[other.group]\nthis line has no equals sign\n")
    registry.refresh()
    hints = {row.name: row.hint for row in registry.describe("tasks")}
    assert "cannot be read" in hints["malformed"]
    assert hints["humanoid_walk"] == ""
    assert cli.main(["train", "task=malformed", "--show"]) == exits.BAD_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    assert "its entry points cannot be read" in line


def test_a_name_defined_twice_is_refused_naming_both_packages(site: Path) -> None:
    (site / "rival.py").write_text("class HumanoidWalk:\n    '''Ours is better.'''\n")
    write_package(site, "rival", "[robolearn.tasks]\nhumanoid_walk = rival:HumanoidWalk\n")
    registry.refresh()
    with pytest.raises(ConfigError, match=r"twice, by robolearn \(.*\) and by rival 1\.0 \(rival:"):
        registry.load("tasks", "humanoid_walk")
    assert registry.load("tasks", "cartpole_balance")


# A file ---------------------------------------------------------------------------------------------------


def test_a_task_from_a_file_resolves_with_overrides(task_file: Path) -> None:
    run = config.resolve([f"task='{task_file}:Nearby'", "task.shift=0.5"])
    assert run.task.shift == 0.5
    assert run.task_name == f"{task_file}:Nearby"
    assert registry.load("tasks", run.task_name) is type(run.task)


def test_a_relative_file_is_saved_with_its_absolute_path(task_file: Path, monkeypatch) -> None:
    monkeypatch.chdir(task_file.parent)
    assert config.resolve(["task=./my task.py:Nearby"]).task_name == f"{task_file}:Nearby"


@pytest.mark.parametrize(
    ("content", "name", "expected"),
    [
        (TASK, "Nearbye", "has no Nearbye: did you mean Nearby"),
        (TASK, "Zzz", "has no Zzz; it has Nearby, NotATask"),
        (TASK, "NotATask", "is not a Task"),
        (TASK, "dataclass", "is not a class"),
        ("x = 1 / 0", "A", "line 1 cannot be imported: ZeroDivisionError"),
        ("\nclass A(:", "A", "line 2 cannot be imported: SyntaxError"),
        ("import sys; sys.exit(3)", "A", "cannot be imported: SystemExit"),
        ("import no_such_module_y", "A", "No module named 'no_such_module_y'"),
        (
            "from robolearn.tasks.mdp.task import Task\nclass A(Task):\n    gain: float = 1.0\n",
            "A",
            "put @dataclass above the class",
        ),
        (
            (
                "from dataclasses import dataclass\nfrom robolearn.tasks.stand import Stand\n"
                "@dataclass\nclass A(Stand):\n    control_dt = 0.01\n"
            ),
            "A",
            "control_dt: float = ...",
        ),
        (
            (
                "from dataclasses import dataclass\nfrom robolearn.tasks.stand import Stand\n"
                "class Base(Stand):\n    noise = {}\n@dataclass\nclass A(Base):\n    pass\n"
            ),
            "A",
            "noise in class Base has no type",
        ),
        (
            (
                "from dataclasses import dataclass, field\nfrom robolearn.tasks.stand import Stand\n"
                "@dataclass\nclass A(Stand):\n    defaults: dict = field(default_factory=lambda: {'seed': 2})\n"
            ),
            "A",
            "defaults is a constant of the class and no field",
        ),
    ],
)
def test_an_error_in_a_file_is_named_in_one_line(
    tmp_path: Path, content: str, name: str, expected: str
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(content)
    with pytest.raises(ConfigError) as error:
        registry.load("tasks", f"{path}:{name}")
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_or_a_file_without_a_name_is_refused(task_file: Path) -> None:
    with pytest.raises(ConfigError, match=r"/nowhere/x.py' does not exist"):
        registry.load("tasks", "/nowhere/x.py:Task")
    with pytest.raises(ConfigError, match=r"/nowhere/x.py' does not exist"):
        registry.load("tasks", "/nowhere/x.py")
    with pytest.raises(ConfigError, match=r":NAME; it has Nearby, NotATask"):
        registry.load("tasks", str(task_file))
    with pytest.raises(ConfigError, match=r"a file is named as path.py:Name"):
        registry.load("tasks", "some/where")


def test_a_file_can_import_a_module_beside_it(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_task.py").write_text("SHIFT = 0.75\n")
    (tmp_path / "mine.py").write_text(
        TASK.replace("0.25", "SHIFT").replace("class Nearby", "class Nearby", 1)
    )
    text = (
        (tmp_path / "mine.py")
        .read_text()
        .replace("from dataclasses", "from neighbour_of_task import SHIFT\nfrom dataclasses", 1)
    )
    (tmp_path / "mine.py").write_text(text)
    before = list(sys.path)
    assert registry.load("tasks", f"{tmp_path}/mine.py:Nearby")().shift == 0.75
    assert sys.path == before


def test_backends_learners_and_robots_load_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "parts.py"
    path.write_text(
        "from dataclasses import dataclass\n@dataclass\nclass Settings:\n    rate: float = 0.5\n"
        "class Thing:\n    config_class = Settings\nclass Bare:\n    pass\nFOLDER = '/somewhere/robot'\n"
    )
    run = config.resolve(["task=cartpole_balance", f"learner={path}:Thing", f"backend={path}:Thing"])
    assert (run.learner.rate, run.backend.rate) == (0.5, 0.5)
    assert registry.devices(f"{path}:Thing") == ("cpu",)
    assert registry.load("robots", f"{path}:FOLDER") == Path("/somewhere/robot")
    with pytest.raises(ConfigError, match="has no config_class"):
        registry.load("learners", f"{path}:Bare")


def test_a_folder_with_a_robot_yaml_loads_as_a_robot(tmp_path: Path) -> None:
    (tmp_path / "bot").mkdir()
    (tmp_path / "bot" / "robot.yaml").write_text("description: x\n")
    assert registry.load("robots", f"{tmp_path}/bot") == tmp_path / "bot"


# Backends -------------------------------------------------------------------------------------------------


def with_rows(monkeypatch, **rows: Row) -> None:
    monkeypatch.setattr(registry, "BACKENDS", rows)
    registry.refresh()


CPU = Row("m:A", "a", requires=("json",), devices=("cpu",))
CUDA = Row("m:B", "b", requires=("json",), devices=("cuda",))
ABSENT = Row("m:C", "c", requires=("no_such_simulator",), extra="fast", devices=("cuda",))


def test_auto_picks_a_backend_for_the_device_else_one_for_the_cpu(monkeypatch, request) -> None:
    request.addfinalizer(registry.refresh)
    with_rows(monkeypatch, slow=CPU, fast=CUDA)
    assert registry.pick_backend("cpu") == "slow"
    assert registry.pick_backend("cuda:1") == "fast"
    with_rows(monkeypatch, slow=CPU, fast=ABSENT)
    assert registry.pick_backend("cuda") == "slow"


STEEP = Row("m:D", "d", requires=("json",), devices=("cpu", "cuda"), gives=("gradients",))
ABSENT_STEEP = Row("m:E", "e", requires=("no_such_simulator",), extra="steep", gives=("gradients",))


def test_auto_picks_a_backend_with_gradients_where_no_other_is_installed(monkeypatch, request) -> None:
    request.addfinalizer(registry.refresh)
    with_rows(monkeypatch, fast=ABSENT, steep=STEEP)
    assert registry.pick_backend("cpu") == "steep"
    # Needs that are not in the tables are ignored here; `make_learner` checks them.
    assert registry.pick_backend("cpu", {"exact_restore"}) == "steep"


def test_auto_picks_a_backend_with_gradients_where_the_learner_needs_them(monkeypatch, request) -> None:
    request.addfinalizer(registry.refresh)
    with_rows(monkeypatch, slow=CPU, fast=ABSENT, steep=STEEP)
    for device in ("cpu", "cuda"):
        assert registry.pick_backend(device) == "slow"
        assert registry.pick_backend(device, {"gradients"}) == "steep"
    assert registry.giving("gradients") == "backend=steep"
    assert registry.giving("smell") == ""
    with_rows(monkeypatch, slow=CPU, steep=ABSENT_STEEP)
    with pytest.raises(
        MissingError, match=r"^no simulator with gradients for device=cpu is installed; .*steep"
    ):
        registry.pick_backend("cpu", {"gradients"})
    fix = "backend=steep (needs no_such_simulator: pip install 'robolearn[steep]')"
    assert registry.giving("gradients") == fix


@pytest.mark.parametrize(("cuda", "backend"), [(False, "mujoco"), (True, "mujoco_warp")])
def test_auto_picks_mujoco_warp_where_there_is_a_gpu(cuda, backend, monkeypatch) -> None:
    monkeypatch.setattr(registry, "_has_cuda", lambda: cuda)
    assert registry.pick_backend("auto") == backend
    assert registry.pick_backend("cpu") == "mujoco"
    assert registry.pick_backend("cuda") == "mujoco_warp"
    run = config.resolve(["task=humanoid_walk", "num_envs=4096"])
    assert run.backend_name == backend


def test_a_missing_simulator_is_refused_with_its_install_command(monkeypatch, request, capsys) -> None:
    request.addfinalizer(registry.refresh)
    with_rows(monkeypatch, fast=ABSENT)
    with pytest.raises(MissingError, match=r"needs no_such_simulator: pip install 'robolearn\[fast\]'"):
        registry.pick_backend("cpu")
    with pytest.raises(MissingError, match=r"pip install 'robolearn\[fast\]'"):
        registry.load("backends", "fast")
    assert registry.describe("backends")[0].available is False
    assert cli.main(["train", "task=cartpole_balance", "--show"]) == exits.MISSING
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1


def test_a_package_without_a_required_submodule_counts_as_missing_and_is_not_imported(
    tmp_path, monkeypatch, request
) -> None:
    request.addfinalizer(registry.refresh)
    package = tmp_path / "aged_simulator"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    aged = Row("m:G", "g", requires=("aged_simulator", "aged_simulator.batch"), install="get 3.17")
    with_rows(monkeypatch, aged=aged, slow=CPU)
    assert registry.entries("backends")["aged"].hint == "needs aged_simulator.batch: get 3.17"
    assert registry.pick_backend("cpu") == "slow"
    (package / "batch.py").write_text("")
    importlib.invalidate_caches()
    assert registry.entries("backends")["aged"].hint == ""
    assert not {"aged_simulator", "aged_simulator.batch"} & set(sys.modules)


def test_a_mujoco_without_mujoco_batch_is_listed_with_the_install_command(monkeypatch, capsys) -> None:
    monkeypatch.setattr(registry, "_installed", lambda name: name != "mujoco.batch")
    assert cli.main(["list", "backends"]) == exits.OK
    assert "needs mujoco.batch: pip install 'robolearn[mujoco]'" in " ".join(capsys.readouterr().out.split())
    assert cli.main(["train", "task=cartpole_balance", "backend=mujoco"]) == exits.MISSING
    (line,) = capsys.readouterr().err.splitlines()
    assert "mujoco.batch" in line
    assert "3.17" in line


PARTICULAR = Row(
    "m:F", "f", requires=("json", "no_such_simulator"), extra="own", install="python3.12 -m venv own"
)


def test_a_backends_install_command_is_shown_instead_of_its_extra(monkeypatch, request, capsys) -> None:
    request.addfinalizer(registry.refresh)
    with_rows(monkeypatch, own=PARTICULAR)
    with pytest.raises(MissingError, match=r"own needs no_such_simulator: python3\.12 -m venv own$"):
        registry.load("backends", "own")
    assert cli.main(["list", "backends"]) == exits.OK
    assert "python3.12 -m venv own" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("there", [(), ("isaaclab", "mujoco_usd_converter")])
def test_without_isaac_lab_3_its_install_command_is_shown(there, monkeypatch, capsys) -> None:
    # Version 2 has isaaclab, and no isaaclab_newton.
    monkeypatch.setattr(
        registry, "_installed", lambda name: name in there or name.partition(".")[0] == "mujoco"
    )
    assert cli.main(["train", "task=cartpole_balance", "backend=isaaclab"]) == exits.MISSING
    (line,) = capsys.readouterr().err.splitlines()
    assert "isaaclab_newton" in line
    assert "isaaclab==3.0.0 mujoco-usd-converter==0.6.1" in line
    assert "Isaac Lab" in line
    assert registry.pick_backend("cpu") == "mujoco"


def test_auto_picks_isaac_lab_where_no_other_backend_is_installed(monkeypatch) -> None:
    monkeypatch.setattr(registry, "_installed", lambda name: True)
    assert registry.pick_backend("cpu") == "mujoco"
    assert registry.pick_backend("cuda") == "mujoco_warp"
    only = ("isaaclab", "isaaclab_newton", "mujoco_usd_converter")
    monkeypatch.setattr(registry, "_installed", lambda name: name in only)
    assert registry.pick_backend("cpu") == "isaaclab"
