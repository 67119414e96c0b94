"""Configuration: precedence, strict types, the saved file, its documentation, and resuming."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from robolearn import cli, config
from robolearn.config import fields, registry, schema, yaml_file
from robolearn.errors import ConfigError, MissingError

HUMANOID = ["task=humanoid_walk"]

FILE_TASK = """
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from robolearn.tasks.cartpole import CartpoleBalance

(Path(__file__).parent / "imported").touch()


@dataclass
class Mine(CartpoleBalance):
    \"\"\"Mine.\"\"\"

    shift: float = 0.25
    \"\"\"A number.\"\"\"
"""

MORE = """
from __future__ import annotations
from dataclasses import dataclass, field
from typing import Any, ClassVar
from robolearn.tasks.cartpole import CartpoleBalance

@dataclass
class Preset(CartpoleBalance):
    "Has defaults for several sections."
    defaults: ClassVar[dict[str, Any]] = {
        "num_envs": 77, "seed": 5, "learner.gamma": 0.5, "backend.threads": 3, "task.force": 10
    }

@dataclass
class BadKey(CartpoleBalance):
    "A default that does not exist."
    defaults: ClassVar[dict[str, Any]] = {"learner.gama": 0.5}

@dataclass
class BadValue(CartpoleBalance):
    "A default out of range."
    defaults: ClassVar[dict[str, Any]] = {"num_envs": 0}

@dataclass
class NotFinite(CartpoleBalance):
    "A field that is not finite."
    force: float = float("inf")

@dataclass
class Needy(CartpoleBalance):
    "Cannot be created with its defaults."
    needed: float = field(default_factory=lambda: 1 / 0)

@dataclass
class Picky(CartpoleBalance):
    "Validates its settings."
    def validate(self) -> None:
        if self.force > 50:
            raise ValueError("force: more than the motor has; take at most 50")
        if self.start_angle > 0.5:
            raise ValueError("poles fall from there")

@dataclass
class OtherSettings:
    "Settings."
    rate: float = 0.125

class Other:
    "Another learner, or backend."
    config_class = OtherSettings
