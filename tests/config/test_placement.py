"""Placement files: defaults, and one clear line for what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from robolearn.config.placement import read
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
