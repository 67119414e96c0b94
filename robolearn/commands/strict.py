"""Checks data of a file against pydantic models, with one line on the first fault.

Models derive from `Strict`: an unknown field is refused, and a value of another type is not converted.
"""

from __future__ import annotations

from typing import Any, TypeVar

import pydantic

from robolearn.errors import ConfigError, did_you_mean, listing, quote


class Strict(pydantic.BaseModel):
    """A mapping whose fields are all stated."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True, frozen=True)


Model = TypeVar("Model", bound=pydantic.BaseModel)


def checked(model: type[Model], content: object, where: str = "") -> Model:
    """`content` as a `model`.

    Args:
        model: the class that states the fields.
        content: plain data: dictionaries, lists, text, numbers.
        where: begins the message, such as the name of the file.

    Raises:
        ConfigError: it does not fit; the message names the place of the first fault and, for an unknown field, the
            nearest valid one.
    """
    try:
        return model.model_validate(content)
    except pydantic.ValidationError as error:
        # An unknown field first: one that is missing beside it is often the same, misspelt.
        faults = sorted(error.errors(include_url=False), key=lambda fault: fault["type"] != "extra_forbidden")
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        prefix = f"{where}: " if where else ""
        raise ConfigError(f"{prefix}{_fault(model, faults[0])}{more}") from None


def _fault(model: type[pydantic.BaseModel], fault: Any) -> str:
    place, given = fault["loc"], fault.get("input")
    if fault["type"] == "extra_forbidden":
        valid = _fields(model, place[:-1])
        hint = did_you_mean(str(place[-1]), valid)
        inside = f" in {_path(place[:-1])}" if place[:-1] else ""
        return f"unknown field {quote(place[-1])}{inside}{hint or '.'} Valid: {listing(valid, 30)}"
    if fault["type"] == "missing":
        inside = f" in {_path(place[:-1])}" if place[:-1] else ""
        return f"field {quote(place[-1])} is missing{inside}"
    said = fault["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    said = said[:1].lower() + said[1:]
    if fault["type"] in ("value_error", "assertion_error"):
        return f"{_path(place)}: {said}" if place else said
    return f"{_path(place) or 'the file'}: {said}, not {quote(given)}"


def _path(place: tuple[int | str, ...]) -> str:
    """`a.b[2].c` for ("a", "b", 2, "c"); the names of classes that pydantic adds for unions are left out."""
    text, classes = "", {each.__name__ for each in Strict.__subclasses__()}
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part not in classes and not part.startswith("function-"):
            text += f".{part}" if text else part
    return text


def _fields(model: type[pydantic.BaseModel], place: tuple[int | str, ...]) -> list[str]:
    """The fields of the model at this place; empty where it has none of its own."""
    classes: list[type[pydantic.BaseModel]] = [model]
    for part in place:
        if isinstance(part, int):
            continue
        named = [c for c in classes if c.__name__ == part]
        if named:  # a branch of a union
            classes = named
            continue
        found: list[type[pydantic.BaseModel]] = []
        for each in classes:
            for name, info in each.model_fields.items():
                if part in (name, info.alias):
                    found += _models(info.annotation)
        classes = found or classes
    return [info.alias or name for each in classes for name, info in each.model_fields.items()]


def _models(annotation: Any) -> list[type[pydantic.BaseModel]]:
    """The models inside an annotation such as `list[A | B] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return [annotation]
    return [found for inner in getattr(annotation, "__args__", ()) for found in _models(inner)]
