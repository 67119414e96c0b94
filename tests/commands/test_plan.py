"""`robolearn plan`: formulas against numbers worked out by hand, files, and output. No timing is asserted."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from robolearn.cli import main
from robolearn.commands.plan import example, machine, measure, packaged, shards
from robolearn.commands.plan import formulas as f
from robolearn.commands.plan.formulas import Duration, Iteration, Link, Pipeline, Work
from robolearn.commands.plan.tables import bytes_text, seconds_text
from robolearn.config import registry
from robolearn.errors import ConfigError

# ---------------------------------------------------------------------------------------- formulas


def test_a_trained_parameter_takes_16_bytes_and_a_frozen_one_2():
    # ZeRO, section 3.1: 2 + 2 + 12 bytes with Adam in mixed precision.
    assert sum(f.state_bytes(1.0, f.MIXED_PRECISION_ADAM).values()) == 16
    assert f.state_bytes(70e9, f.FROZEN) == {"weights": 140e9}


@pytest.mark.parametrize(
    ("needed", "count"),
    [
        (1, 1),
        (80e9, 1),
        (17.5e9 + 70e9, 2),  # 87.5 GB do not fit into 80
        (3 * 80e9, 4),  # up to a node, a power of two
        (6 * 80e9, 8),
        (9 * 80e9, 16),  # beyond it, whole nodes of 8
        (17 * 80e9, 24),
        (70e9 * 36, 32),  # 31.5
        (70e9 * 18, 16),  # 15.75
    ],
)
def test_devices_are_rounded_up_to_a_power_of_two_and_to_whole_nodes(needed, count):
    assert f.devices_for(needed, 80e9, 8) == count


def test_as_many_environments_fit_as_memory_holds():
    assert f.fitting(10.0, 4.0, 2.0) == 3
    assert f.fitting(3.0, 4.0, 2.0) == 0


def test_a_transfer_takes_latency_and_size_over_bandwidth():
    assert Link(0.5, 100.0).seconds(200) == 2.5
    # A ring of 3: two rounds, in each of which a rank sends 1 MB.
    assert f.gather_seconds(3, 1e6, Link(1e-3, 1e9)) == pytest.approx(2 * (1e-3 + 1e-3))
    assert f.gather_seconds(1, 1e6, Link(1e-3, 1e9)) == 0


@pytest.mark.parametrize(
    ("ranks", "seconds"),
    [
        (1, 0.0),
        (2, 2 * 1 * (1e-3 + 0.5e-3)),  # 1 MB at 1 GB/s: halves of 0.5 ms, sent and gathered
        (4, 2 * 3 * (1e-3 + 0.25e-3)),
        (16, 2 * 15 * (1e-3 + 0.0625e-3)),
        # 3 ranks have 5, 5 and 6 of 16 shards. Shards 5 to 9 are three nodes of the tree, 5, 6 to 7 and 8 to 9.
        (3, 2 * (1e-3 + 3e-3)),
    ],
)
def test_a_sum_of_a_large_tensor_costs_two_rounds_of_slices(ranks, seconds):
    assert f.sum_seconds(ranks, 1e6, Link(1e-3, 1e9), 16) == pytest.approx(seconds)


def test_a_sum_of_a_small_tensor_gathers_it_whole():
    # 4095 numbers of 4 bytes, at 16380 bytes a second: a second for each of 3 rounds. 4096 are summed in slices.
    assert f.sum_seconds(4, 4 * 4095, Link(0.0, 16380.0), 16) == pytest.approx(3)
    assert f.sum_seconds(4, 4 * 4096, Link(0.0, 16384.0), 16) == pytest.approx(2 * 3 / 4)


def test_the_ceiling_of_overlap_is_the_total_over_the_longer_side():
    assert f.overlap_ceiling(Iteration(55, 5, 40, 0, 0)) == pytest.approx(100 / 60)
    assert f.overlap_ceiling(Iteration(20, 5, 70, 5, 0)) == pytest.approx(100 / 70)


def work(**changes: Any) -> Work:
    """An iteration of 12 + 4 s, all of it divisible, without sums."""
    given: dict[str, Any] = {
        "whole": Iteration(12, 0, 4, 0, 0),
        "fixed": Iteration(0, 0, 0, 0, 0),
        "shards": 16,
        "minibatches": 1,
        "backward": 0.0,
        "reductions": 0,
        "reduced": 0.0,
    }
    return Work(**{**given, **changes})


FREE = Link(0.0, 1e12)


def test_work_that_divides_scales_with_the_ranks_in_stairs_of_whole_shards():
    rows = f.scaling(work(), FREE)
    assert [row.ranks for row in rows] == list(range(1, 17))
    assert rows[3].speedup == pytest.approx(4)
    # 3 ranks: the slowest has 6 of 16 shards. 5 ranks: 4 of them, as many as with 4 ranks.
    assert rows[2].seconds == pytest.approx(16 * 6 / 16)
    assert rows[4].seconds == rows[3].seconds
    assert rows[4].efficiency == pytest.approx(0.8)
    assert f.ranks_that_pay(rows, 0.9).ranks == 16


def test_fixed_work_limits_the_ranks_that_pay():
    # 4 s fixed and 12 divisible: 16 s, 10, 8.5, 7, ... 4.75; speed-ups 1, 1.6, 1.88, 2.29, -, 2.56, -, 2.91 ... 3.37.
    rows = f.scaling(work(fixed=Iteration(4, 0, 0, 0, 0)), FREE)
    assert rows[1].speedup == pytest.approx(1.6)
    assert rows[3].speedup == pytest.approx(16 / 7)
    # The second rank adds 0.6, the third 0.28; ranks 3 and 4 together 0.34 each.
    assert f.ranks_that_pay(rows, 0.5).ranks == 2
    assert f.ranks_that_pay(rows, 0.3).ranks == 4
    assert f.ranks_that_pay(rows, 0.65).ranks == 1


def test_sums_over_the_ranks_are_part_of_an_iteration():
    rows = f.scaling(work(reductions=10, reduced=1e9), Link(0.0, 1e9))
    # 10 sums x 2 x 1 round of 1/2 s on 2 ranks, x 2 x 3 rounds of 1/4 s on 4.
    assert rows[1].seconds == pytest.approx(8 + 10)
    assert rows[3].seconds == pytest.approx(4 + 15)
    assert rows[3].reduce == pytest.approx(15)
    assert f.ranks_that_pay(rows, 0.5).ranks == 1


def test_shards_cost_a_backward_pass_each():
    # 2 gradient steps, 0.1 s for each pass. One rank: 16 passes a step instead of 1, 2 x 15 x 0.1 s more.
    rows = f.scaling(work(minibatches=2, backward=0.1), FREE)
    assert rows[0].seconds == pytest.approx(16 + 3)
    assert rows[0].speedup == pytest.approx(16 / 19)
    # 16 ranks: one pass a step on each, of a sixteenth of the rows; a whole one costs 0.1 x (1 - 1/16) more.
    assert rows[15].seconds == pytest.approx(1 + 2 * 0.1 * 15 / 16)


@pytest.mark.parametrize(
    ("collect", "learn", "transfer", "actors", "bound"),
    [
        (Duration(1), Duration(1), 0, 1, 1),  # 2 / 1 batches in flight
        (Duration(60), Duration(40), 0, 1, 1),  # 100 / 60 = 1.67, so 2 in flight
        (Duration(60), Duration(40), 0, 2, 2),  # 100 / 40 = 2.5, so 3
        (Duration(60), Duration(40), 21, 2, 3),  # 121 / 40 = 3.03, so 4
        (Duration(0.01), Duration(1), 0, 1, 1),
        (Duration(60, 60), Duration(60), 2.8, 4, 3),  # (122.8 + 98.7) / 60 = 3.69, so 4
        (Duration(30, 40), Duration(60, 30), 0, 1, 2),  # (90 + 1.645 x 50) / 60 = 2.87, so 3
    ],
)
def test_staleness_is_the_number_of_batches_in_flight_less_the_one_learned_from(
    collect, learn, transfer, actors, bound
):
    assert f.staleness(Pipeline(collect, learn, transfer, actors)) == bound


def test_without_spread_the_learner_is_busy_at_that_bound_and_not_below():
    pipeline = Pipeline(Duration(60), Duration(40), 0.0, 2)
    assert f.staleness(pipeline) == 2
    assert f.busy(pipeline, 0) == pytest.approx(40 / 100, abs=1e-3)  # synchronous
    assert f.busy(pipeline, 1) == pytest.approx(80 / 100, abs=1e-3)
    assert f.busy(pipeline, 2) == pytest.approx(1.0, abs=1e-3)


def test_with_spread_the_learner_is_busy_most_of_the_time_at_that_bound():
    pipeline = Pipeline(Duration(60, 60), Duration(60), 2.8, 4)
    bound = f.staleness(pipeline)
    assert f.busy(pipeline, bound) > 0.93
    assert f.busy(pipeline, bound - 1) < 0.93


def test_the_learner_gets_as_many_actors_as_it_can_use():
    assert f.with_actors(Pipeline(Duration(60), Duration(40), 0.0)).actors == 2
    assert f.with_actors(Pipeline(Duration(40), Duration(40), 0.0)).actors == 1
    assert f.with_actors(Pipeline(Duration(1), Duration(40), 0.0)).actors == 1


def test_numbers_are_written_as_people_read_them():
    assert [bytes_text(x) for x in (2.52e12, 140e9, 463.2e6, 900)] == ["2.52 TB", "140 GB", "463 MB", "900 B"]
    assert [seconds_text(x) for x in (2.5e-5, 0.0123, 4.51, 720, 18000)] == [
        *("25 us", "12.3 ms", "4.51 s", "12.0 min", "5.0 h")
    ]


# ---------------------------------------------------------------------------------------- the language model


def test_the_example_gives_the_numbers_of_the_founding_documents(capsys):
    found = example.results(example.find("llm"))
    ppo, grpo = found["algorithms"]["PPO"], found["algorithms"]["GRPO"]
    # 70e9 parameters: two trained networks at 16 bytes and two frozen ones at 2; one and one.
    assert (ppo["bytes"], ppo["gpus"]) == (2.52e12, 32)
    assert (grpo["bytes"], grpo["gpus"]) == (1.26e12, 16)
    assert found["weights"] == {"bytes": 140e9, "seconds": pytest.approx(2.8)}
    assert found["staleness"]["best"] == 3
    assert main(["plan", "--example", "llm"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("70 billion") == 1
    for text in ("2.52 TB", "32 H100", "1.26 TB", "16 H100", "140 GB", "2.80 s", "K = 3", "36", "18"):
        assert text in shown


def changed_example(tmp_path: Path, **changes: Any) -> Path:
    source = Path(example.__file__).parent / "examples" / "llm.yaml"
    content = yaml.safe_load(source.read_text())
    content["parameters"] = 7e9
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({**content, **changes}))
    return path


def test_other_inputs_give_other_numbers(tmp_path):
    found = example.results(example.find(str(changed_example(tmp_path))))
    # 7e9 x 36 bytes = 252 GB, 3.15 GPUs; 14 GB of weights at 50 GB/s.
    assert found["algorithms"]["PPO"]["bytes"] == pytest.approx(252e9)
    assert found["algorithms"]["PPO"]["gpus"] == 4
    assert found["weights"]["seconds"] == pytest.approx(0.28)


@pytest.mark.parametrize(
    ("changes", "offender"),
    [
        ({"paramters": 7e9}, "paramters"),
        ({"parameters": "many"}, "parameters"),
        ({"parameters": -1.0}, "parameters"),
        ({"schema": 2}, "schema"),
        ({"algorithms": {"PPO": {"actor": "learned"}}}, "algorithms.PPO.actor"),
        ({"gpu": {"name": "H100", "memory": 80e9}}, "per_node"),
    ],
)
def test_a_fault_in_an_example_is_named(tmp_path, capsys, changes, offender):
    assert main(["plan", "--example", str(changed_example(tmp_path, **changes))]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert offender in line
    assert "mine.yaml" in line


def test_an_example_takes_no_settings(capsys):
    assert main(["plan", "--example", "llm", "num_envs=3"]) == 2
    assert "num_envs=3" in capsys.readouterr().err
    assert main(["plan", "--example", "nothing"]) == 2
    assert "llm" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------- fitting


def test_a_line_goes_through_points_on_a_line():
    fitted = measure.line([256, 512, 1024], [2 + 0.5 * n for n in (256, 512, 1024)])
    assert fitted.fixed == pytest.approx(2)
    assert fitted.each == pytest.approx(0.5)


def test_a_line_has_no_negative_part():
    falling = measure.line([1, 2, 4], [4.0, 2.0, 1.0])
    assert falling.each == 0
    assert measure.line([10, 20, 40], [1.0, 3.0, 8.0]).fixed == 0


def test_one_size_gives_a_line_through_nothing():
    fitted = measure.line([10], [5.0])
    assert (fitted.fixed, fitted.each) == (0.0, 0.5)


def test_a_run_is_measured_at_itself_a_half_and_a_quarter():
    assert measure.sizes_for(1024) == [256, 512, 1024]
    assert measure.sizes_for(1) == [2, 4, 8]
    assert measure.sizes_for(100, 8) == [24, 48, 96]  # whole groups of 8
    assert measure.sizes_for(100_000) == [2048, 4096, 8192]


def test_more_passes_are_never_found_to_be_cheaper():
    assert shards.overhead([[4, 8, 2]], 32, 16) >= 0


# ---------------------------------------------------------------------------------------- a machine's file

CONSTANTS: dict[str, Any] = {
    "schema": 1,
    "name": "bench",
    "processor": "a processor",
    "cores": 2,
    "memory": 10e9,
    "network": {"latency": 0.0, "bandwidth": 1e9},
    "workloads": [
        {
            "task": "cartpole_balance",
            "backend": "mujoco",
            "learner": "ppo",
            "device": "cpu",
            "parameters": 1000,
            "actor_parameters": 500,
            "num_steps": 24,
            "sample_values": 10,
            "start": 4.0,
            # 24 steps of 256 environments: simulate 24 x 0.001 x 256 / 256 = 0.024 s, learn 6144 x 1e-5 s.
            "seconds": {
                "simulate": {"fixed": 0.0, "each": 0.001 / 256},
                "infer": {"fixed": 0.001, "each": 0.0},
                "learn": {"fixed": 0.0, "each": 1e-5},
                "synchronize": {"fixed": 0.0, "each": 0.0},
                "other": {"fixed": 0.01, "each": 0.0},
            },
            "spread": {"collect": 0.0, "learn": 0.0},
            "memory": {"host": {"fixed": 400e6, "each": 1e6}},
            "measured": {"num_envs": [64, 256], "iterations": 10, "versions": {}},
        }
    ],
}


def write(path: Path, content: Any) -> Path:
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture
def bench(tmp_path) -> Path:
    return write(tmp_path / "bench.yaml", CONSTANTS)


def test_a_plan_from_a_file_is_what_its_constants_say(bench, tmp_path, capsys):
    out = tmp_path / "plan.json"
    words = ["task=cartpole_balance", "--machine", str(bench), "--price", "3.6", "--json", str(out)]
    assert main(["plan", *words]) == 0
    found = json.loads(out.read_text())["plan"]
    seconds = found["iteration_seconds"]
    assert seconds["simulate"] == pytest.approx(0.024)
    assert seconds["infer"] == pytest.approx(0.024)
    assert seconds["learn"] == pytest.approx(0.06144)
    assert seconds["total"] == pytest.approx(0.11944)
    assert found["steps_per_second"] == pytest.approx(6144 / 0.11944)
    # 60 iterations and 4 s to start; at 3.6 USD an hour a second costs a thousandth.
    assert found["seconds"] == pytest.approx(4 + 60 * 0.11944)
    assert found["usd"] == pytest.approx(1e-3 * found["seconds"])
    assert found["memory"]["host"] == pytest.approx(656e6)
    assert found["memory"]["most_envs"] == 7600  # (0.8 x 10e9 - 400e6) / 1e6
    assert found["overlap_ceiling"] == pytest.approx(0.11944 / 0.06144)
    assert len(found["ranks"]) == 16
    assert found["asynchronous"]["actors"] == 1
    shown = capsys.readouterr()
    assert shown.err == ""  # nothing was measured
    for text in ("cartpole_balance", "a processor", "7,600", "656 MB", "USD", "learner busy"):
        assert text in shown.out


def test_a_run_that_does_not_fit_is_told_how_many_machines_it_needs(bench, capsys):
    # 20000 environments take 20.4 GB, of which 8 GB fit: 2.55 machines, so 4.
    assert main(["plan", "task=cartpole_balance", "num_envs=20000", "--machine", str(bench)]) == 0
    shown = capsys.readouterr().out
    assert "does not fit" in shown
    assert "4 machines" in shown
    assert "extrapolated" in shown


def test_settings_that_were_not_measured_are_named(bench, capsys):
    words = ["task=cartpole_balance", "learner.actor_hidden=[512,512]", "seed=3", "max_iterations=5"]
    assert main(["plan", *words, "--machine", str(bench)]) == 0
    shown = capsys.readouterr().out
    assert "learner.actor_hidden" in shown
    assert "seed" not in shown


def test_the_ranks_that_are_asked_for_are_shown_beside_powers_of_two(bench, capsys):
    assert main(["plan", "task=cartpole_balance", "ranks=6", "num_envs=256", "--machine", str(bench)]) == 0
    shown = capsys.readouterr().out
    rows = re.findall(r"^ +(\d+)(?: <|  ) +[\d,]+ +[\d.]+ +\d+ %", shown, re.MULTILINE)
    assert [row for row in rows if row != "6"] == ["1", "2", "4", "8", "16"]
    assert "6" in rows
    assert "ranks=6: " in shown
    assert "on bench alone" in shown  # the machine of the file, not this one


@pytest.mark.parametrize(
    ("words", "offender"),
    [
        (["ranks=2", "mode=async"], "ranks=2"),
        (["placement=p.yaml"], "mode=async"),
        (["ranks=32"], "ranks=32"),
        (["shards=3"], "shards=3"),
    ],
)
def test_what_train_refuses_is_refused(bench, capsys, words, offender):
    assert main(["plan", "task=cartpole_balance", *words, "--machine", str(bench)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert offender in line


def test_a_task_of_several_agents_is_refused_before_anything_is_measured(monkeypatch, capsys):
    monkeypatch.setattr("robolearn.commands.plan.measure.measure", lambda *words: pytest.fail("measured"))
    for task in ("handover", "pettingzoo:mpe2.simple_spread_v3"):
        assert main(["plan", f"task={task}"]) == 2
        assert task in capsys.readouterr().err


def test_shards_are_those_of_the_run(bench, tmp_path):
    out = tmp_path / "out.json"
    words = ["plan", "task=cartpole_balance", "shards=4", "--machine", str(bench), "--json", str(out)]
    assert main(words) == 0
    assert [row["ranks"] for row in json.loads(out.read_text())["plan"]["ranks"]] == [1, 2, 3, 4]


def test_a_faster_network_lets_more_ranks_pay(bench, tmp_path):
    def pay(*words: str) -> int:
        out = tmp_path / "out.json"
        assert (
            main(["plan", "task=cartpole_balance", "--machine", str(bench), "--json", str(out), *words]) == 0
        )
        return int(json.loads(out.read_text())["plan"]["ranks_that_pay"])

    assert pay("--latency", "1000000") == 1
    assert pay("--latency", "0") > 1
    assert pay("--latency", "0", "--marginal", "0") >= pay("--latency", "0", "--marginal", "0.9")


def changed(*path: Any, value: Any = None, drop: bool = False) -> dict[str, Any]:
    content = copy.deepcopy(CONSTANTS)
    node: Any = content
    for key in path[:-1]:
        node = node[key]
    if drop:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return content


@pytest.mark.parametrize(
    ("content", "offender"),
    [
        (changed("coers", value=2), "coers"),
        (changed("cores", value="two"), "cores"),
        (changed("cores", value=0), "cores"),
        (changed("memory", value=float("nan")), "memory"),
        (changed("schema", value=9), "9"),
        (changed("network", "bandwidth", value=0.0), "network.bandwidth"),
        (changed("network", drop=True), "network"),
        (changed("workloads", value=[]), "workloads"),
        (changed("workloads", 0, "seconds", "simulte", value={"fixed": 0.0, "each": 0.0}), "simulte"),
        (changed("workloads", 0, "seconds", "learn", "each", value=-1.0), "workloads[0].seconds.learn.each"),
        (changed("workloads", 0, "memory", drop=True), "memory"),
        (changed("workloads", 0, "device", value="cuda"), "gpu_memory"),
        (
            changed("workloads", value=[copy.deepcopy(CONSTANTS["workloads"][0]) for _ in range(2)]),
            "cartpole_balance",
        ),
    ],
)
def test_a_fault_in_a_machines_file_is_named(tmp_path, capsys, content, offender):
    path = write(tmp_path / "bad.yaml", content)
    assert main(["plan", "task=cartpole_balance", "--machine", str(path)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "bad.yaml" in line
    assert offender in line


@pytest.mark.parametrize("text", ["a: [", "just text", "a: !!python/object:os.system x", "- 1"])
def test_what_is_no_yaml_is_refused(tmp_path, capsys, text):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    assert main(["plan", "task=cartpole_balance", "--machine", str(path)]) == 2
    assert "bad.yaml" in capsys.readouterr().err


def test_what_a_machine_was_not_measured_with_is_refused(bench, capsys):
    assert main(["plan", "task=hopper_run", "--machine", str(bench)]) == 2
    said = capsys.readouterr().err
    assert "cartpole_balance" in said
    assert "robolearn plan task=hopper_run backend=mujoco" in said


def test_options_that_contradict_each_other_are_refused(bench, tmp_path, capsys):
    words = ["plan", "task=cartpole_balance", "--machine", str(bench)]
    assert main([*words, "--save", str(tmp_path / "x.yaml")]) == 2
    assert main([*words, "--sizes", "8,16"]) == 2
    assert main(["plan", "task=cartpole_balance", "--sizes", "8"]) == 2
    assert main(["plan", "task=cartpole_balance", "--machine", "no-such-machine"]) == 2
    assert main(["plan", "task=cartpole_balanc", "--machine", str(bench)]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    for line, word in zip(
        lines, ("--save", "--sizes", "'8'", "no-such-machine", "cartpole_balanc"), strict=True
    ):
        assert word in line


def test_saving_keeps_what_was_measured_before(bench):
    first = machine.load(bench)
    other = first.workloads[0].model_copy(update={"task": "hopper_run"})
    machine.save(first.model_copy(update={"workloads": [other]}), bench)
    assert [w.task for w in machine.load(bench).workloads] == ["cartpole_balance", "hopper_run"]
    again = other.model_copy(update={"start": 9.0})
    machine.save(first.model_copy(update={"workloads": [again]}), bench)
    assert [w.start for w in machine.load(bench).workloads] == [4.0, 9.0]


def test_a_machine_whose_gpu_is_not_used_is_the_same_machine(bench):
    first = machine.load(bench)
    on_gpu = {**CONSTANTS["workloads"][0], "device": "cuda", "start": 7.0}
    on_gpu["memory"] = {**on_gpu["memory"], "gpu": {"fixed": 1e9, "each": 1e5}}
    with_gpu = {"gpu": "a gpu", "gpu_memory": 8e9, "workloads": [machine.Workload.model_validate(on_gpu)]}
    machine.save(first.model_copy(update=with_gpu), bench)
    machine.save(first, bench)  # measured again, on the CPU
    found = machine.load(bench)
    assert (found.gpu, found.gpu_memory) == ("a gpu", 8e9)
    assert sorted(w.device for w in found.workloads) == ["cpu", "cuda"]
    assert found.workload("cartpole_balance", "mujoco", "ppo", "cuda").start == 7.0
    with pytest.raises(ConfigError, match="another machine"):
        machine.save(first.model_copy(update={"gpu": "another gpu", "gpu_memory": 8e9}), bench)


def test_a_file_of_another_machine_is_refused_before_anything_is_measured(bench, monkeypatch, capsys):
    monkeypatch.setattr("robolearn.commands.plan.measure.measure", lambda *words: pytest.fail("measured"))
    assert main(["plan", "task=cartpole_balance", "--save", str(bench)]) == 2
    assert "a processor" in capsys.readouterr().err


def test_a_file_of_another_machine_is_not_overwritten(bench):
    elsewhere = machine.load(bench).model_copy(update={"cores": 64})
    with pytest.raises(ConfigError, match="another machine"):
        machine.save(elsewhere, bench)
    assert machine.load(bench).cores == 2


def test_the_file_that_the_documentation_shows_is_valid(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "planning.md").read_text()
    (shown,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    path = tmp_path / "shown.yaml"
    path.write_text(shown)
    assert machine.load(path).workload("humanoid_walk", "mujoco_warp", "ppo").num_steps == 4


@pytest.mark.parametrize(
    ("words", "envs"), [([], 4096), (["device=cpu", "backend=mujoco_warp"], 1024), (["num_envs=2048"], 2048)]
)
def test_a_plan_has_the_number_of_environments_of_the_machine_that_was_measured(
    words, envs, monkeypatch, tmp_path, capsys
):
    page = (Path(__file__).parents[2] / "docs" / "planning.md").read_text()
    (shown,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    path = tmp_path / "gpu.yaml"
    path.write_text(shown)
    monkeypatch.setattr(registry, "_has_cuda", lambda: False)  # this machine, which only plans
    assert main(["plan", "task=humanoid_walk", "--machine", str(path), *words]) == 0
    assert f"{envs} environments x" in capsys.readouterr().out


def test_the_machines_of_the_package_are_valid():
    assert packaged.names("machines")
    for name in packaged.names("machines"):
        found = machine.find(name)
        assert found.name == name
        assert {w.task for w in found.workloads} >= {"humanoid_walk", "cartpole_balance"}


# ---------------------------------------------------------------------------------------- measuring


@pytest.mark.slow
def test_a_machine_is_measured_saved_and_used_again(tmp_path, capfd):
    saved, out, again = (tmp_path / name for name in ("here.yaml", "a.json", "b.json"))
    small = ["learner.num_steps=4", "learner.actor_hidden=[8]", "learner.critic_hidden=[8]"]
    words = ["plan", "task=cartpole_balance", "num_envs=16", "max_iterations=3", *small]
    options = ["--iterations", "3", "--save", str(saved), "--json", str(out)]
    assert main([*words, *options]) == 0
    assert "saved" in capfd.readouterr().out
    assert main([*words, "--machine", str(saved), "--json", str(again)]) == 0
    shown = capfd.readouterr().out
    assert "other values" not in shown
    first, second = (json.loads(path.read_text())["plan"] for path in (out, again))
    assert first["num_steps"] == 4
    assert second["steps_per_second"] == pytest.approx(first["steps_per_second"], rel=1e-3)
    assert second["seconds"] == pytest.approx(first["seconds"], rel=1e-3)
    (workload,) = machine.load(saved).workloads
    assert workload.settings == small
    # Actor and critic of one hidden layer of 8: 4 or 5 inputs, and 1 output each.
    assert 100 < workload.parameters < 200
    assert workload.measured.num_envs == [4, 8, 16]
    assert workload.memory.host.linear.at(16) > 100e6  # torch alone takes more


@pytest.mark.slow
def test_a_training_that_cannot_be_measured_ends_the_plan_with_its_line(tmp_path, capfd):
    words = [
        "plan",
        "task=cartpole_balance",
        "num_envs=8",
        "device=cuda:7",
        "--save",
        str(tmp_path / "x.yaml"),
    ]
    assert main(words) in (2, 3)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("robolearn: ")]
    assert len(lines) == 1
    assert not (tmp_path / "x.yaml").exists()
