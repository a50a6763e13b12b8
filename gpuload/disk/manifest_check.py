"""Rules for `manifest.json`: every value is checked before it opens, allocates or computes anything."""

import re
from collections.abc import Mapping
from typing import Any

from gpuload.checks import Rule, as_items, as_text, number, optional, several, shown, whole
from gpuload.errors import FormatError
from gpuload.fields.field import Field
from gpuload.fields.registry import kind_of

_MOST_TEXT = 4096
_MOST_SIDE = 2**31 - 1
_NOT_IN_NAMES = re.compile(r"[\\\x00-\x1f\x7f-\x9f]")  # a backslash separates folders on Windows
_URL_PATH = re.compile(r"(?:https?|s3|gs|az|hf)://[^/?#@]+/[^?#]+")  # without a user or a signature
_DRIVE_OR_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")  # of Windows, and of webdataset, as in pipe:


def _as_name(value: Any) -> str:
    name = as_text(value)
    name.encode()  # JSON can hold halves of surrogate pairs, which are no text
    if "\0" in name or len(name) > _MOST_TEXT:
        raise ValueError
    return name


def _as_sha256(value: Any) -> str:
    digest = as_text(value)  # the cache names files by it
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise ValueError
    return digest


def _as_member(value: Any) -> str:
    member = _as_name(value)  # a part of the names in tars that are packed from this set
    if _NOT_IN_NAMES.search(member) or "/" in member:
        raise ValueError
    return member


def _as_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError
    return value


_NAME = Rule(f"a text of up to {_MOST_TEXT:,} characters", _as_name)
_NAMES = optional(Rule("a list of texts", lambda value: tuple(map(_as_name, as_items(value)))))
_SIDE = whole(0, _MOST_SIDE)
_LEVELS = optional(several(number(0, 1, ""), "numbers in 0..1, one for each channel"))
_SHA256 = Rule("64 hexadecimal digits", _as_sha256)
_SHARD: Mapping[str, Rule[Any]] = {
    "name": _NAME,
    "samples": whole(0, 2**40),
    "bytes": whole(0, 2**62),
    "sha256": _SHA256,
}
_FIELD: Mapping[str, Rule[Any]] = {
    "name": _NAME,
    "kind": _NAME,
    "member": Rule("extensions of file names", _as_member),
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
    "index_sha256": optional(_SHA256),
    "index_parts": optional(several(_SHA256, "a list of 64 hexadecimal digits each")),
    "index_offsets": optional(several(whole(0, 2**62), "a list of whole numbers")),
}
# What lies beside the shards: a copy of a set must not let a shard take its place.
_OWN_FILES = ("manifest.json", "index.arrow", "rejected.jsonl", "duplicates.jsonl", "_info.json")
OPTIONAL = ("index_sha256", "index_parts", "index_offsets")  # what older sets lack


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


def shard_name_fault(name: str, may_be_elsewhere: bool) -> str:
    """Why a shard cannot have this name; "" where it can.

    may_be_elsewhere: whether it may be a URL, or lead out of the folder by leading "..", as `gpuload index` names the
    shards that it leaves where they are. All other shards lie below their manifest.
    """
    if _NOT_IN_NAMES.search(name):
        return "has a backslash or a control character"
    if may_be_elsewhere and _URL_PATH.fullmatch(name):
        rest = name.partition("://")[2].split("/")
    else:
        if name.startswith("/") or _DRIVE_OR_SCHEME.match(name):
            return "is not a relative path"
        rest = name.split("/")
        while may_be_elsewhere and rest[:1] == [".."]:
            rest = rest[1:]
    if ".." in rest:
        return "leads out of the folder"
    if not rest or not {"", "."}.isdisjoint(rest):
        return "is not the path of a file"
    if rest[-1] in _OWN_FILES or (not may_be_elsewhere and any(part.startswith(".") for part in rest)):
        return "is a name that gpuload uses for other files"
    return ""


def check_field(field: Field) -> None:
    """Raises FormatError for a field whose kind this version does not know, or whose description is impossible."""
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
