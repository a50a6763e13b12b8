"""What a `manifest.json` may hold: every value is checked before anything is opened, allocated or computed by it."""

import re
from collections.abc import Mapping
from typing import Any

from gpuload.checks import Rule, as_items, as_text, number, optional, several, shown, whole
from gpuload.errors import FormatError
from gpuload.fields.field import Field
from gpuload.fields.registry import kind_of

_MOST_TEXT = 4096
_MOST_SIDE = 2**31 - 1


def _as_name(value: Any) -> str:
    name = as_text(value)
    name.encode()  # JSON can hold halves of surrogate pairs, which are no text
    if "\0" in name or len(name) > _MOST_TEXT:
        raise ValueError
    return name


def _as_sha256(value: Any) -> str:
    digest = as_text(value)
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise ValueError
    return digest


def _as_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError
    return value


_NAME = Rule(f"a text of up to {_MOST_TEXT:,} characters", _as_name)
_NAMES = optional(Rule("a list of texts", lambda value: tuple(map(_as_name, as_items(value)))))
_SIDE = whole(0, _MOST_SIDE)
_LEVELS = optional(several(number(0, 1, ""), "numbers in 0..1, one for each channel"))
_SHARD: Mapping[str, Rule[Any]] = {"name": _NAME, "samples": whole(0, 2**40), "bytes": whole(0, 2**62), "sha256": _NAME}
_FIELD: Mapping[str, Rule[Any]] = {
    "name": _NAME,
    "kind": _NAME,
    "member": _NAME,
    "classes": _NAMES,
    "size": whole(0, 1_000_000),
    "dtype": optional(_NAME),
}
_SET: Mapping[str, Rule[Any]] = {
    "shards": Rule("a list", as_items),
    "fields": Rule("a list", as_items),
    "classes": _NAMES,
    "width": _SIDE,
    "height": _SIDE,
    "image_bytes": whole(0, 2**62),
    "mean": _LEVELS,
    "std": _LEVELS,
    "pixels_from": whole(0, 2**62),
    "packing": Rule("an object", _as_object),
    "index_sha256": optional(Rule("64 hexadecimal digits", _as_sha256)),
    "index_parts": optional(
        Rule("a list of 64 hexadecimal digits each", lambda value: tuple(map(_as_sha256, as_items(value))))
    ),
}
OPTIONAL = ("index_sha256", "index_parts")  # what older sets lack


def checked_values(found: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a manifest in Python's types; "shards" and "fields" are lists of dicts of these.

    Raises:
        ValueError: one is missing, or is not of its type or in its range.
    """
    values = _checked("", found, _SET)
    values["shards"] = [_checked(f"shards[{n}].", one, _SHARD) for n, one in enumerate(values["shards"])]
    values["fields"] = [_checked(f"fields[{n}].", one, _FIELD) for n, one in enumerate(values["fields"])]
    for shard in values["shards"]:
        if 512 * shard["samples"] > shard["bytes"]:  # a member's header alone takes that
            raise ValueError(f"{shard['name']!r} cannot hold {shard['samples']:,} samples in {shard['bytes']:,} bytes")
    return values


def check_field(field: Field) -> None:
    """Raises FormatError where this version of gpuload does not know the kind of a field, or where it cannot be so."""
    if fault := kind_of(field).field_fault(field):
        raise FormatError(f"field {field.name!r} of kind {field.kind!r}: {fault}. Copy the folder again")


def _checked(where: str, found: Any, rules: Mapping[str, Rule[Any]]) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ValueError(f"{where.rstrip('.')} is {shown(found)}")
    values = {}
    for name, rule in rules.items():
        if name not in found and rules is not _FIELD and name not in OPTIONAL:
            raise ValueError(f"{where}{name} is missing")
        if name in found:
            try:
                values[name] = rule.read(found[name])
            except (TypeError, ValueError, OverflowError):
                raise ValueError(f"{where}{name} is {shown(found[name])}, expected {rule.expected}") from None
    return values
