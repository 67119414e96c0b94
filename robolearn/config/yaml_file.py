"""Reads plain YAML strictly, writes it atomically, and renders it with the fields' docstrings as comments."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from robolearn.config.fields import Parts, field_docs
from robolearn.errors import ConfigError, quote
from robolearn.files import replacing

_WIDTH = 110
_FLOAT = re.compile(r"[-+]?\d[\d_]*(\.\d*)?[eE][-+]?\d+\Z")


class PlainLoader(yaml.SafeLoader):
    """Safe YAML without tags and without aliases, a few lines of which can expand to gigabytes."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuse tags and anchors, with their line."""
        event = self.peek_event()
        given = {"tag": getattr(event, "tag", None), "alias": getattr(event, "anchor", None)}
        for what, name in given.items():
            if name is not None:
                problem = f"the {what} {quote(name)} is not supported; write the value itself"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        return node


def parse(text: str, loader: type[PlainLoader] = PlainLoader) -> Any:
    """The content of a YAML text.

    Raises:
        ValueError: it is not YAML, or not only plain values; the message is one line with the line number.
    """
    try:
        return yaml.load(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        line = f" near line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ValueError(f"not valid YAML{line}: {error.problem}") from error
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:
        raise ValueError(f"not valid YAML: {error or type(error).__name__}") from error


class _Loader(PlainLoader):
    """Reads 1e-3 as a number (YAML 1.1 requires 1.0e-3)."""


class _Dumper(yaml.SafeDumper):
    """Quotes text that _Loader would read as a number, and writes no aliases, which _Loader refuses."""

    def ignore_aliases(self, data: Any) -> bool:
        """Always."""
        return True


for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789"))


def read(path: Path, empty: bool = False) -> dict[str, Any]:
    """The mapping in a file; with `empty`, a file without content is one without keys.

    Raises:
        ConfigError: it cannot be read, or holds no mapping with text keys; names the file.
    """
    shown = quote(str(path), 120)
    try:
        content = parse(path.read_text(encoding="utf-8"), _Loader)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"{shown} cannot be read: {why}") from error
    except ValueError as error:
        raise ConfigError(f"{shown}: {error}") from error
    if empty and content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"{shown} is not a configuration: it is no mapping from names to settings")
    return content


def write(content: Mapping[str, Any], path: Path) -> None:
    """Writes the file atomically, also in case of a power loss."""
    text = yaml.dump(dict(content), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


def render(content: Mapping[str, Any], node: Any) -> str:
    """`content` as YAML, with the docstrings of the fields of `node`, its dataclass, as comments."""
    rows: list[tuple[str, str]] = []
    _rows(content, node, 0, rows)
    column = min(44, max(len(line) for line, _ in rows)) + 2
    text = []
    for line, doc in rows:
        words = textwrap.wrap(doc, max(40, _WIDTH - 2 - column))
        beside = words.pop(0) if words and len(line) < column else ""
        text.append(f"{line:<{column}}# {beside}" if beside else line)
        text += [f"{'':<{column}}# {more}" for more in words]
    return "\n".join(text) + "\n"


def _rows(content: Mapping[str, Any], node: Any, indent: int, rows: list[tuple[str, str]]) -> None:
    cls: Any = type(node)
    docs = field_docs(cls) if dataclasses.is_dataclass(node) else {}
    for key, value in content.items():
        name, doc = " " * indent + _flow(key), docs.get(key, "")
        inner = node[key] if isinstance(node, dict) else getattr(node, key, None)
        if isinstance(value, dict) and value and not isinstance(inner, Parts):
            rows.append((f"{name}:", doc))
            _rows(value, inner, indent + 2, rows)
        else:
            rows.append((f"{name}: {_flow(value)}", inner.meaning() if isinstance(inner, Parts) else doc))


def _flow(value: Any) -> str:
    text = yaml.dump(
        value, Dumper=_Dumper, default_flow_style=True, width=10**6, allow_unicode=True, sort_keys=False
    )
    return text.removesuffix("\n").removesuffix("...").strip()
