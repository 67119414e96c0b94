"""Checks values against the type hints of dataclass fields, and reads the docstrings under those fields.

A field's `metadata` may narrow its values: `min`, `max` (inclusive) and `above` (exclusive) bound a number or
each number of a list; `pattern` (described by `form`) must match a text; `keys` are more valid keys of a dictionary,
and `open` allows any key, or, as text, those that match this pattern. Of a dictionary, `names` is the method that lists
keys of the instance, `head` the key of a value that is given alone, and `of` an example of values that have fields.
`neutral` says that the default does nothing, as if there were no such setting.
"""

from __future__ import annotations

import abc
import ast
import dataclasses
import functools
import inspect
import itertools
import math
import re
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, NoReturn, Union

from robolearn.config.overrides import Scalar
from robolearn.errors import ConfigError, did_you_mean, listing, near, quote

KEEP: Any = object()
"""An update that keeps the current value."""


class Setting(NamedTuple):
    """One setting of a value that has several."""

    hint: Any
    """Its type."""
    value: Any
    """Its current value."""
    meta: Mapping[str, Any]
    """As a field's `metadata`."""


class Parts(abc.ABC):
    """A value with several settings, the first of which, `head`, may be given alone: `gait=2` is `gait.weight=2`."""

    head: ClassVar[str]

    @abc.abstractmethod
    def settings(self) -> dict[str, Setting]:
        """Its settings by name, `head` first."""

    @abc.abstractmethod
    def changed(self, values: Mapping[str, Any]) -> Parts:
        """The same with other values, by name, of all settings."""

    @classmethod
    def stated(cls, value: Any) -> Parts | None:
        """One of these for a value that is stated without its other settings, or for None, where none is stated yet;
        None where there is no such form."""
        return None

    def meaning(self) -> str:
        """What it is, in a sentence for the user; nothing where there is nothing to say."""
        return ""

    def plain(self) -> Any:
        """As it is saved: a dictionary of its settings, or the first one where there is no other."""
        values = {name: setting.value for name, setting in self.settings().items()}
        return values if len(values) > 1 else values[self.head]


_LARGEST = 2**63 - 1


@functools.cache
def hints(cls: type) -> dict[str, Any]:
    """Type of every field that a user can set, by name, in order."""
    try:
        every = typing.get_type_hints(cls)
    except (NameError, TypeError, AttributeError) as error:
        raise ConfigError(f"the field types of {cls.__name__} cannot be read: {error}") from error
    return {f.name: every[f.name] for f in dataclasses.fields(cls) if f.init}


def metas(cls: Any) -> Mapping[str, Mapping[str, Any]]:
    """Metadata of every field of a dataclass by name, none of another class. A field that is stated anew keeps that of
    its base where it says nothing else; its `keys` come beside those of the base."""
    return _metas(cls)


