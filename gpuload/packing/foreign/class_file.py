"""A text file that names classes: the n-th line is class n."""

import re
from pathlib import Path

from gpuload.errors import SourceError, some_of

_NUMBERED = re.compile(r"(\d+)[\s,;:=]+\S")


def check_class_names(path: Path, lines: list[str]) -> tuple[str, ...]:
    """The names, out of the lines of the file without spaces around them.

    Raises:
        SourceError: a line between others is empty, a name comes twice, or the file is of another kind.
    """
    while lines and not lines[-1]:
        lines = lines[:-1]
    if not lines:
        raise SourceError(f"{path}: names no class. --classes takes a text file, a class name in each line")
    if lines[0].startswith(("{", "[")):
        raise SourceError(f"{path}: looks like JSON. --classes takes a text file, a class name in each line")
    if "" in lines:
        raise SourceError(
            f"{path}: line {lines.index('') + 1} is empty, which shifts the numbers of the classes after it. Remove it"
        )
    numbers = [match.group(1) for line in lines if (match := _NUMBERED.match(line))]
    if [int(number) for number in numbers] in (list(range(len(lines))), list(range(1, len(lines) + 1))):
        raise SourceError(
            f"{path}: its lines hold numbers, too, as in {lines[0]!r}. Write names alone, class 0 in the first line"
        )
    twice = sorted({line for line in lines if lines.count(line) > 1})
    if twice:
        raise SourceError(f"{path}: names {some_of(twice)} more than once. Give each class a name of its own")
    return tuple(lines)
