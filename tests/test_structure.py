"""The way of the data: imports go forward only, and importing gpuload stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import gpuload

PACKAGE = Path(gpuload.__file__).parent

# The stages in the order in which data passes them, with what both halves stand on first. A module may import only
# from stages above its own, or from its own.
COMMON = ["errors", "collector", "draws", "disk"]
PACKING = ["sources", "packing"]
LOADING = [
    *("dataset", "mixture", "order", "mixing", "info", "stream", "reader"),
    *("geometry", "transforms", "torchvision_names", "augment", "schedule", "batches"),
    *("decoder", "masks", "graph", "pipeline", "compiled", "pointers", "jpeg", "decoding"),
    *("resampling", "resizing", "buffers", "finish", "threads", "turbo"),
    *("fields", "blend", "batchwise", "outputs", "ranks", "tuning", "collate", "backend", "progress", "iterator"),
    "tune",
]
# What stands on both halves.
COMMANDS = ["cli", "__main__"]
WITHIN = {
    "disk": ["fields", "tar", "dali_index", "index", "manifest", "timm_info", "__init__"],
    "transforms": [
        *("checks", "steps", "geometry", "color", "erasing", "compose", "policies", "auto"),
        *("noise", "kernels", "apply", "__init__"),
    ],
    "fields": [
        *("spec", "rows", "ragged", "numbers", "classes", "texts", "arrays", "boxes", "bind", "__init__"),
    ],
    "jpeg": [
        "vectors",
        "huffman",
        "blocks",
        "exif",
        "work",
        "frame",
        "part",
        "inverse_dct",
        "scan",
        "colors",
        "rows",
        "decode",
        "__init__",
    ],
    "packing": [
        *(
            "exit_codes",
            "fit",
            "options",
            "jpeg",
            "png",
            "pixels",
            "quick_check",
            "resizer",
            "image",
            "masks",
            "members",
            "packed",
        ),
        *("plan", "note", "shard_file", "shard", "workers", "deaths", "ray_engine", "output", "state", "extend"),
        *("dedup", "prepare", "finish", "packer", "api", "scan", "foreign", "verify", "commands"),
    ],
}
_TORCH_TRANSFORMS = {f"transforms/{name}.py" for name in ("apply", "kernels", "noise")}
OWNERS = {
    "nvidia": {"graph.py"},
    "torch": {"outputs.py", "finish.py", "turbo.py", "packing/resizer.py"} | _TORCH_TRANSFORMS,
    "simplejpeg": {"decoding.py", "packing/quick_check.py", "packing/resizer.py"},
    "numba": {"compiled.py", "pointers.py", "resampling.py"}
    | {f"jpeg/{name}.py" for name in ("inverse_dct", "colors", "decode")},
    "cupy": {"outputs.py"},
    "ray": {"packing/ray_engine.py"},
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports(source: str) -> set[str]:
    """Full names of the modules that a source text imports, wherever in it; those for type checkers alone left out."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def backward(stage: str, imported: set[str]) -> list[str]:
    """Stages imported by a module of `stage` that come after it, or belong to the other half."""
    stages = {name.split(".")[1] for name in imported if name.startswith("gpuload.")} & set(
        COMMON + PACKING + LOADING + COMMANDS
    )
    if stage in COMMANDS:
        line = COMMON + PACKING + LOADING + COMMANDS
    else:
        line = COMMON + (PACKING if stage in PACKING else LOADING if stage in LOADING else [])
    allowed = line[: line.index(stage) + 1]
    return sorted(stages - set(allowed))


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_go_forward(path: Path) -> None:
    stage = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if stage == "__init__":
        return  # the public names, from any stage
    assert stage in COMMON + PACKING + LOADING + COMMANDS, f"give the new module {stage} its place in the line"
    imported = imports(path.read_text())
    assert backward(stage, imported) == []
    if stage in WITHIN and path.stem in WITHIN[stage]:
        line = WITHIN[stage]
        siblings = {name.split(".")[2] for name in imported if name.startswith(f"gpuload.{stage}.")} & set(line)
        assert siblings <= set(line[: line.index(path.stem)])


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_large_packages_have_one_owner(path: Path) -> None:
    name = path.relative_to(PACKAGE).as_posix()
    used = {imported.split(".")[0] for imported in imports(path.read_text())}
    assert {package for package in used & set(OWNERS) if name not in OWNERS[package]} == set()


def test_the_check_can_fail() -> None:
    assert backward("order", imports("from gpuload.pipeline import DaliDecoder")) == ["pipeline"]
    assert backward("reader", imports("import gpuload.packing.plan")) == ["packing"]
    assert backward("packing", imports("def f():\n from gpuload.dataset import Dataset")) == ["dataset"]
    assert backward("reader", imports("from gpuload.order import EpochOrder")) == []


@pytest.mark.parametrize("module", ["gpuload", "gpuload.cli"])
def test_importing_loads_neither_dali_nor_torch_nor_cupy(module: str) -> None:
    code = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "gpuload" in loaded  # so that the test cannot pass on nothing
    assert {"nvidia", "torch", "cupy", "numba"}.isdisjoint(loaded)


def test_public_names_are_listed_and_exist() -> None:
    assert sorted(gpuload.__all__) == gpuload.__all__
    assert all(hasattr(gpuload, name) for name in gpuload.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Dataloader'"):
        _ = gpuload.Dataloader
