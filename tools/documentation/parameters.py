"""An extension of griffe that finds the parameters in gpuload's docstrings, for the reference in docs/.

The docstrings describe a parameter in a line `name: what it is`, or `name, other: what they are`, whose continuation is
indented. griffe's parser knows such lines only below the head `Args:`, or `Attributes:` for the fields of a NamedTuple;
the extension moves them there. mkdocs.yml names it.
"""

import re
from collections.abc import Collection, Iterator
from typing import Any

import griffe

_ENTRY = re.compile(r"(\w+(?:, \w+)*): (.*)")
# A further entry in the same line, after the end of a sentence.
_NEXT = re.compile(r"(?<=\.) (\w+(?:, \w+)*): ")


def with_sections(text: str, names: Collection[str], head: str = "Args") -> str:
    """The docstring with its lines about these parameters below `head`, which takes the place of the first of them."""
    kept: list[str] = []
    entries: list[str] = []
    place = None
    lines = text.splitlines()
    line_number = 0
    while line_number < len(lines):
        entry = _ENTRY.match(lines[line_number])
        if not entry or not set(entry[1].split(", ")) <= set(names):
            kept.append(lines[line_number])
            line_number += 1
            continue
        place = len(kept) if place is None else place
        described = [entry[2]]
        line_number += 1
        while line_number < len(lines) and lines[line_number].startswith("    "):
            described.append(lines[line_number].strip())
            line_number += 1
        for several, description in _split(entry[1], " ".join(described), names):
            for number, name in enumerate(several):
                entries.append(
                    f"    {name}: {description if number == 0 else f'see `{several[0]}`.'}"
                )
    if place is None:
        return text
    return "\n".join([*kept[:place], "", f"{head}:", *entries, "", *kept[place:]])


def _split(
    first: str, text: str, names: Collection[str]
) -> Iterator[tuple[list[str], str]]:
    """The entries in a text that begins with that of `first`: names, and what they are."""
    parts = _NEXT.split(text)
    several = first.split(", ")
    description = parts[0]
    for more, rest in zip(parts[1::2], parts[2::2], strict=True):
        if set(more.split(", ")) <= set(names):
            yield several, description
            several = more.split(", ")
            description = rest
        else:
            description += f" {more}: {rest}"
    yield several, description


class ParametersExtension(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is None or not isinstance(obj, griffe.Class | griffe.Function):
            return
        try:
            head = "Args"
            names = {parameter.name.lstrip("*") for parameter in obj.parameters} - {
                "self",
                "cls",
            }
        except (AttributeError, KeyError):
            names = set()
        text = obj.docstring.value
        # A NamedTuple, or a dataclass made by `checks.settings`, whose signature griffe does not know.
        if not names and isinstance(obj, griffe.Class):
            names = set(obj.attributes)
            head = "Attributes"
            text = re.sub(r"^Args:$", f"{head}:", text, flags=re.MULTILINE)
        obj.docstring.value = with_sections(text, names, head)
