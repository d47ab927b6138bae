"""From a mapping with a ``name`` to an object of a registry of dataclasses."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeVar, get_type_hints

from errors import UserError, nearest

T = TypeVar("T")
_WORDS = {float: "a number", int: "a whole number", bool: "true or false", str: "a name"}


def build(registry: Mapping[str, type[T]], options: Mapping[str, Any], group: str) -> T:
    """``registry[options["name"]]`` made with the remaining options.

    UserError (one line, with the nearest valid name) for an unknown name or option, a value of the wrong type, or a value
    the class itself refuses (ValueError in its ``__post_init__``, which begins with the option's name).
    """
    name = options.get("name")
    if name not in registry:
        raise UserError(f"{group}.name={name} is unknown; {nearest(name, registry)}")
    cls = registry[name]
    types = get_type_hints(cls)
    allowed = {field.name: types[field.name] for field in dataclasses.fields(cls)}
    values = {}
    for key, value in options.items():
        if key == "name":
            continue
        if key not in allowed:
            raise UserError(f"{group}.{key} is not an option of {group}={name}; {nearest(key, allowed)}")
        values[key] = _cast(value, allowed[key], f"{group}.{key}")
    try:
        return cls(**values)
    except ValueError as error:
        raise UserError(f"{group}.{error}") from None


def _cast(value: Any, kind: type, option: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        raise UserError(f"{option}={value!r} must be {_WORDS[kind]}")
    return value
