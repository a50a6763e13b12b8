"""Docstrings list arguments under `Args:` or `Attributes:`, one a line, where the eye and the reference find them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpuload

PACKAGE = Path(gpuload.__file__).parent

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = Function | ast.ClassDef

_SECTION = re.compile(r"^(?:Args|Attributes):\n((?:    .*\n?|\n)*)", re.MULTILINE)
_IN_PROSE = re.compile(r"(?:^|(?<=[.;] ))(`?\w+`?(?:, `?\w+`?)*): \S", re.MULTILINE)
_ENTRY = re.compile(r"^    \*{0,2}(\w+): \S", re.MULTILINE)


def arguments(function: Function, is_method: bool) -> list[str]:
    declared = function.args
    names = [argument.arg for argument in (*declared.posonlyargs, *declared.args)]
    is_static = any(ast.unparse(decorator) == "staticmethod" for decorator in function.decorator_list)
    if is_method and not is_static:
        names = names[1:]
    names += [argument.arg for argument in declared.kwonlyargs]
    return names + [argument.arg for argument in (declared.vararg, declared.kwarg) if argument is not None]


def fields(owner: ast.ClassDef) -> list[str]:
    """The arguments of a class: those of its constructor, or the fields that a dataclass or NamedTuple adds."""
    for member in owner.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            return arguments(member, is_method=True)
    makers = [ast.unparse(node) for node in (*owner.decorator_list, *owner.bases)]
    if not any(re.search(r"\b(dataclass|settings|NamedTuple)\b", maker) for maker in makers):
        return []
    return [
        member.target.id
        for member in owner.body
        if isinstance(member, ast.AnnAssign)
        and isinstance(member.target, ast.Name)
        and not member.target.id.startswith("_")
        and "ClassVar" not in ast.unparse(member.annotation)
        and "init=False" not in ast.unparse(member.value or ast.Constant(None))
    ]


def documented(tree: ast.Module) -> Iterator[tuple[str, str, list[str], bool]]:
    """Name, docstring and arguments of each class and function of a module, and whether it is public."""

    def walk(
        body: list[ast.stmt], path: str, in_class: bool, is_public: bool
    ) -> Iterator[tuple[str, str, list[str], bool]]:
        for node in body:
            if not isinstance(node, Documented):
                continue
            seen = is_public and not node.name.startswith("_")
            is_class = isinstance(node, ast.ClassDef)
            names = fields(node) if isinstance(node, ast.ClassDef) else arguments(node, in_class)
            yield f"{path}{node.name}", ast.get_docstring(node) or "", names, seen
            yield from walk(node.body, f"{path}{node.name}.", is_class, seen and is_class)

    yield from walk(tree.body, "", False, True)


def described_in_prose(text: str) -> set[str]:
    """The words that begin a sentence and have a colon after them, as in "size: of the crop. width, height: in pixels"."""
    return {word.strip("`") for words in _IN_PROSE.findall(text) for word in words.split(", ")}


def faults(source: str) -> list[str]:
    """What is wrong with the docstrings of a module.

    Private functions and classes may leave out arguments; whatever is described is under a heading.
    """
    lines = []
    for name, text, names, is_public in documented(ast.parse(source)):
        prose = _SECTION.sub("", text)
        listed = {entry for section in _SECTION.findall(text) for entry in _ENTRY.findall(section)}
        quoted = [argument for argument in names if f"`{argument}`" in prose]
        in_prose = [argument for argument in names if argument in described_in_prose(prose)]
        missing = [argument for argument in names if argument not in listed]
        if in_prose:
            lines.append(f"{name}: describes {in_prose} in prose")
        elif is_public and (listed or quoted) and missing:
            lines.append(f"{name}: does not list {missing}")
    return lines


@pytest.mark.parametrize("room", sorted({path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py")}))
def test_arguments_are_listed_one_a_line(room: str) -> None:
    paths = [PACKAGE / room] if room.endswith(".py") else sorted((PACKAGE / room).rglob("*.py"))
    assert [f"{path.name}: {line}" for path in paths for line in faults(path.read_text())] == []


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        (
            'def crop(size, overlap):\n    """Crops. size: in pixels. overlap: of two."""',
            "crop: describes ['size', 'overlap'] in",
        ),
        (
            'def crop(width, height):\n    """Crops.\n\n    width, height: in pixels.\n    """',
            "crop: describes ['width', 'height']",
        ),
        ('def _crop(size):\n    """Crops.\n\n    size: in pixels.\n    """', "_crop: describes ['size'] in prose"),
        ('def crop(size):\n    """Crops to `size` pixels."""', "crop: does not list ['size']"),
        ('def crop(a, *b):\n    """Crops.\n\n    Args:\n        a: Pixels.\n    """', "crop: does not list ['b']"),
        (
            'class Crop:\n    """Crops.\n\n    Args:\n        a: It.\n    """\n    def __init__(self, a, b): ...',
            "Crop: does not list ['b']",
        ),
        (
            '@settings\nclass Crop:\n    """Crops.\n\n    a: in pixels.\n    """\n    a: int',
            "Crop: describes ['a'] in prose",
        ),
        (
            'class Crop(NamedTuple):\n    """By `size`."""\n    size: int\n    _kept: int = 0',
            "Crop: does not list ['size']",
        ),
        ('class Crop:\n    @staticmethod\n    def cut(a):\n        """By `a`."""', "Crop.cut: does not list ['a']"),
    ],
)
def test_a_fault_is_found(source: str, fault: str) -> None:
    (line,) = faults(source)
    assert line.startswith(fault)


@pytest.mark.parametrize(
    "source",
    [
        'def crop(size):\n    """Crops. Raises: nothing."""',
        'def _crop(size, times):\n    """Crops.\n\n    Args:\n        size: In pixels.\n    """',
        'def crop(size):\n    """The size: two numbers."""',
        'class Crop:\n    """Crops.\n\n    Args:\n        size: It.\n\n    Attributes:\n        seen: How many.\n    """\n'
        "    def __init__(self, size): ...",
    ],
)
def test_a_sound_docstring_is_accepted(source: str) -> None:
    assert faults(source) == []
