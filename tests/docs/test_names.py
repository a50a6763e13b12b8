"""What the pages, the design and docstrings name in backticks exists: modules, files of the repository, public names."""

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest
from snippets import PAGES, ROOT

import gpuload

MODULES = sorted((ROOT / "gpuload").rglob("*.py"))
TEXTS = [*PAGES, *sorted((ROOT / "docs").glob("*/*.md")), ROOT / "README.md", ROOT / "gpuload" / "DESIGN.md"]
# Folders of the repository, and rooms of the package, with which paths in texts begin.
ROOTS = ("gpuload", "tests", "tools", "benchmarks", "examples", "docs")
ROOMS = {path.name for path in (ROOT / "gpuload").iterdir() if path.is_dir()}
# In backticks, but for what a text says to be of a past commit.
_WORD = re.compile(r"(?<!`)`([^`\n]+)`(?!`| of [0-9a-f]{7})")
_DOTTED = re.compile(r"gpuload(?:\.\w+)+")
_PATH = re.compile(r"(?:[\w-]+/)+[\w.-]+\.(?:py|sh|md|c|h|toml|json)")
GROUPS = {"gpuload.sources", "gpuload.kinds", "gpuload.stores"}  # of entry points
_FILE = re.compile(r"[\w-]+\.(?:py|sh|c|h)")
# What was removed; and what an experiment added.
PAST = {"docs/lab/cut.md", "docs/lab/project.md"}


def words() -> Iterator[tuple[str, str]]:
    """Where something stands, and what stands in backticks there."""
    for page in TEXTS:
        name = str(page.relative_to(ROOT))
        if name not in PAST:
            yield from ((name, word) for word in _WORD.findall(page.read_text()))
    for module in MODULES:
        name = str(module.relative_to(ROOT))
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield from ((name, word) for word in _WORD.findall(ast.get_docstring(node) or ""))


@cache
def exists(dotted: str) -> bool:
    """Whether this names a module, or what one binds; what follows that name, as a method, is not looked for."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        if (module := _module(".".join(parts[:count]))) is not None:
            return _has(module, parts[count:])
    return False


def _module(name: str) -> ast.Module | None:
    base = ROOT.joinpath(*name.split("."))
    path = next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.exists()), None)
    return None if path is None else ast.parse(path.read_text())


def _has(module: ast.Module, names: list[str]) -> bool:
    if not names:
        return True
    return names[0] in gpuload.__all__ or any(names[0] in _bound(node) for node in module.body)


def _bound(node: ast.stmt) -> set[str]:
    """The names that a statement of a module binds."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {node.name}
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} | {
        (alias.asname or alias.name).rpartition(".")[2]
        for part in ast.walk(node)
        if isinstance(part, ast.Import | ast.ImportFrom)
        for alias in part.names
    }


def dead(place: str, word: str) -> bool:
    """Whether this names what there should be, and is not."""
    if match := _DOTTED.match(word):
        return match[0] not in GROUPS and not exists(match[0])
    if _FILE.fullmatch(word) and (place.startswith("docs/lab/") or place.endswith("DESIGN.md")):
        return word not in file_names()
    if _PATH.fullmatch(word) is None:
        return False
    first = word.partition("/")[0]
    folder = (ROOT / place).parent
    places = [ROOT, ROOT / "gpuload", folder, folder / "gpuload"]
    return first in {*ROOTS, *ROOMS} and not any((base / word).exists() for base in places)


@cache
def file_names() -> set[str]:
    """The names, without folders, of the files that ROOTS hold."""
    return {path.name for root in ROOTS for path in (ROOT / root).rglob("*.*")}


def test_what_is_named_exists() -> None:
    assert sorted({(place, word) for place, word in words() if dead(place, word)}) == []


@pytest.mark.parametrize(
    "word",
    ["gpuload.packing.nowhere", "gpuload.Augmentation", "tools/none.py", "packing/none.py", "tests/none/test.py"],
)
def test_a_dead_name_is_found(word: str) -> None:
    assert dead("README.md", word)


def test_a_dead_file_is_found_where_the_package_is_spoken_of() -> None:
    assert dead("docs/lab/decode.md", "resample.py")
    assert not dead("docs/lab/decode.md", "runner.py")
    assert not dead("README.md", "train.py")  # the reader's own


# Where other software is spoken of, in its own words.
_OF_OTHERS = {"docs/coming-from.md", "docs/packing.md", "docs/lab/cut.md", "docs/format.md"}
_NAMES = re.compile(r"dataset card|TensorFlow Datasets|Hugging Face datasets|DataLoader's dataset", re.I)


def prose() -> Iterator[tuple[str, str]]:
    """Texts and docstrings without code, addresses and names of other software."""
    for page in TEXTS:
        name = str(page.relative_to(ROOT))
        if name not in _OF_OTHERS:
            yield name, page.read_text().partition("\n## Words\n")[0]
    for module in MODULES:
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield str(module.relative_to(ROOT)), ast.get_docstring(node) or ""


def plain(text: str) -> str:
    text = re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.S)
    return _NAMES.sub(
        "", re.sub(r"`[^`]*`|\"[^\"]*\"|\]\([^)]*\)|^:::.*|^ .*=.*$|^\s*\w+: |\S+[=(/]\S*", "", text, flags=re.M)
    )


def test_one_word_for_one_thing() -> None:
    """The glossary has at most 15 words, and no text uses what it says not to."""
    page = (ROOT / "docs" / "concepts.md").read_text().partition("\n## Words\n")[2]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| ")
    ]
    words = {row[0]: row[2].split(", ") for row in rows[1:]}
    assert 10 <= len(words) <= 15
    others = [other for row in words.values() for other in row]
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, others))})s?\b")
    assert pattern.search("a dataset") and pattern.search("two data points")  # it can fail
    used = [(name, found[0]) for name, text in prose() for found in pattern.finditer(plain(text))]
    assert not used