@functools.cache
def _metas(cls: type) -> Mapping[str, Mapping[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for base in reversed(cls.__mro__):
        for f in dataclasses.fields(base) if dataclasses.is_dataclass(base) else ():
            usual = found.get(f.name, {})
            found[f.name] = {**usual, **f.metadata}
            if "keys" in usual:
                found[f.name]["keys"] = tuple(dict.fromkeys((*f.metadata.get("keys", ()), *usual["keys"])))
    return found


def apply(
    current: Any, hint: Any, update: Any, where: str, meta: Mapping[str, Any], whole: bool = False
) -> Any:
    """`current` changed by `update`, every value checked against its type and range; nothing is modified in place.

    A dataclass or dictionary takes a mapping of the parts to change; anything else is replaced. With `whole` a
    dictionary is replaced, not merged (a saved one is complete).

    Raises:
        ConfigError: a key does not exist, or a value has the wrong type or is out of range.
    """
    if isinstance(current, Parts):
        return _apply_parts(current, update, where, whole)
    if isinstance(hint, type) and issubclass(hint, Parts):
        stated = hint.stated(None if current is KEEP else current)
        if stated is not None:
            return _apply_parts(stated, update, where, whole)
        if not _is_int(current) and not isinstance(current, float):
            raise ConfigError(f"{where} must be a {hint.__name__}, not {type(current).__name__}")
        hint = float  # the weight alone, as in the first version
    hint, optional = _without_none(hint)
    if optional and (update is None or (update is KEEP and current is None)):
        return None
    if getattr(hint, "_is_protocol", False):  # the settings are those of the value that implements it
        if not dataclasses.is_dataclass(current):
            raise ConfigError(f"there is no {quote(where, 120)} here: the default of {where} is null")
        hint = type(current)
    if dataclasses.is_dataclass(hint):
        return _apply_dataclass(current, hint, update, where, whole)
    if typing.get_origin(hint) is dict or hint is dict:
        return _apply_dict(current, hint, update, where, meta, whole)
    if hint is Any and meta.get("open") and isinstance(update, Mapping) and update:
        # Nested in a dictionary of any keys: the update is merged.
        return _apply_dict(current if isinstance(current, dict) else {}, dict, update, where, meta, whole)
    return _leaf(current if update is KEEP else update, hint, where, meta)


def _apply_parts(current: Parts, update: Any, where: str, whole: bool) -> Parts:
    if update is KEEP:
        return current
    settings = current.settings()
    if not isinstance(update, Mapping):
        places, update = {current.head: where}, {current.head: update}
    else:
        places = {}
        if not update and not whole:
            raise ConfigError(
                f"{where}={{}} changes nothing; set single keys, such as {where}.{current.head}=VALUE"
            )
        for key in update:
            if key not in settings:
                raise ConfigError(unknown(f"{where}.{key}", key, settings))
    return current.changed(
        {
            name: apply(
                old.value,
                old.hint,
                update.get(name, KEEP),
                places.get(name, f"{where}.{name}"),
                old.meta,
                whole,
            )
            for name, old in settings.items()
        }
    )


def _apply_aliases(
    new: dict[str, Any], update: Mapping[str, Any], aliases: Mapping[str, str], where: str
) -> None:
    """Set in `new`, the fields of a dataclass, the settings that `update` gives by another name."""
    for alias, target in aliases.items():
        if alias not in update:
            continue
        name, key, setting = target.split(".")
        entry = new[name].get(key)
        if not isinstance(entry, Parts):
            raise ConfigError(
                f"{where}.{alias} is {where}.{target}, and there is no {where}.{name}.{key} here"
            )
        given = update.get(name)
        if isinstance(given, Mapping) and isinstance(given.get(key), Mapping) and setting in given[key]:
            raise ConfigError(f"{where}.{alias} and {where}.{target} are the same setting; give one of them")
        old = entry.settings()
        value = apply(
            old[setting].value, old[setting].hint, update[alias], f"{where}.{alias}", old[setting].meta
        )
        values = {k: part.value for k, part in old.items()}
        new[name] = {**new[name], key: entry.changed({**values, setting: value})}


def other_names(cls: type) -> dict[str, str]:
    """Further names of settings of a dataclass, each with the dotted key it stands for."""
    aliases: Mapping[str, str] = getattr(cls, "aliases", {})
    return {alias: target for alias, target in aliases.items() if alias not in hints(cls)}


def _apply_dataclass(current: Any, hint: Any, update: Any, where: str, whole: bool) -> Any:
    cls: Any = type(current) if isinstance(current, hint) else hint
    types_ = hints(cls)
    if update is KEEP:
        update = {}
    if not isinstance(update, Mapping):
        first = next(iter(types_), "FIELD")
        raise ConfigError(f"{where} has parts ({listing(types_)}), set one by one: {where}.{first}=VALUE")
    aliases = other_names(cls)
    for key in update:
        if key not in types_ and key not in aliases:
            raise ConfigError(unknown(f"{where}.{key}", key, types_))
    about = metas(cls)
    if whole:  # the version that saved it had no such setting
        update = {**{name: meta["neutral"] for name, meta in about.items() if "neutral" in meta}, **update}
    try:
        start = current if isinstance(current, hint) else cls()
        new = {
            name: apply(
                getattr(start, name), kind, update.get(name, KEEP), f"{where}.{name}", about[name], whole
            )
            for name, kind in types_.items()
        }
        _apply_aliases(new, update, aliases, where)
        return cls(**new)
    except ConfigError:
        raise
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{where}: {error}") from error


def _apply_dict(
    current: Any, hint: Any, update: Any, where: str, meta: Mapping[str, Any], whole: bool
) -> dict[str, Any]:
    inner = (typing.get_args(hint) or (str, Any))[1]
    if "head" in meta and update is not KEEP and not isinstance(update, Mapping):
        update = {meta["head"]: update}
    present: dict[str, Any] = dict(current or {})
    valid = {**present, **dict.fromkeys(meta.get("keys", ()), KEEP)}
    if update is KEEP:
        update = {}
    elif not isinstance(update, Mapping):
        if "example" in meta:
            raise ConfigError(f"{where} takes names with a value each: {where}={meta['example']}")
        example = next(iter(valid), "KEY")
        raise ConfigError(f"{where} holds {listing(valid)}, set one by one: {where}.{example}=VALUE")
    elif not update and "example" in meta:
        return {}
    elif not update and not whole and present:
        example = next(iter(valid), "KEY")
        raise ConfigError(
            f"{where}={{}} changes nothing: dictionaries are merged; set single keys, such as {where}.{example}=VALUE"
        )
    elif whole:
        present = {key: present[key] for key in present if key in update}
    for key in update:
        if key not in valid and not _is_open(meta, key):
            raise ConfigError(unknown(f"{where}.{key}", key, valid))
    merged = {**present, **{key: KEEP for key in update if key not in present}}
    return {
        key: apply(old, inner, update.get(key, KEEP), f"{where}.{key}", meta, whole)
        for key, old in merged.items()
    }


def _is_open(meta: Mapping[str, Any], key: str) -> bool:
    allowed = meta.get("open", False)
    return bool(re.fullmatch(allowed, key)) if isinstance(allowed, str) else bool(allowed)


def _leaf(value: Any, hint: Any, where: str, meta: Mapping[str, Any]) -> Any:
    text = value.text if isinstance(value, Scalar) else value
    plain = value.value if isinstance(value, Scalar) else value

    def refuse(expected: str) -> NoReturn:
        raise ConfigError(f"{where} takes {expected}, not {'null' if text is None else quote(text)}")

    origin = typing.get_origin(hint)
    if origin is Literal:
        choices = typing.get_args(hint)
        for choice in choices:
            given = text if isinstance(choice, str) else plain
            if type(choice) is type(given) and choice == given:
                return choice
        words = [str(choice) for choice in choices]
        refuse(f"one of {listing(words)}")
    if origin in (Union, types.UnionType):
        options = sorted(typing.get_args(hint), key=lambda option: option is str)  # anything is text: last
        for option in options:
            try:
                return _leaf(value, option, where, meta)
            except ConfigError:
                continue
        refuse(" or ".join(getattr(option, "__name__", str(option)) for option in options))
    if hint is bool:
        return plain if isinstance(plain, bool) else refuse("true or false")
    if hint is int:
        if isinstance(plain, float) and plain.is_integer() and abs(plain) < 1e15:
            refuse(f"a whole number{_bounds(meta)} (write {int(plain)})")
        return _number(plain, where, meta) if _is_int(plain) else refuse(f"a whole number{_bounds(meta)}")
    if hint is float:
        if not _is_int(plain) and not isinstance(plain, float):
            refuse(f"a number{_bounds(meta)}")
        if not abs(plain) < 1e300:  # also true of NaN
            refuse(f"a finite number{_bounds(meta)}")
        return _number(float(plain), where, meta)
    if hint is str:
        return _text(text, where, meta) if isinstance(text, str) else refuse("text")
    if origin in (tuple, list) or hint in (tuple, list):
        return _sequence(plain, hint, origin or hint, where, meta, refuse)
    return _anything(plain, where)


def _sequence(value: Any, hint: Any, kind: type, where: str, meta: Mapping[str, Any], refuse: Any) -> Any:
    inner = typing.get_args(hint)
    fixed = kind is tuple and inner and inner[-1] is not Ellipsis
    shape = f"a list of {len(inner)}" if fixed else "a list"
    example = "[" + ",".join("0" for _ in inner) + "]" if fixed else "[1,2]"
    if not isinstance(value, (list, tuple)) or (fixed and len(value) != len(inner)):
        refuse(f"{shape} (such as {where}={example})")
    each = inner if fixed else [inner[0] if inner else Any] * len(value)
    items = [
        _leaf(item, of, f"{where}[{i}]", meta) for i, (item, of) in enumerate(zip(value, each, strict=True))
    ]
    return kind(items)


def _anything(value: Any, where: str) -> Any:
    """A value without a declared type: plain data, and finite."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where} takes a finite number, not {quote(value)}")
    if isinstance(value, (list, tuple)):
        return type(value)(_anything(item, where) for item in value)
    if isinstance(value, dict):
        return {key: _anything(item, f"{where}.{key}") for key, item in value.items()}
    return value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any, where: str, meta: Mapping[str, Any]) -> Any:
    whole = isinstance(value, int)
    bounds = {"max": _LARGEST, **meta} if whole else meta
    low, high, above = bounds.get("min"), bounds.get("max"), bounds.get("above")
    outside = (low is not None and value < low) or (high is not None and value > high)
    if outside or (above is not None and value <= above) or (whole and value < -_LARGEST):
        shown = str(value) if abs(value) <= _LARGEST else "one that large"
        raise ConfigError(f"{where} takes a {'whole ' if whole else ''}number{_bounds(bounds)}, not {shown}")
    return value


def _bounds(meta: Mapping[str, Any]) -> str:
    """` from 1 to 10`, `, above 0`: the range of a number in words."""
    low, high, above = (_short(meta.get(key)) for key in ("min", "max", "above"))
    if low and high:
        return f" from {low} to {high}"
    parts = {"above": above, "at least": low, "at most": high}
    words = " and ".join(f"{word} {bound}" for word, bound in parts.items() if bound)
    return f", {words}" if words else ""


def _short(bound: float | None) -> str:
    if bound is None:
        return ""
    return "2^63" if bound == _LARGEST else f"{bound:g}" if isinstance(bound, float) else str(bound)


def _text(value: str, where: str, meta: Mapping[str, Any]) -> str:
    if not value.strip() or not value.isprintable():
        raise ConfigError(f"{where} takes printable text, not {quote(value)}")
    if "pattern" in meta and not re.fullmatch(meta["pattern"], value):
        raise ConfigError(f"{where} takes {meta.get('form', meta['pattern'])}, not {quote(value)}")
    return value


def _without_none(hint: Any) -> tuple[Any, bool]:
    """`X | None` as (X, True)."""
    if typing.get_origin(hint) not in (Union, types.UnionType):
        return hint, hint is Any
    options = [option for option in typing.get_args(hint) if option is not type(None)]
    optional = len(options) < len(typing.get_args(hint))
    return (options[0] if len(options) == 1 else Union[tuple(options)]), optional  # noqa: UP007


def unknown(dotted: str, word: str, choices: Any) -> str:
    """The message for a key that does not exist."""
    hint = did_you_mean(word, choices)
    return f"there is no {quote(dotted, 120)}{hint or f'; there is {listing(choices)}'}"


def paths(node: Any, prefix: str, meta: Mapping[str, Any] = types.MappingProxyType({})) -> Iterator[str]:
    """Every dotted key of a dataclass instance or dictionary, starting with `prefix` itself."""
    yield prefix
    if isinstance(node, Parts):
        yield from (f"{prefix}.{name}" for name in node.settings())
    elif dataclasses.is_dataclass(node) and not isinstance(node, type):
        about = metas(type(node))
        for name, kind in hints(type(node)).items():
            meta = about[name]
            if "names" in meta:
                meta = {**meta, "keys": (*meta["keys"], *getattr(node, meta["names"])())}
            yield from paths(_start(getattr(node, name), kind), f"{prefix}.{name}", meta)
        yield from (f"{prefix}.{alias}" for alias in other_names(type(node)))
    elif isinstance(node, dict):
        for name in {**node, **dict.fromkeys(meta.get("keys", ()))}:
            yield from paths(node[name] if name in node else meta.get("of"), f"{prefix}.{name}")


def open_paths(node: Any, prefix: str) -> Iterator[str]:
    """The dotted keys of a dataclass instance's dictionaries that may have any key."""
    for name, meta in metas(type(node)).items():
        if meta.get("open") is True or "example" in meta:
            yield f"{prefix}.{name}"


def metadata(node: Any, name: str) -> Mapping[str, Any]:
    """The metadata of a field of a dataclass instance; empty where there is none."""
    return metas(type(node)).get(name, {})


def _start(value: Any, hint: Any) -> Any:
    """The value; for None of an optional dataclass, a default instance of it."""
    inner = _without_none(hint)[0]
    return inner() if value is None and dataclasses.is_dataclass(inner) and isinstance(inner, type) else value


@functools.cache
def field_docs(cls: type) -> dict[str, str]:
    """The docstring under each field of a dataclass, inherited ones included, each on one line."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        except (OSError, TypeError, SyntaxError, IndexError):
            continue  # a class made at run time has no source, so no docstrings either
        statements = body.body if isinstance(body, ast.ClassDef) else []
        for field, after in itertools.pairwise(statements):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(after.value.value, str)
            ):
                docs[field.target.id] = " ".join(after.value.value.split())
    return docs


def missing_key(text: str, dotted: str, known: Iterable[str]) -> str:
    """The message for an override whose key is not among the `known` dotted keys.

    It suggests the same name elsewhere (`learning_rate` -> `learner.learning_rate`), else similar names in the same
    place, else similar names anywhere.
    """
    known = sorted(known)
    there = f"{quote(text)}: there is no {quote(dotted)}"
    last = dotted.rpartition(".")[2]
    elsewhere = [path for path in known if path.rpartition(".")[2] == last]
    elsewhere.sort(key=lambda path: -len(set(path.split(".")) & set(dotted.split("."))))
    if elsewhere:
        return f"{there}: did you mean {' or '.join(elsewhere[:3])}?"
    parent = dotted.rpartition(".")[0]
    while parent and parent not in known:
        parent = parent.rpartition(".")[0]
    siblings = {path.rpartition(".")[2]: path for path in known if path.rpartition(".")[0] == parent}
    word = dotted.removeprefix(parent).lstrip(".").partition(".")[0]
    anywhere = {path.rpartition(".")[2]: path for path in known}
    found = [siblings[name] for name in near(word, siblings)]
    found = found or near(dotted, known, cutoff=0.75)
    found = found or [anywhere[name] for name in near(last, anywhere, cutoff=0.75)]
    if found:
        return f"{there}: did you mean {' or '.join(found)}?"
    if siblings:
        return f"{there}; {parent or 'a run'} has {listing(siblings)}"
    return f"{there}; {parent} is one value, set as {parent}=VALUE"
