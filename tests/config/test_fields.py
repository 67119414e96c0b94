"""Fields: the values that each type accepts and refuses."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from robolearn.config import fields, sections
from robolearn.config.overrides import parse
from robolearn.errors import ConfigError, near


@dataclass
class Part:
    gain: float = field(default=1.0, metadata={"above": 0.0, "max": 10.0})


@dataclass
class Everything:
    count: int = 1
    share: float = 0.5
    flag: bool = False
    word: str = "a"
    maybe: str | None = None
    limit: float | None = None
    pair: tuple[float, float] = (0.0, 1.0)
    sizes: tuple[int, ...] = (4, 4)
    names: list[str] = field(default_factory=list)
    mode: Literal["fast", "slow", 3] = "fast"
    either: int | str = 1
    part: Part = field(default_factory=Part)
    spare: Part | None = None
    table: dict[str, float] = field(default_factory=lambda: {"x": 1.0, "y": 2.0}, metadata={"keys": ("z",)})
    parts: dict[str, Part] = field(default_factory=lambda: {"left": Part()})
    free: Any = None


@dataclass
class Restated(Everything):
    table: dict[str, float] = field(default_factory=lambda: {"y": 3.0})
    """Without metadata of its own."""
    share: float = field(default=0.1, metadata={"max": 1.0})


@dataclass
class Again(Restated):
    table: dict[str, float] = field(default_factory=dict, metadata={"keys": ("u",)})
    share: float = field(default=0.2, metadata={"min": 0.0})


@dataclass
class Newer:
    old: float = 1.0
    depth: int = field(default=3, metadata={"neutral": 1})


def test_a_field_that_is_stated_anew_has_the_metadata_of_its_base() -> None:
    found = fields.apply(Restated(), Restated, {"table": {"z": 4.0}}, "it", {})
    assert found.table == {"y": 3.0, "z": 4.0}
    with pytest.raises(ConfigError, match="w"):
        fields.apply(Restated(), Restated, {"table": {"w": 4.0}}, "it", {})
    assert fields.apply(Again(), Again, {"table": {"z": 1.0, "u": 2.0}}, "it", {}).table == {
        "z": 1.0,
        "u": 2.0,
    }
    for value in (-0.5, 1.5):  # its own bound, and that of its base
        with pytest.raises(ConfigError, match="share"):
            fields.apply(Again(), Again, {"share": value}, "it", {})


def test_a_setting_that_a_saved_tree_lacks_is_neutral_and_one_that_no_word_sets_its_default() -> None:
    assert fields.apply(Newer(), Newer, {"old": 2.0}, "it", {}, whole=True) == Newer(2.0, 1)
    assert fields.apply(Newer(), Newer, {"old": 2.0, "depth": 5}, "it", {}, whole=True) == Newer(2.0, 5)
    assert fields.apply(Newer(), Newer, {"old": 2.0}, "it", {}) == Newer(2.0, 3)


def apply(*words: str) -> Everything:
    """Overrides applied to Everything, as `resolve` does for a section."""
    tree: dict[str, Any] = {}
    for item in parse(words):
        sections.put(tree, item.key, item.value)
    return fields.apply(Everything(), Everything, tree, "it", {})


def test_a_path_from_the_home_directory_is_expanded_as_a_shell_does(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert apply("word=~/x y").word == f"{tmp_path}/x y"


@pytest.mark.parametrize(
    ("word", "name", "value"),
    [
        ("count=7", "count", 7),
        ("count=1_000", "count", 1000),
        ("share=1", "share", 1.0),
        ("share=3e-4", "share", 3e-4),
        ("share=float(2)", "share", 2.0),
        ("flag=true", "flag", True),
        ("word=007", "word", "007"),
        ("word=1e3", "word", "1e3"),
        ("word=true", "word", "true"),
        ("word='a b, c'", "word", "a b, c"),
        ("word=runs/a-b/2026-01-31_12-00-00", "word", "runs/a-b/2026-01-31_12-00-00"),
        ("word=/data/m\u00fcller/\u673a\u5668", "word", "/data/m\u00fcller/\u673a\u5668"),
        ("word=x~/y", "word", "x~/y"),
        ("word=~x/y", "word", "~x/y"),
        ("maybe=null", "maybe", None),
        ("maybe=x", "maybe", "x"),
        ("limit=2", "limit", 2.0),
        ("pair=[1,2.5]", "pair", (1.0, 2.5)),
        ("sizes=[256,128,64]", "sizes", (256, 128, 64)),
        ("sizes=[]", "sizes", ()),
        ("names=[a,'b c']", "names", ["a", "b c"]),
        ("mode=slow", "mode", "slow"),
        ("mode=3", "mode", 3),
        ("either=3", "either", 3),
        ("either=x", "either", "x"),
        ("part.gain=2", "part", Part(2.0)),
        ("part={gain:3}", "part", Part(3.0)),
        ("spare.gain=4", "spare", Part(4.0)),
        ("table.x=5", "table", {"x": 5.0, "y": 2.0}),
        ("table={y:6}", "table", {"x": 1.0, "y": 6.0}),
        ("table.z=1", "table", {"x": 1.0, "y": 2.0, "z": 1.0}),
        ("parts.left.gain=8", "parts", {"left": Part(8.0)}),
        ("free=[1,{a:2}]", "free", [1, {"a": 2}]),
    ],
)
def test_a_value_is_converted_to_the_type_of_its_field(word: str, name: str, value: Any) -> None:
    result = apply(word)
    assert getattr(result, name) == value
    assert type(getattr(result, name)) is type(value)
    assert dataclasses.replace(result, **{name: getattr(Everything(), name)}) == Everything()


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("count=true", "it.count takes a whole number, not 'true'"),
        ("count=2.0", r"a whole number \(write 2\)"),
        ("count=99999999999999999999", "it.count takes a whole number, at most 2.63, not one that large"),
        ("share=true", "it.share takes a number, not 'true'"),
        ("flag=1", "it.flag takes true or false, not '1'"),
        ("word=null", "it.word takes text, not null"),
        ("word=[a]", "it.word takes text"),
        ("pair=[1]", r"it.pair takes a list of 2 \(such as it.pair=\[0,0\]\)"),
        ("pair=[1,x]", r"it.pair\[1\] takes a number, not 'x'"),
        ("pair=[1,inf]", r"it.pair\[1\] takes a finite number"),
        ("sizes=[1,2.5]", r"it.sizes\[1\] takes a whole number"),
        ("sizes=3", "it.sizes takes a list"),
        ("mode=fats", "it.mode takes one of fast, slow, 3, not 'fats'"),
        ("part.gain=0", "it.part.gain takes a number, above 0 and at most 10, not 0.0"),
        ("part.gain=11", "above 0 and at most 10, not 11.0"),
        ("part=3", r"it.part has parts \(gain\), set one by one: it.part.gain=VALUE"),
        ("table=3", "it.table holds x, y, z, set one by one"),
        ("table={w:1}", "there is no 'it.table.w'"),
        ("parts.left.gane=1", "did you mean gain"),
        ("free=[nan]", "a finite number"),
        ("either=[1]", "takes int or str"),
    ],
)
def test_a_value_of_a_wrong_type_or_out_of_range_is_refused(word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        apply(word)


def test_nothing_is_changed_in_place() -> None:
    start = Everything()
    fields.apply(start, Everything, {"table": {"x": 9.0}, "part": {"gain": 2.0}, "names": ["a"]}, "it", {})
    assert start == Everything()


def test_a_later_override_wins_and_dictionaries_are_merged() -> None:
    assert apply("count=1", "count=2").count == 2
    assert apply("table={x:3}", "table.y=4").table == {"x": 3.0, "y": 4.0}
    assert apply("table.y=4", "table={x:3}").table == {"x": 3.0, "y": 4.0}


def test_whole_replaces_a_dictionary_so_a_default_key_that_is_not_saved_is_dropped() -> None:
    update = {"table": {"x": 4.0}}
    assert fields.apply(Everything(), Everything, update, "it", {}).table == {"x": 4.0, "y": 2.0}
    assert fields.apply(Everything(), Everything, update, "it", {}, whole=True).table == {"x": 4.0}


def test_a_key_in_quotes_is_named():
    for word in ('robot.actuators={"*": {kp: 1}}', "robot.actuators={knee: {kp: 1}, '*': {kp: 1}}"):
        with pytest.raises(ConfigError, match=r"write \* without"):
            parse([word])
    (item,) = parse(["robot.actuators={*: {kp: 1}}"])
    assert item.value == {"*": {"kp": 1}}


def test_a_name_of_which_the_first_word_is_given_is_suggested():
    assert near("knee", ["ankle_joint", "knee_joint", "left_knee_joint"]) == ["knee_joint"]
    assert near("knee", ["ankle", "knees"]) == ["knees"]
    assert near("hip", ["hip_joint"], cutoff=1.0) == []
