"""The structure of the package: imports only go forward, and importing gpuload is cheap."""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Callable, Set
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

import gpuload

PACKAGE = Path(gpuload.__file__).parent

# The rooms of the package, which are its top-level modules and packages, in the order in which data passes through
# them. The packing half and the loading half depend on the common rooms and not on each other; the commands depend on
# both. A module may import from its own room and from the rooms before it. The lists are complete.
COMMON = [
    "errors",
    "counted",
    "checks",
    "types",
    "lists",
    "machine",
    "store",
    "draws",
    "kernels",
    "headers",
    "formats",
    "pictures",
    "fields",
    "disk",
]
PACKING = ["sources", "packing"]
LOADING = ["monitor", "order", "functions", "transforms", "augment", "read", "decode", "batchwise", "output", "loader"]
COMMANDS = ["decoded_copies", "testing", "doctor", "report", "commands", "cli", "__main__"]

# Large packages, and the only modules that may import them.
OWNERS = {
    "nvidia": {"decode/dali/graph.py"},
    "torch": {f"decode/{name}.py" for name in ("device", "in_torch")}
    | {"output/arrays.py", "functions/torch_draws.py", "transforms/apply.py", "loader/samplers.py"},
    "simplejpeg": {"packing/jpegs.py"},
    "cupy": {"output/arrays.py"},
    "ray": {"packing/ray_engine.py"},
    "obstore": {"store/objects.py"},
    "huggingface_hub": {"store/hub.py"},
    "boto3": {"store/objects.py"},
    "jinja2": {"report/build.py"},
    "nvtx": {"monitor.py"},
}


parse = functools.cache(ast.parse)  # of all modules, for several tests


@functools.cache
def imports(source: str) -> frozenset[str]:
    """Full names of the modules imported anywhere in a source text, except for those under `if TYPE_CHECKING`."""
    nodes = list(ast.walk(parse(source)))
    for node in nodes:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            hidden = {inner for part in node.body for inner in ast.walk(part)}
            nodes = [inner for inner in nodes if inner not in hidden]
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def rooms(root: Path) -> set[str]:
    """Names of the top-level modules and packages."""
    found = {path.relative_to(root).parts[0].removesuffix(".py") for path in root.rglob("*.py")}
    return found - {"__init__"}


def backward(room: str, imported: Set[str]) -> list[str]:
    """Rooms imported by a module of `room` that come after it, or belong to the other half."""
    line = COMMON + PACKING + LOADING + COMMANDS
    if room not in COMMANDS:
        half = PACKING if room in PACKING else LOADING if room in LOADING else []
        line = COMMON + half
    used = {name.split(".")[1] for name in imported if name.startswith("gpuload.")}
    known = set(COMMON + PACKING + LOADING + COMMANDS)
    return sorted((used & known) - set(line[: line.index(room) + 1]))


def own_modules(root: Path) -> dict[str, Path]:
    """Path of each module of the package by its full name; of a package's `__init__.py` by the package's name."""
    parts = {path: ("gpuload", *path.relative_to(root).with_suffix("").parts) for path in root.rglob("*.py")}
    return {".".join(words).removesuffix(".__init__"): path for path, words in parts.items()}


@functools.cache
def module_graph(root: Path) -> dict[str, set[str]]:
    """For each module of the package, the modules of the package that it imports.

    A package stands for its `__init__`. Importing one of its modules does not count as importing the package, although
    Python runs its `__init__`.
    """
    named, graph = own_modules(root), {}
    for name, path in named.items():
        found = imports(path.read_text()) & set(named)
        # `from gpuload.room import module` needs the module, and the room only as far as every module in it does.
        found -= {other.rpartition(".")[0] for other in found if other.rpartition(".")[0] in found}
        graph[name] = found - {name, "gpuload"}
    return graph


def faults(check: Callable[[str, str], Any]) -> dict[str, Any]:
    """What is wrong with modules, by their paths: `check` gets the path and the source."""
    found = {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in PACKAGE.rglob("*.py")}
    assert len(found) > 100
    return {name: wrong for name, source in found.items() if (wrong := check(name, source))}


def test_imports_go_forward() -> None:
    assert rooms(PACKAGE) == set(COMMON + PACKING + LOADING + COMMANDS)

    def check(name: str, source: str) -> list[str]:
        room = name.split("/")[0].removesuffix(".py")
        return backward(room, imports(source)) if room != "__init__" else []  # which imports public names from any room

    assert faults(check) == {}


def test_there_are_no_circular_imports() -> None:
    """Nor within a room, at any depth: there is an order in which every module comes after the modules it imports."""
    assert len(list(TopologicalSorter(module_graph(PACKAGE)).static_order())) > 100


def test_large_packages_have_one_owner() -> None:
    """Which exists."""
    assert {name for names in OWNERS.values() for name in names if not (PACKAGE / name).exists()} == set()

    def check(name: str, source: str) -> set[str]:
        used = {imported.split(".")[0] for imported in imports(source)}
        return {package for package in used & set(OWNERS) if name not in OWNERS[package]}

    assert faults(check) == {}


def test_loggers_are_named_after_their_modules() -> None:
    """Below "gpuload". ruff finds what prints, and calls of the root logger."""

    def check(name: str, source: str) -> set[str]:
        known = {"__name__", ""} if name == "commands/terminal.py" else {"__name__"}
        return set(re.findall(r"getLogger\((.*?)\)", source)) - known

    assert faults(check) == {}


