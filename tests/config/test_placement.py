"""Placement files: defaults, and one clear line for what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from robolearn import config
from robolearn.config import fields
from robolearn.config.placement import ActorRole, Placement, read
from robolearn.errors import ConfigError


def placed(tmp_path: Path, text: str, num_envs: int = 64):
    path = tmp_path / "place.yaml"
    path.write_text(text, encoding="utf-8")
    return read(str(path), num_envs, cores=4)


@pytest.mark.parametrize(
    ("num_envs", "cores", "count"), [(64, 2, 1), (64, 4, 2), (60, 4, 3), (1, 8, 1), (7, 4, 1)]
)
def test_without_a_file_there_is_an_actor_a_core_but_one_that_divides_the_environments(
    num_envs, cores, count
):
    placement = read(None, num_envs, cores)
    assert (placement.actor.count, placement.batches) == (count, count)
    assert placement.actor.envs * count == num_envs
    assert placement.staleness == 1
    assert not placement.on_ray


def test_an_update_has_all_environments_also_where_it_takes_fewer_batches_than_there_are_actors(tmp_path):
    placement = placed(tmp_path, "staleness: 3\nbatches: 2\nactor: {count: 8}\n")
    assert (placement.actor.envs, placement.ahead) == (32, 6)


def test_half_fresh_updates_leave_half_the_credits(tmp_path):
    assert placed(tmp_path, "fresh: 0.5\nactor: {count: 4}").ahead == 2
    assert placed(tmp_path, "fresh: 1\nactor: {count: 4}").ahead == 0


def test_an_address_means_ray_and_local_says_no(tmp_path):
    assert placed(tmp_path, "address: auto").on_ray
    assert not placed(tmp_path, "address: auto\nengine: local").on_ray


def test_an_evaluator_needs_no_settings(tmp_path):
    evaluator = placed(tmp_path, "evaluator: {}").evaluator
    assert evaluator is not None
    assert evaluator.every == 10


@pytest.mark.parametrize(
    ("text", "offender"),
    [
        ("stalenes: 1", "staleness"),
        ("actor: {cuont: 2}", "count"),
        ("staleness: -1", "staleness"),
        ("engine: slurm", "engine"),
        ("actor: {device: gpu}", "device"),
        ("actor: {count: 3}", "num_envs"),
        ("actor: {count: 2, envs: 16}", "num_envs=32"),
        ("batches: 1\nstaleness: 1\nactor: {count: 4}", "actor.count=4"),
        ("- a", "mapping"),
        ("actor: 2", "actor: {count: 2}"),
        ("evaluator: true", "evaluator: {every: 10}"),
        ("learner: cpu", "learner: {cores: 2}"),
        ("actor: {labels: {role: sim}}", "actor.labels"),
        ("engine: local\naddress: auto\nactor: {resources: {sim: 1}}", "actor.resources"),
        ("evaluator: {labels: {role: sim}}", "evaluator.labels"),
        ("actor: [", "YAML"),
    ],
)
def test_bad_content_names_the_file_and_the_offender(tmp_path, text, offender):
    with pytest.raises(ConfigError) as caught:
        placed(tmp_path, text)
    assert "place.yaml" in str(caught.value)
    assert offender in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"gone\.yaml"):
        read(str(tmp_path / "gone.yaml"), 64)


@pytest.mark.parametrize("text", ["", "\n", "# batches: 4\n", "actor:\n  # count: 2\nlearner:\n"])
def test_a_file_without_settings_is_the_default_placement(tmp_path, text):
    assert placed(tmp_path, text) == read(None, 64, cores=4)


def test_resources_and_labels_may_be_empty_as_in_the_documentation(tmp_path):
    assert placed(tmp_path, "engine: local\nactor: {resources: {}, labels: {}}") == Placement(
        engine="local", batches=2, actor=ActorRole(count=2, envs=32)
    )


@pytest.mark.parametrize(
    ("text", "written", "fix", "fixed"),
    [
        ("batches: 5", "batches=5", "use batches: 4", "batches: 4"),
        ("actor: {count: 3}", "actor.count=3", "use count: 2", "actor: {count: 2}"),
        ("actor: {envs: 12}", "actor.envs=12", "use envs: 8", "actor: {envs: 8}"),
        ("actor: {envs: 100}", "actor.envs=100", "use envs: 64", "actor: {envs: 64}"),
        (
            "actor: {count: 3, envs: 30}",
            "actor.count=3 times actor.envs=30 is 90",
            "use actor.count: 2 and actor.envs: 32",
            "actor: {count: 2, envs: 32}",
        ),
        (
            "actor: {count: 2, envs: 16}",
            "actor.count=2 times actor.envs=16 is 32",
            "use batches: 4",
            "batches: 4\nactor: {count: 2, envs: 16}",
        ),
        (
            "batches: 2\nactor: {count: 2, envs: 12}",
            "batches=2 times actor.envs=12 is 24",
            "leave actor.envs out",
            "batches: 2\nactor: {count: 2}",
        ),
    ],
)
def test_numbers_that_do_not_fit_are_those_of_the_file_and_the_fix_works(tmp_path, text, written, fix, fixed):
    with pytest.raises(ConfigError) as caught:
        placed(tmp_path, text)
    said = str(caught.value)
    assert written in said
    assert f"; {fix}," in f"{said},"
    assert [name for name in ("batches=", "actor.count=", "actor.envs=") if name in said] == [
        name for name in ("batches=", "actor.count=", "actor.envs=") if name in written
    ]
    complete = placed(tmp_path, fixed)
    assert complete.batches * complete.actor.envs == 64


def test_another_num_envs_is_a_fix_only_where_it_works(tmp_path):
    with pytest.raises(ConfigError, match="num_envs=63"):
        placed(tmp_path, "actor: {count: 3}")
    with pytest.raises(ConfigError) as caught:  # 4 actors wait for 2 batches: no number of environments helps
        placed(tmp_path, "batches: 2\nstaleness: 0\nactor: {count: 4, envs: 16}")
    assert "use batches: 4" in str(caught.value)
    assert "use num_envs" not in str(caught.value)


def test_the_way_from_actors_to_ranks_takes_the_placement_away():
    words = ["task=cartpole_balance", "mode=async", "placement=p.yaml", "ranks=2"]
    with pytest.raises(ConfigError, match="mode=sync placement=null"):
        config.resolve(words)
    with pytest.raises(ConfigError, match="placement=null"):
        config.resolve([*words, "mode=sync"])
    run = config.resolve([*words, "mode=sync", "placement=null"])
    assert (run.mode, run.placement, run.ranks) == ("sync", None, 2)


def test_the_file_in_the_documentation_has_every_key_with_its_default(tmp_path):
    page = (Path(__file__).resolve().parents[2] / "docs" / "async.md").read_text(encoding="utf-8")
    text = page.split("```yaml\n")[1].split("```")[0]
    assert placed(tmp_path, text) == placed(tmp_path, "evaluator: {}")
    written = yaml.safe_load(text)
    assert list(written) == list(fields.hints(Placement))
    assert list(written["actor"]) == list(fields.hints(ActorRole))
