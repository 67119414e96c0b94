"""Hydra's sweep grammar, expanded as worked out by hand, and the names of runs."""

from __future__ import annotations

import pytest

from robolearn.commands.sweep import grammar
from robolearn.config.overrides import parse as parse_single
from robolearn.errors import ConfigError


def values(word: str) -> tuple[str, ...]:
    (axis,) = grammar.parse([word]).axes
    return axis.choices


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("seed=1,2,3", ("1", "2", "3")),
        ("learner.gamma=choice(0.97,0.99)", ("0.97", "0.99")),
        ("seed=range(1,4)", ("1", "2", "3")),  # the stop is not included
        ("seed=range(1,8,3)", ("1", "4", "7")),
        ("seed=range(5,1,-2)", ("5", "3")),
        ("learner.gamma=range(0.9,0.99,0.03)", ("0.9", "0.93", "0.96")),
        ("learner.gamma=range(0.5,0.8,0.1)", ("0.5", "0.6", "0.7")),  # without 0.7000000000000001
        ("learner.learning_rate=1e-3,3e-3", ("0.001", "0.003")),
        ("learner.actor_hidden=[64,64],[128,64]", ("[64,64]", "[128,64]")),
        ("task.rewards={a:1,b:2},{a:3}", ("{a:1,b:2}", "{a:3}")),
        ("output_name='x,y',z", ("'x,y'", "z")),
        ("seed=sort(3,1,2)", ("1", "2", "3")),
        ("learner.rnn=null,gru", ("null", "gru")),
    ],
)
def test_a_word_expands_to_the_values_worked_out_by_hand(word: str, expected: tuple[str, ...]) -> None:
    assert values(word) == expected


@pytest.mark.parametrize(
    "word", ["seed=1", "learner.actor_hidden=[64,64]", "robot='a,b'", "task.rewards={a:1,b:2}", "é=ü", "seed"]
)
def test_a_single_value_with_commas_inside_brackets_or_quotes_stays_one(word: str) -> None:
    assert grammar.parse([word]) == grammar.Plan((word,))


def test_the_product_is_in_the_order_written_and_the_last_setting_varies_fastest() -> None:
    plan = grammar.parse(["task=x", "seed=1,2", "num_envs=8", "learner.gamma=0.9,0.99"])
    assert [plan.words(settings) for settings in plan.product()] == [
        ["task=x", "seed=1", "num_envs=8", "learner.gamma=0.9"],
        ["task=x", "seed=1", "num_envs=8", "learner.gamma=0.99"],
        ["task=x", "seed=2", "num_envs=8", "learner.gamma=0.9"],
        ["task=x", "seed=2", "num_envs=8", "learner.gamma=0.99"],
    ]


@pytest.mark.parametrize(
    ("word", "offender"),
    [
        ("seed=range(3,3)", "seed=range(3,3)"),
        ("seed=1,2,1", "1 twice"),
        ("a=glob(*)", "glob"),
        ("a=interval(1,2)", "--search"),
        ("a=tag(log,1,2)", "a=tag(log,1,2)"),
        ("a=choice(1,2", "a=choice(1,2"),
        ("a=tag(log,choice(1,2))", "logarithmic"),
        ("a=tag(big,interval(1,2))", "big"),
        ("a=range(0,1000000)", "10000"),
    ],
)
def test_a_sweep_that_cannot_be_run_is_refused_by_name(word: str, offender: str) -> None:
    with pytest.raises(ConfigError) as caught:
        grammar.parse([word], search="big" in word)
    assert offender in str(caught.value)


@pytest.mark.parametrize("word", ["a=interval(2,1)", "a=interval(1,1)", "a=tag(log,interval(0,1))"])
def test_an_interval_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="interval"):
        grammar.parse([word], search=True)


def test_intervals_know_their_ends_their_type_and_their_scale() -> None:
    words = ["a=interval(1,8)", "b=int(interval(1,8))", "c=tag(log,interval(1e-4,1e-2))", "d=range(1,8,3)"]
    a, b, c, d = grammar.parse(words, search=True).axes
    assert (a.numbers, a.integer, a.log) == ((1.0, 8.0, 0.0), False, False)
    assert (b.numbers, b.integer, b.log) == ((1, 8, 0.0), True, False)
    assert (c.numbers, c.integer, c.log) == ((1e-4, 1e-2, 0.0), False, True)
    assert (d.numbers, d.integer) == ((1.0, 7.0, 3.0), True)


def test_a_key_that_is_set_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="seed"):
        grammar.parse(["seed=1,2", "seed=3"])


def test_names_are_short_different_and_readable_by_the_grammar() -> None:
    combinations = [
        {"learner.gamma": "0.97", "seed": "1"},
        {"learner.gamma": "0.97", "seed": "2"},
        {"learner.gamma": "0.99", "seed": "1"},
    ]
    names = grammar.run_names(combinations)
    assert names == ["gamma-0.97_seed-1", "gamma-0.97_seed-2", "gamma-0.99_seed-1"]
    for name in names:
        (item,) = parse_single([f"resume=runs/sweeps/x/{name}"])
        assert item.value == f"runs/sweeps/x/{name}"


def test_names_that_would_be_the_same_get_a_number() -> None:
    combinations = [{"robot": "'a b'"}, {"robot": "a/a-b"}, {"robot": "c"}]
    assert grammar.run_names(combinations) == ["1_robot-a-b", "2_robot-a-b", "robot-c"]


def test_a_key_is_shortened_as_far_as_it_stays_different() -> None:
    keys = ["task.rewards.gait.weight", "task.rewards.upright.weight", "seed"]
    assert grammar.short_keys(keys) == {
        keys[0]: "gait.weight",
        keys[1]: "upright.weight",
        "seed": "seed",
    }


@pytest.mark.parametrize("path", ["runs/a", "runs/with space", "it's", "a,b=c", "x\\y"])
def test_a_path_is_quoted_so_that_the_grammar_reads_it_back(path: str) -> None:
    (item,) = parse_single([grammar.setting("resume", path)])
    assert item.value == path