"""


@pytest.fixture
def more(tmp_path: Path) -> str:
    path = tmp_path / "more.py"
    path.write_text(MORE)
    return str(path)


# Resolving ------------------------------------------------------------------------------------------------


def test_task_backend_and_learner_resolve_by_name() -> None:
    run = config.resolve(["task=humanoid_walk", "num_envs=4096", "backend=mujoco", "backend.threads=2"])
    assert run.num_envs == 4096
    assert run.backend.threads == 2
    assert (run.task_name, run.backend_name, run.learner_name) == ("humanoid_walk", "mujoco", "ppo")


def test_overrides_reach_every_section_and_may_precede_the_task() -> None:
    run = config.resolve(
        [
            "task.rewards.posture=0.25",
            "learner.learning_rate=3e-4",
            *HUMANOID,
            "task.commands.forward=[0.5,1]",
        ]
    )
    assert run.task.rewards["posture"].weight == 0.25
    assert run.task.commands.forward == (0.5, 1.0)
    assert run.learner.learning_rate == 3e-4


def test_two_configurations_share_no_state() -> None:
    first = config.resolve(HUMANOID)
    second = config.resolve([*HUMANOID, "task.rewards.posture=9"])
    assert first.task.rewards["posture"].weight != 9
    assert first.task.rewards is not second.task.rewards
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.seed = 3  # type: ignore[misc]


def test_a_tasks_defaults_come_before_the_users_overrides(more: str) -> None:
    run = config.resolve([f"task={more}:Preset"])
    assert (run.num_envs, run.seed, run.learner.gamma, run.backend.threads) == (77, 5, 0.5, 3)
    assert run.task.force == 10.0
    run = config.resolve([f"task={more}:Preset", "num_envs=8", "learner.gamma=0.9", "task.force=20"])
    assert (run.num_envs, run.seed, run.learner.gamma, run.task.force) == (8, 5, 0.9, 20.0)


def test_a_tasks_settings_for_one_learner_or_backend_are_not_applied_to_another(more: str) -> None:
    run = config.resolve([f"task={more}:Preset", f"learner={more}:Other", f"backend={more}:Other"])
    assert (run.learner.rate, run.backend.rate, run.num_envs) == (0.125, 0.125, 77)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("BadKey", "BadKey.defaults: learner.gama': did you mean gamma"),
        ("BadValue", "BadValue.defaults: num_envs takes a whole number from 1"),
        ("NotFinite", "task.force takes a finite number"),
        ("Needy", "cannot be made with its defaults: ZeroDivisionError"),
    ],
)
def test_an_error_in_a_tasks_defaults_names_the_key(more: str, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config.resolve([f"task={more}:{name}"])


def test_a_value_error_of_validate_is_reported_with_its_section(more: str) -> None:
    with pytest.raises(ConfigError, match=r"^task\.force: more than the motor has; take at most 50$"):
        config.resolve([f"task={more}:Picky", "task.force=60"])
    with pytest.raises(ConfigError, match=r"^task: poles fall from there$"):
        config.resolve([f"task={more}:Picky", "task.start_angle=0.6"])


def test_overrides_change_a_base_configuration(more: str) -> None:
    base = config.resolve([f"task={more}:Preset", "learner.gamma=0.75", "seed=9"])
    run = config.resolve(["num_envs=3", "task.rewards.upright=2"], base)
    assert (run.num_envs, run.seed, run.learner.gamma) == (3, 9, 0.75)
    assert config.changed(base, run) == ["num_envs", "task.rewards.upright"]
    assert config.resolve([], base) == base
    other = config.resolve([f"learner={more}:Other"], base)
    assert other.learner.rate == 0.125
    assert other.seed == 9


def test_without_a_task_the_valid_ones_are_listed() -> None:
    names = "ant_run, arm_lift, arm_reach, bimanual, carry, cartpole_balance, cartpole_swingup, handover, hopper_run"
    with pytest.raises(ConfigError, match=f"add task=NAME; valid: {names}"):
        config.resolve([])


# The saved file -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [HUMANOID, ["task=cartpole_balance", "output=1e5", "seed=3", "resume='a: #b'"]]
)
def test_a_saved_configuration_loads_to_an_equal_one(tmp_path: Path, words: list[str]) -> None:
    words = [word for word in words if not word.startswith("resume")]
    run = config.resolve(words)
    config.save(run, tmp_path / "run" / "config.yaml")
    assert config.load(tmp_path / "run" / "config.yaml") == run
    assert config.load(tmp_path / "run") == run
    assert os.listdir(tmp_path / "run") == ["config.yaml"]


@pytest.mark.parametrize("section", ["backend", "learner"])
def test_an_unknown_name_in_an_override_is_not_blamed_on_the_saved_file(tmp_path: Path, section: str) -> None:
    config.save(config.resolve(["task=cartpole_balance"]), tmp_path / "config.yaml")
    with pytest.raises(ConfigError, match="'foo'") as error:
        config.load(tmp_path, [f"{section}=foo"])
    assert str(tmp_path) not in str(error.value)


def test_a_configuration_loads_from_the_path_of_a_checkpoint(tmp_path: Path) -> None:
    run = config.resolve(["task=cartpole_balance"])
    config.save(run, tmp_path / "config.yaml")
    checkpoint = tmp_path / "checkpoints" / "iteration_000025.pt"
    checkpoint.parent.mkdir()
    checkpoint.touch()
    assert config.load(checkpoint) == run
    with pytest.raises(ConfigError, match="does not exist"):
        config.load(tmp_path / "run" / "x" / "y" / "z")


def test_show_prints_yaml_that_parses_to_the_saved_content(capsys) -> None:
    words = ["task=humanoid_walk", "learner.learning_rate=1e-5", "task.rewards.posture=-1e-7"]
    assert cli.main(["train", *words, "--show"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert yaml.safe_load(out) == config.to_dict(config.resolve(words))
    content = yaml.safe_load(out)
    assert all(next(iter(content[group])) == "name" for group in schema.SECTIONS)
    assert all(len(line) <= 120 for line in out.splitlines())


def test_show_has_the_docstrings_of_the_fields_as_comments() -> None:
    text = config.show(config.resolve(HUMANOID))
    lines = {line.split(":")[0].strip(): line for line in reversed(text.splitlines()) if ":" in line}
    assert "# Number of environments simulated in parallel." in lines["num_envs"]
    assert "[m/s]" in lines["forward"]
    columns = {line.index("# ") for line in text.splitlines() if "# " in line}
    assert len(columns) == 1  # aligned


def test_show_says_what_each_reward_is() -> None:
    text = config.show(config.resolve(["task=velocity"]))
    told = {line.split(":")[0].strip(): line for line in text.splitlines()}
    assert told["upright"].endswith("# How level the base is: 1 level, exp(-1) at a lean whose sine")
    assert told["posture"].endswith(
        "# Closeness of the joints to the pose to stand or to walk in."
    )  # a method
    assert told["air_time"].endswith("}")  # too long for a comment beside it
    assert "# Time in the air beyond `least`" in text
    assert "(N,)" not in text


def write(tmp_path: Path, **changes: Any) -> Path:
    content = config.to_dict(config.resolve(["task=cartpole_balance"]))
    for key, value in changes.items():
        group, _, name = key.rpartition("__")
        (content[group] if group else content)[name] = value
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


@pytest.mark.parametrize("version", [0, -3, 3, 99])
def test_an_unsupported_schema_is_refused_naming_both_versions(tmp_path: Path, version: int) -> None:
    with pytest.raises(ConfigError, match=rf"schema {version}\b.*schema {schema.SCHEMA}\b"):
        config.load(write(tmp_path, schema=version))


@pytest.mark.parametrize("version", [None, "1", True, 1.0])
def test_a_file_without_a_schema_number_is_refused(tmp_path: Path, version: Any) -> None:
    with pytest.raises(ConfigError, match="has no schema number"):
        config.load(write(tmp_path, schema=version))


def test_an_older_schema_is_migrated_step_by_step(tmp_path: Path, monkeypatch) -> None:
    def from_minus_one(content: dict[str, Any]) -> dict[str, Any]:
        return {**content, "environments": content["envs"]}

    def from_zero(content: dict[str, Any]) -> dict[str, Any]:
        content = {k: v for k, v in content.items() if k not in ("envs", "environments")}
        return {**content, "num_envs": 12}

    monkeypatch.setitem(schema.MIGRATIONS, -1, from_minus_one)
    monkeypatch.setitem(schema.MIGRATIONS, 0, from_zero)
    assert config.load(write(tmp_path, schema=-1, envs=12)).num_envs == 12


def test_values_that_schema_2_renamed_are_migrated(tmp_path: Path) -> None:
    run = config.resolve(["task=gymnasium:Pendulum-v1"])
    content = config.to_dict(run)
    assert content["backend"]["name"] == "external"
    path = tmp_path / "config.yaml"
    yaml_file.write({**content, "schema": 1, "backend": {**content["backend"], "name": "own"}}, path)
    assert config.to_dict(config.load(path)) == content


@pytest.mark.parametrize("value", ["clock", "cycle"])
@pytest.mark.parametrize("version", [1, 2])
def test_a_saved_symmetry_of_a_gait_clock_is_refused_by_its_value(
    tmp_path: Path, version: int, value: str
) -> None:
    with pytest.raises(ConfigError, match=rf"config\.yaml.*learner\.symmetry takes one of .*not '{value}'"):
        config.load(write(tmp_path, schema=version, learner__symmetry=value))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_env": 3}, "there is no 'num_env': did you mean num_envs"),
        ({"learner__learning_rat": 3}, "there is no 'learner.learning_rat': did you mean"),
        ({"learner__lr": 3}, "did you mean learning_rate"),
        ({"task__rewards": {"upwright": 1.0}}, "did you mean upright"),
        ({"num_envs": 0}, "num_envs takes a whole number from 1"),
        ({"num_envs": "many"}, "num_envs takes a whole number"),
        ({"learner__gamma": float("nan")}, "learner.gamma takes a finite number"),
        ({"task": None}, "task has no name"),
        ({"task__name": 3}, "task has no name"),
        ({"task__name": "cartpole_balanse"}, "did you mean cartpole_balance"),
        ({"backend": {}}, "backend has no name"),
        ({"learner": [1]}, "learner has no name"),
    ],
)
def test_an_invalid_value_in_a_saved_file_is_refused_naming_the_file(
    tmp_path: Path, changes: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        config.load(write(tmp_path, **changes))
    assert "config.yaml" in str(error.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"[1, 2]", b"a: [1", b"\xff\xfe\x00", b"3", b"1: 2", b"!!python/object/apply:os.system [ls]"],
)
def test_a_damaged_file_is_refused_with_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"config\.yaml") as error:
        config.load(path)
    assert str(error.value).isprintable()


NOT_PLAIN = [
    "&a 1",
    "[&a {x: 1}, *a]",
    "!!timestamp x",
    "!!bool maybe",
    "!!binary x",
    "!!set {a}",
    "!!int 1",
    "!mine 1",
    "!!python/name:os.system",
]
"""Values with an anchor or a tag."""


@pytest.mark.parametrize("value", NOT_PLAIN)
def test_anchors_and_tags_are_refused_with_their_line(tmp_path: Path, value: str) -> None:
    path = write(tmp_path)
    text = path.read_text()
    line = text.count("\n") + 1
    path.write_text(f"{text}extra: {value}\n")
    with pytest.raises(ConfigError, match=rf"config\.yaml.* near line {line}: the (alias|tag)"):
        config.load(path)


@pytest.mark.parametrize("value", ["0001-01-01 00:00:00 +23:59", "2001-99-01", "=", "0b_", "{[1]: 2}"])
def test_unusual_yaml_values_are_refused_with_one_line(tmp_path: Path, value: str) -> None:
    path = write(tmp_path)
    path.write_text(f"{path.read_text()}extra: {value}\n")
    with pytest.raises(ConfigError, match=r"config\.yaml") as error:
        config.load(path)
    assert str(error.value).isprintable()


def test_an_object_saved_twice_is_written_without_an_alias(tmp_path: Path) -> None:
    both = [1, 2]
    yaml_file.write({"a": both, "b": both}, tmp_path / "a.yaml")
    assert yaml_file.read(tmp_path / "a.yaml") == {"a": both, "b": both}


def test_a_number_written_as_9e_1_is_read_as_a_number(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_text(path.read_text().replace("gamma: 0.99", "gamma: 9e-1"))
    assert config.load(path).learner.gamma == 0.9


def test_a_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch) -> None:
    run = config.resolve(["task=cartpole_balance"])
    path = tmp_path / "config.yaml"
    path.write_text("old")

    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(ConfigError, match="No space left on device"):
        config.save(run, path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["config.yaml"]


# Files in saved configurations ----------------------------------------------------------------------------


@pytest.fixture
def saved_with_file(tmp_path: Path) -> tuple[Path, Path]:
    """A saved run whose task comes from a file, and that file, which creates `imported` beside it when imported."""
    source = tmp_path / "source" / "mine.py"
    source.parent.mkdir()
    source.write_text(FILE_TASK)
    config.save(config.resolve([f"task={source}:Mine", "task.shift=0.5"]), tmp_path / "config.yaml")
    (source.parent / "imported").unlink()
    moved = tmp_path / "elsewhere" / "mine.py"
    source.parent.rename(moved.parent)  # so that importing it again would create the mark
    return tmp_path / "config.yaml", moved


def test_a_file_named_by_a_saved_configuration_is_not_imported(saved_with_file: tuple[Path, Path]) -> None:
    path, source = saved_with_file
    with pytest.raises(ConfigError, match=r"only run where you name it again: task=.*mine\.py:Mine"):
        config.load(path)
    with pytest.raises(ConfigError, match="name it again"):
        config.load(path, ["seed=3", f"task={source}:Another"])
    assert not (source.parent / "imported").exists()


def test_a_file_that_the_user_names_again_is_imported_with_its_saved_settings(
    saved_with_file: tuple[Path, Path],
) -> None:
    path, source = saved_with_file
    run = config.load(path, [f"task={source}:Mine", "seed=3"])
    assert (run.task.shift, run.seed) == (0.5, 3)
    assert run.task_name == f"{source}:Mine"


def test_a_robot_from_a_file_must_be_named_again(tmp_path: Path) -> None:
    (tmp_path / "bot.py").write_text("import pathlib\nBOT = pathlib.Path('/x')\n")
    words = [f"task.robot={tmp_path}/bot.py:BOT"]
    run = config.resolve(["task=cartpole_balance", *words])
    assert run.task.robot == f"{tmp_path}/bot.py:BOT"
    config.save(run, tmp_path / "config.yaml")
    with pytest.raises(ConfigError, match=r"its task\.robot comes from a file"):
        config.load(tmp_path)
    assert config.load(tmp_path, words) == run


# Resuming -------------------------------------------------------------------------------------------------


def test_resume_starts_from_the_saved_configuration(tmp_path: Path) -> None:
    first = config.resolve(["task=cartpole_balance", "seed=9", f"output={tmp_path}", "learner.gamma=0.9"])
    config.save(first, tmp_path / "config.yaml")
    words = [f"resume={tmp_path}", "max_iterations=500"]
    run = config.resolve(words)
    assert (run.seed, run.learner.gamma, run.max_iterations, run.resume) == (9, 0.9, 500, str(tmp_path))
    assert run.output is None  # the saved output is dropped
    assert config.resume_changes(words, run) == []
    words += ["learner.gamma=0.8", "num_envs=7"]
    assert config.resume_changes(words, config.resolve(words)) == ["num_envs", "learner.gamma"]
    assert config.resume_changes(["task=cartpole_balance"], first) == []


def test_a_run_with_a_task_from_a_file_resumes_where_the_file_is_named(
    saved_with_file: tuple[Path, Path],
) -> None:
    path, source = saved_with_file
    with pytest.raises(ConfigError, match="name it again"):
        config.resolve([f"resume={path.parent}"])
    words = [f"resume={path.parent}", f"task={source}:Mine"]
    run = config.resolve(words)
    assert run.task.shift == 0.5
    assert config.resume_changes(words, run) == []


def test_settings_that_a_run_of_an_earlier_version_does_not_have_count_as_changed(tmp_path):
    config.save(config.resolve(["task=velocity", "robot=humanoid"]), tmp_path / config.FILE_NAME)
    words = [f"resume={tmp_path}"]
    assert config.resume_changes(words, config.resolve(words)) == []
    saved = yaml_file.read(tmp_path / config.FILE_NAME)
    del saved["task"]["step_width"], saved["learner"]["skip_events"]
    del (
        saved["task"]["packet_loss"],
        saved["task"]["sensing"],
        saved["task"]["history"],
    )  # which do nothing by default
    (tmp_path / config.FILE_NAME).write_text(yaml.safe_dump(saved))
    assert config.resume_changes(words, config.resolve(words)) == ["task.step_width", "learner.skip_events"]
    saved["task"]["rewards"]["stepping"] = -30.0  # a term that had no parameters
    (tmp_path / config.FILE_NAME).write_text(yaml.safe_dump(saved))
    changes = config.resume_changes(words, config.resolve(words))
    assert set(changes) == {"task.step_width", "task.rewards.stepping.free", "learner.skip_events"}
    del saved["task"]["rewards"]["stepping"]  # a term that was not there stays away
    (tmp_path / config.FILE_NAME).write_text(yaml.safe_dump(saved))
    words.append("task.step_width=0")
    assert config.resume_changes(words, config.resolve(words)) == ["task.step_width", "learner.skip_events"]


# Documentation --------------------------------------------------------------------------------------------


def nested(value: Any) -> list[type]:
    """The dataclasses of an instance and of its parts."""
    if not dataclasses.is_dataclass(value):
        return []
    inner = [fields._start(getattr(value, name), hint) for name, hint in fields.hints(type(value)).items()]
    return [type(value), *(cls for part in inner for cls in nested(part))]


def test_every_setting_of_a_run_has_a_docstring() -> None:
    assert set(fields.field_docs(config.Config)) == {f.name for f in dataclasses.fields(config.Config)}


@pytest.mark.parametrize("kind", ["tasks", "backends", "learners"])
def test_every_field_of_every_task_backend_and_learner_has_a_docstring(kind: str) -> None:
    for name in registry.names(kind):
        try:
            cls = registry.load(kind, name)
        except MissingError:
            continue  # not installed here
        for part in nested((cls if kind == "tasks" else cls.config_class)()):
            missing = set(fields.hints(part)) - set(fields.field_docs(part))
            assert not missing, f"{part.__name__}: no docstring under {', '.join(sorted(missing))}"


def test_a_run_saved_with_a_missing_backend_loads_with_another_one(tmp_path):
    path = tmp_path / "config.yaml"
    config.save(config.resolve(["task=cartpole_balance", "backend=mujoco"]), path)
    saved = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**saved, "backend": {"name": "warp_drive", "antimatter": 9}}))
    with pytest.raises(ConfigError, match="warp_drive"):
        config.load(path)
    assert config.load(path, ["backend=mujoco"]).backend_name == "mujoco"
    assert config.load(path, ["backend=auto", "seed=5"]).seed == 5


def test_an_empty_dictionary_is_refused():
    with pytest.raises(ConfigError, match=r"task.rewards={} changes nothing.*task.rewards.upright="):
        config.resolve(["task=cartpole_balance", "task.rewards={}"])


def test_policies_of_agents_are_set_together_one_by_one_and_taken_away(tmp_path):
    def policies(*words: str) -> dict[str, str]:
        return config.resolve(list(words)).learner.policies

    assert policies("task=carry", "learner.policies={}") == {}
    assert policies("task=carry", "learner.policies={robot: a, partner: b}") == {"robot": "a", "partner": "b"}
    assert policies("task=carry", "learner.policies.robot=a") == {"robot": "a"}
    assert policies("task=handover") == {"robot": "giver", "partner": "receiver"}
    assert policies("task=handover", "learner.policies.robot=both") == {
        "robot": "both",
        "partner": "receiver",
    }
    shared = config.resolve(["task=handover", "learner.policies={}"])
    assert shared.learner.policies == {}
    config.save(shared, tmp_path / "config.yaml")
    assert config.load(tmp_path / "config.yaml", []).learner.policies == {}
    for task in ("carry", "handover"):
        with pytest.raises(ConfigError, match=r"learner.policies={robot: a, partner: b}"):
            config.resolve([f"task={task}", "learner.policies=[a,b]"])


def test_a_misspelt_observation_a_missing_group_and_missing_joint_targets_are_named(tmp_path):
    head = "from dataclasses import dataclass\nfrom robolearn.tasks.cartpole import CartpoleBalance\n"
    head += "from robolearn.tasks.mdp.task import Task\n"
    for body, message in {
        "@dataclass\nclass T(CartpoleBalance):\n    observations = {'policy': ('joint_pos_rell',), 'critic': ()}\n": (
            "no item is called 'joint_pos_rell': did you mean joint_pos_rel"
        ),
        "@dataclass\nclass T(CartpoleBalance):\n    observations = {'policy': ('joint_vel_rel',)}\n": (
            "no group 'critic'"
        ),
        "@dataclass\nclass T(Task):\n    robot: str = 'cartpole'\n": r"defines no joint_targets\(\)",
    }.items():
        path = tmp_path / f"task_{len(list(tmp_path.iterdir()))}.py"
        path.write_text(head + body)
        with pytest.raises(ConfigError, match=message):
            config.resolve([f"task={path}:T"])


@pytest.mark.parametrize(("cuda", "envs"), [(False, 1024), (True, 4096)])
def test_a_task_may_state_another_number_of_environments_for_a_cpu(cuda, envs, monkeypatch, tmp_path):
    pytest.importorskip("mujoco_warp")
    monkeypatch.setattr(registry, "_has_cuda", lambda: cuda)
    walk = ["task=humanoid_walk"]
    assert config.resolve(walk).num_envs == envs
    assert config.resolve([*walk, "device=cpu"]).num_envs == 1024
    assert config.resolve([*walk, "backend=mujoco"]).num_envs == 1024
    assert config.resolve([*walk, "device=cpu", "backend=mujoco_warp"]).num_envs == 1024
    assert config.resolve([*walk, "device=cuda", "backend=mujoco_warp"]).num_envs == 4096
    assert config.resolve([*walk, "device=cpu", "num_envs=4096"]).num_envs == 4096
    assert config.resolve(["task=arm_lift", "device=cpu"]).num_envs == 4096  # which states none
    saved = config.resolve([*walk, "device=cpu", "num_envs=4096"])
    assert config.resolve(["device=cpu"], base=saved).num_envs == 4096
    config.save(saved, tmp_path / "config.yaml")
    assert config.load(tmp_path / "config.yaml", ["seed=2"]).num_envs == 4096


ON_CPU = """
from __future__ import annotations
from dataclasses import dataclass
from typing import Any, ClassVar
from robolearn.tasks.cartpole import CartpoleBalance

