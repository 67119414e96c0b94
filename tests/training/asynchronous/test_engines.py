"""Both engines, with real processes: a batch carries all that another process needs to go on."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from robolearn import config
from robolearn.config.placement import ActorRole, Placement
from robolearn.errors import ConfigError
from robolearn.learners.ppo import PPO
from robolearn.training.asynchronous.engine import Done, Engine, Event, Failed, Lost, Ready, Setup
from robolearn.training.asynchronous.worker import run_of
from robolearn.training.build import build_env
from robolearn.training.train import train

pytestmark = pytest.mark.slow


@pytest.fixture(params=["local", "ray"])
def engine(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "ray":
        pytest.importorskip("ray")
        from robolearn.training.asynchronous.on_ray import RayEngine

        made: Any = RayEngine(Placement(actor=ActorRole(count=3)))
    else:
        from robolearn.training.asynchronous.local import LocalEngine

        made = LocalEngine(keep=2)
    yield made
    made.close()


def pid(engine: Any, incarnation: str) -> int:
    if hasattr(engine, "pid"):
        return int(engine.pid(incarnation))
    import ray

    return int(ray.get(engine._actors[incarnation].pid.remote()))


def events(engine: Engine, count: int) -> list[Event]:
    found: list[Event] = []
    end = time.monotonic() + 300
    while len(found) < count and time.monotonic() < end:
        found += engine.poll(0.2)
    assert len(found) == count
    return found


def leaves(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from leaves(value)


def test_a_second_process_goes_on_from_a_batch_with_the_same_bits_and_a_kill_is_reported(engine, tmp_path):
    run = config.resolve(["task=cartpole_balance", "learner.noise_correlation=0.3"])
    env = build_env(run, 1, training=True)
    weights = {"actor": PPO(env, run.learner).actor.state_dict()}
    env.close()
    setup = Setup("actor", 0, 1, 16, 8, "fp32", 1, config.show(run), (), str(tmp_path))
    engine.publish(0, weights)
    engine.publish(1, weights)
    engine.start("a", setup, None)
    assert events(engine, 1) == [Ready("a")]
    engine.order("a", 0)
    (first,) = events(engine, 1)
    assert isinstance(first, Done)

    engine.start("b", setup, first.result)
    assert events(engine, 1) == [Ready("b")]
    engine.order("a", 1)
    engine.order("b", 1)
    found = {event.incarnation: event for event in events(engine, 2)}
    mine, theirs = (list(leaves(engine.load(found[name].result))) for name in ("a", "b"))
    assert len(mine) == len(theirs) > 10
    assert all(map(torch.equal, mine, theirs))
    assert not torch.equal(mine[0], next(leaves(engine.load(first.result))))

    for name in ("a", "b"):
        assert b"actor-0" in Path(f"/proc/{pid(engine, name)}/cmdline").read_bytes()
    os.kill(pid(engine, "a"), signal.SIGKILL)
    engine.order("a", 1)
    (lost,) = events(engine, 1)
    assert isinstance(lost, Lost)
    assert lost.incarnation == "a"


def test_a_process_that_another_thread_kills_is_no_error_of_the_one_that_polls(tmp_path):
    from robolearn.training.asynchronous.local import LocalEngine

    engine, found, done = LocalEngine(keep=2), [], threading.Event()

    def poll() -> None:
        try:
            while not done.is_set():
                engine.poll(0.2)
        except Exception as error:
            found.append(error)

    setup = Setup("actor", 0, 1, 16, 8, "fp32", 1, "schema: 99\n", (), str(tmp_path))
    thread = threading.Thread(target=poll)
    thread.start()
    for i in range(5):
        engine.start(f"{i}", setup, None)
        time.sleep(0.25)  # the next poll waits for it too
        engine.kill(f"{i}")
    done.set()
    thread.join()
    engine.close()
    assert found == []


def test_a_process_on_ray_that_another_thread_kills_is_no_error_of_the_one_that_polls(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    from robolearn.training.asynchronous import on_ray

    engine, wait = on_ray.RayEngine(Placement(actor=ActorRole(count=1))), ray.wait

    def and_killed(calls: list[Any], **options: Any) -> Any:
        found = wait(calls, **options)
        if found[0]:
            engine.kill("a")  # as another thread may, just now
        return found

    setup = Setup("actor", 0, 1, 16, 8, "fp32", 1, "schema: 99\n", (), str(tmp_path))
    engine.start("a", setup, None)
    monkeypatch.setattr(ray, "wait", and_killed)
    end = time.monotonic() + 300
    while engine._calls and time.monotonic() < end:
        assert engine.poll(0.2) == []
    engine.close()
    assert not engine._actors


def test_an_actor_that_no_node_of_ray_can_take_says_what_it_waits_for(tmp_path):
    pytest.importorskip("ray")
    from robolearn.training.asynchronous.on_ray import RayEngine

    engine = RayEngine(Placement(actor=ActorRole(count=1)))
    setup = Setup("actor", 0, 1, 16, 8, "fp32", 1, "schema: 99\n", (), str(tmp_path), resources={"sim": 1})
    engine.start("a", setup, None)
    engine.start("b", replace(setup, resources={}), None)
    (failed,) = events(engine, 1)
    wanted = engine.place_wanted("a"), engine.place_wanted("b")
    engine.close()
    assert failed.incarnation == "b"
    assert wanted[0] is not None
    assert "no node has sim: 1" in wanted[0]
    assert wanted[1] is None


def test_what_no_node_has_is_named_apart_from_what_is_busy():
    pytest.importorskip("ray")
    from robolearn.training.asynchronous.on_ray import place_wanted

    setup = Setup("actor", 0, 1, 1, 1, "fp32", 2, "", (), "", resources={"sim": 1}, labels={"role": "sim"})
    small = {"Resources": {"CPU": 1.0, "sim": 4.0}, "Labels": {"role": "sim"}}
    plain = {"Resources": {"CPU": 8.0}, "Labels": {}}
    right = {"Resources": {"CPU": 2.0, "sim": 1.0}, "Labels": {"role": "sim"}}
    assert "(no node has CPU: 2)" in place_wanted(setup, [small])
    assert "(no node has sim: 1, label role: sim)" in place_wanted(setup, [plain])
    assert "(no node has all of them)" in place_wanted(setup, [small, plain])
    assert "busy" in place_wanted(setup, [small, plain, right])


@pytest.mark.parametrize(
    ("address", "environment", "offender"),
    [
        ("127.0.0.1:1", "", "127.0.0.1:1"),
        ("auto", "127.0.0.1:1", "127.0.0.1:1"),
        ("10.0.0.9", "", "HOST:PORT"),
        ("10.0.0.9:http", "", "HOST:PORT"),
    ],
)
def test_an_address_without_a_cluster_is_named_before_anything_is_written(
    tmp_path, monkeypatch, address, environment, offender
):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", environment)
    place = tmp_path / "place.yaml"
    place.write_text(f'address: "{address}"\nactor: {{count: 1}}', encoding="utf-8")
    words = ["task=cartpole_balance", "num_envs=16", "max_iterations=1", "mode=async", f"placement={place}"]
    with pytest.raises(ConfigError) as caught:
        train(config.resolve([*words, f"output={tmp_path / 'run'}"]))
    assert offender in str(caught.value)
    assert "place.yaml" in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "role", ["actor: {device: cuda}", "evaluator: {device: cuda}", "learner: {device: cuda:99}"]
)
def test_a_device_that_cannot_be_used_is_named_before_anything_is_written(tmp_path, role):
    place = tmp_path / "place.yaml"
    place.write_text(role, encoding="utf-8")
    words = ["task=cartpole_balance", "backend=mujoco", "num_envs=16", "mode=async", f"placement={place}"]
    with pytest.raises(ConfigError) as caught:
        train(config.resolve([*words, f"output={tmp_path / 'run'}"]))
    assert f"{role.partition(':')[0]}.device=cuda" in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_the_device_and_the_threads_of_the_learner_are_no_settings_of_the_run(tmp_path, capsys):
    place = tmp_path / "place.yaml"
    place.write_text("actor: {count: 1}\nlearner: {device: cpu, cores: 1}", encoding="utf-8")
    words = ["task=cartpole_balance", "num_envs=16", "max_iterations=1", "torch_threads=2", "mode=async"]
    folder = train(config.resolve([*words, f"placement={place}", f"output={tmp_path / 'run'}"]))
    saved = config.load(folder)
    assert (saved.device, saved.torch_threads) == ("auto", 2)
    title = capsys.readouterr().out.splitlines()[0]
    assert "1 local actor, staleness 1" in title


def test_a_process_takes_the_device_of_its_role(tmp_path):
    run = config.resolve(["task=cartpole_balance", "device=cuda:1"])
    setup = Setup("evaluator", 0, 1, 16, 8, "fp32", 1, config.show(run), (), str(tmp_path))
    assert run_of(setup).device == "cuda:1"
    assert run_of(replace(setup, device="cpu")).device == "cpu"


def test_an_error_at_the_start_of_a_process_is_reported_with_its_exit_code(engine, tmp_path):
    setup = Setup("actor", 0, 1, 16, 8, "fp32", 1, "schema: 99\n", (), str(tmp_path))
    engine.start("a", setup, None)
    (failed,) = events(engine, 1)
    assert isinstance(failed, Failed)
    assert (failed.incarnation, failed.code) == ("a", 2)
    assert "schema" in failed.message
