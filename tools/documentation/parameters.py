"""An extension of griffe that finds the parameters in gpuload's docstrings, for the reference in docs/.

The docstrings describe a parameter in a line `name: what it is`, or `name, other: what they are`, whose continuation is
indented. griffe's parser knows such lines below a head `Args:` only, so the extension moves them there. mkdocs.yml names it.
"""

import re
from collections.abc import Collection
from typing import Any

import griffe

_ENTRY = re.compile(r"(\w+(?:, \w+)*): (.*)")


def with_sections(text: str, names: Collection[str]) -> str:
    """The docstring with its lines about these parameters below a head `Args:`, which takes the place of the first."""
    kept: list[str] = []
    entries: list[str] = []
    place = None
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        found = _ENTRY.match(lines[at])
        if not found or not set(found[1].split(", ")) <= set(names):
            kept.append(lines[at])
            at += 1
            continue
        place = len(kept) if place is None else place
        described = [found[2]]
        at += 1
        while at < len(lines) and lines[at].startswith("    "):
            described.append(lines[at].strip())
            at += 1
        for number, name in enumerate(found[1].split(", ")):
            first = " ".join(described) if number == 0 else f"see `{found[1].split(', ')[0]}`."
            entries.append(f"    {name}: {first}")
    if place is None:
        return text
    return "\n".join([*kept[:place], "", "Args:", *entries, "", *kept[place:]])


class ParametersExtension(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is None or not isinstance(obj, griffe.Class | griffe.Function):
            return
        try:
            names = [parameter.name for parameter in obj.parameters if parameter.name not in ("self", "cls")]
        except (AttributeError, KeyError):
            return
        obj.docstring.value = with_sections(obj.docstring.value, names)