@dataclass
class Both(CartpoleBalance):
    "64 on a CPU."
    defaults: ClassVar[dict[str, Any]] = {"num_envs": 4096}
    cpu_envs: ClassVar[int] = 64

@dataclass
class Own(Both):
    "Its own number."
    defaults: ClassVar[dict[str, Any]] = {**Both.defaults, "num_envs": 256}

@dataclass
class Other(Both):
    "Another setting."
    defaults: ClassVar[dict[str, Any]] = {**Both.defaults, "seed": 3}

@dataclass
class Learner(Both):
    "A number for one learner."
    learner_defaults: ClassVar[dict[str, Any]] = {"grpo": {"num_envs": 32}}

@dataclass
class Off(Both):
    "The same number everywhere."
    cpu_envs: ClassVar[int] = 0

@dataclass
class Negative(Both):
    "No number of environments."
    cpu_envs: ClassVar[int] = -3

@dataclass
class Word(Both):
    "A word."
    cpu_envs: ClassVar[Any] = "lots"
"""


def test_what_a_subclass_or_a_learner_states_holds_on_a_cpu(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(ON_CPU)

    def envs(name: str, *words: str) -> int:
        return config.resolve([f"task={path}:{name}", "device=cpu", *words]).num_envs

    assert [envs(name) for name in ("Both", "Own", "Other", "Learner", "Off")] == [64, 256, 64, 64, 4096]
    assert envs("Learner", "learner=grpo") == 32
    assert envs("Learner", "learner=grpo", "num_envs=96") == 96
    for name in ("Negative", "Word"):
        with pytest.raises(ConfigError, match=rf"{name}\.cpu_envs: num_envs"):
            envs(name)