BRANCHES = (ast.If, ast.For, ast.While, ast.ExceptHandler, ast.IfExp, ast.comprehension, ast.Assert, ast.match_case)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
MOST_COMPLEX = 15


def complexity(function: ast.AST) -> int:
    """The cyclomatic complexity of a function, without those of functions inside it."""
    branches = 1
    nodes = list(ast.iter_child_nodes(function))
    while nodes:
        node = nodes.pop()
        branches += isinstance(node, BRANCHES)
        if isinstance(node, ast.BoolOp):
            branches += len(node.values) - 1
        if not isinstance(node, (*FUNCTIONS, ast.Lambda)):
            nodes.extend(ast.iter_child_nodes(node))
    return branches


def tangled(source: str) -> list[str]:
    """The functions that a reader would have to read twice, each with its complexity."""
    functions = [node for node in ast.walk(parse(source)) if isinstance(node, FUNCTIONS)]
    counts = [(node.name, complexity(node)) for node in functions]
    return [f"{name} {count}" for name, count in counts if count > MOST_COMPLEX]


def test_no_function_is_tangled() -> None:
    assert faults(lambda name, source: tangled(source)) == {}


ESCAPE = re.compile(r"# (?:noqa: [A-Z]+\d+|type: ignore\[[a-z-]+\])(.*)")


def unexplained(source: str) -> list[str]:
    """What escapes from ruff or mypy, or catches every error without raising it again, and does not say why."""
    lines = source.splitlines()
    escapes = [line.strip() for line in lines if (match := ESCAPE.search(line)) and not match[1]]
    for node in ast.walk(parse(source)):
        if not isinstance(node, ast.ExceptHandler) or not isinstance(node.type, ast.Name):
            continue
        last = node.body[-1]
        is_raised = isinstance(last, ast.Raise) and last.exc is None
        head = "".join(lines[node.lineno - 1 : node.body[0].lineno - 1])
        if node.type.id in ("Exception", "BaseException") and not is_raised and "#" not in head:
            escapes.append(lines[node.lineno - 1].strip())
    return escapes


def test_each_escape_says_why() -> None:
    assert faults(lambda name, source: unexplained(source)) == {}


def test_the_checks_can_fail(tmp_path: Path) -> None:
    assert unexplained("a = 1  # type: ignore[misc]  # why\nb = 2  # noqa: T201 -- why") == []
    assert unexplained("a = 1  # type: ignore[misc]") == ["a = 1  # type: ignore[misc]"]
    assert unexplained("try:\n pass\nexcept Exception:\n pass") == ["except Exception:"]
    assert unexplained("try:\n pass\nexcept Exception:  # why\n pass\nexcept BaseException:\n raise") == []
    branches = "\n".join(" if x and y:\n  pass" for _ in range(MOST_COMPLEX // 2))
    assert tangled(f"def f():\n{branches}") == []
    assert tangled(f"def f():\n{branches}\n return 1 if x else [y for y in z]") == [f"f {MOST_COMPLEX + 2}"]
    assert backward("order", imports("from gpuload.decode.dali.decoder import DaliDecoder")) == ["decode"]
    assert backward("read", imports("import gpuload.packing.plan")) == ["packing"]
    assert backward("packing", imports("def f():\n from gpuload.order.epoch import EpochOrder")) == ["order"]
    assert backward("read", imports("from gpuload.order.epoch import EpochOrder")) == []
    (tmp_path / "new_room").mkdir()
    (tmp_path / "__init__.py").touch()
    (tmp_path / "new_room" / "one.py").write_text("from gpuload.new_room import two")
    (tmp_path / "new_room" / "two.py").write_text("def f():\n    from gpuload.new_room.one import x")
    assert rooms(tmp_path) == {"new_room"}
    with pytest.raises(CycleError):
        list(TopologicalSorter(module_graph(tmp_path)).static_order())


@pytest.mark.parametrize("module", ["gpuload", "gpuload.cli"])
def test_importing_loads_neither_dali_nor_torch_nor_cupy(module: str) -> None:
    code = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "gpuload" in loaded  # so that the test cannot pass on empty output
    assert {"nvidia", "torch", "cupy", "obstore", "asyncio", "webdataset"}.isdisjoint(loaded)


def test_all_public_names_can_be_imported_without_optional_packages() -> None:
    missing = ["pytest", "torch", "nvidia", "cupy", "h5py", "lmdb", "zarr", "tifffile", "imagecodecs", "obstore"]
    code = f"import sys; sys.modules.update(dict.fromkeys({missing})); from gpuload import *; print(Dataset.__name__)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "Dataset\n"
    )


def test_public_names_are_listed_and_exist() -> None:
    assert sorted(gpuload.__all__) == gpuload.__all__
    assert all(hasattr(gpuload, name) for name in gpuload.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Dataloader'"):
        _ = gpuload.Dataloader


def twice(files: dict[str, str]) -> dict[str, list[str]]:
    """The classes that stand in more than one place, by name: the files. files: sources by path."""
    places: dict[str, list[str]] = {}
    for name, source in files.items():
        for node in ast.walk(parse(source)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name)
    return {name: found for name, found in places.items() if len(found) > 1}


def test_a_class_name_stands_once() -> None:
    """So that a name in a message or in prose says which class is meant."""
    files = {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in PACKAGE.rglob("*.py")}
    assert len(files) > 100
    assert twice(files) == {}
    assert twice({"a.py": "class A: pass", "b.py": "def f():\n    class A: pass"}) == {"A": ["a.py", "b.py"]}
