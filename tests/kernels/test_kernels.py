"""The libraries of kernels: which one is loaded, that all of them give the same results, and what they are made from."""

import ast
import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import build_kernels
import numpy as np
import pytest
from kernels import fingerprint

import gpuload
from gpuload.kernels import loading, sources, structs
from gpuload.kernels.sources import SOURCES, TARGETS
from gpuload.transforms.ops import ARGS, MAP_ARGS, Op

ROOT = Path(__file__).parents[2]
SCRIPT = Path(fingerprint.__file__)

# What all libraries make of the same input. Another result is another pixel, so a change has a line in the changelog. (The
# JPEGs are Pillow's, of any version: their pixels are compared with libjpeg-turbo's elsewhere.)
GOLDEN = {"resize_results": "8cec4dea38be8b99", "transform_results": "f3d4120f5d615b28"}


@pytest.fixture(scope="module")
def expected() -> dict[str, str]:
    return fingerprint.fingerprint()


def test_golden_results(expected: dict[str, str]) -> None:
    assert {name: expected[name] for name in GOLDEN} == GOLDEN


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests"), str(ROOT / "benchmarks"), str(ROOT / "tools")])
    variables = {**os.environ, "PYTHONPATH": paths, **environment}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables)


def level() -> int:
    return int(loading.load(TARGETS[2].file).processor_level())


@pytest.mark.skipif(sys.platform != "linux" or os.uname().machine != "x86_64", reason="the levels are x86-64's")
@pytest.mark.parametrize("target", TARGETS[:3], ids=lambda target: target.cpu)
def test_each_library_gives_the_same_results(target: sources.BuildTarget, expected: dict[str, str]) -> None:
    if target.level > level():
        pytest.skip(f"this processor has the level {level()}")
    done = run("from kernels.fingerprint import fingerprint; print(fingerprint())", GPULOAD_KERNELS=target.cpu)
    assert ast.literal_eval(done.stdout) == expected, done.stderr


def test_a_debuggers_library_gives_the_same_results(tmp_path: Path, expected: dict[str, str]) -> None:
    """In which undefined behaviour ends the process."""
    assert build_kernels.main(["--debug", str(tmp_path / "debug.so")]) == 0
    code = "from kernels.fingerprint import fingerprint; print(fingerprint())"
    done = run(code, GPULOAD_KERNELS=str(tmp_path / "debug.so"))
    assert done.returncode == 0 and ast.literal_eval(done.stdout) == expected, done.stderr


def test_nothing_else_than_a_c_library_is_needed() -> None:
    """So that a wheel serves every Python, on every Linux with glibc from 2.17 on."""
    for target in sources.targets_of(os.uname().machine):
        said = subprocess.run(["objdump", "-T", str(target.file)], capture_output=True, text=True)
        if said.returncode:
            pytest.skip("objdump is not installed")
        needed = set(re.findall(r"\*UND\*.*?(\w+)$", said.stdout, re.M))
        assert needed and not {name for name in needed if name.startswith(("Py", "_Py", "NRT", "numba"))}
        versions = {tuple(map(int, text.split("."))) for text in re.findall(r"GLIBC_([\d.]+)", said.stdout)}
        assert max(versions) <= tuple(map(int, sources.GLIBC.split(".")))


def test_a_library_that_is_older_than_its_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    path = loading.library_file()
    loading.load.cache_clear()
    monkeypatch.setattr(loading, "stamp_of_sources", lambda: "another")
    with pytest.raises(
        gpuload.MissingPackageError, match="are older than their sources. Build them: python tools/build"
    ):
        loading.load(path)
    loading.load.cache_clear()


@pytest.mark.parametrize(
    ("stamp", "remedy"), [("x", "Build them: python tools/build_kernels"), ("", "Install gpuload anew")]
)
def test_a_library_that_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stamp: str, remedy: str) -> None:
    monkeypatch.setattr(loading, "stamp_of_sources", lambda: stamp)
    with pytest.raises(gpuload.MissingPackageError, match=f"kernels cannot be loaded: .*{remedy}"):
        loading.load(tmp_path / "none.so")


@pytest.mark.parametrize(
    ("machine", "of_processor", "wanted", "expected"),
    [
        ("x86_64", 4, "", "x86_64_v4"),
        ("x86_64", 3, "", "x86_64_v3"),
        ("x86_64", 2, "", "x86_64_v2"),
        ("x86_64", 4, "x86_64_v2", "x86_64_v2"),
        ("x86_64", 1, "", "this one has the level 1"),
        ("aarch64", 0, "", "aarch64"),
        ("x86_64", 4, "aarch64", "not a library for this machine. Expected one of x86_64_v4, x86_64_v3, x86_64_v2, or"),
        ("riscv64", 0, "", "has kernels for x86_64 and aarch64, and this machine is riscv64"),
    ],
)
def test_the_best_library_is_chosen(
    monkeypatch: pytest.MonkeyPatch, machine: str, of_processor: int, wanted: str, expected: str
) -> None:
    class Loaded:
        @staticmethod
        def processor_level() -> int:
            return of_processor

    monkeypatch.setenv(loading.CHOICE, wanted)
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(loading, "load", lambda path: Loaded)
    loading.library_file.cache_clear()
    try:
        if " " in expected:
            with pytest.raises(gpuload.MissingPackageError, match=expected):
                loading.library_file()
        else:
            assert loading.library_file().stem == expected
    finally:
        loading.library_file.cache_clear()


def fields_in_c(name: str) -> list[str]:
    """The names of a structure's fields in the headers."""
    text = "\n".join(path.read_text() for path in [*SOURCES.glob("*.h"), *SOURCES.glob("*.c")])
    text = re.sub(r"//[^\n]*", "", text)
    [body] = re.findall(rf"typedef struct \{{([^}}]*)\}} {name};", text)
    body = re.sub(r"int64_t \(\*(\w+)\)\([^)]*\)", r"void *\1", body)
    return [
        field.strip(" *").split(" ")[-1].strip("*")
        for line in body.split(";")
        for field in line.split(",")
        if field.strip()
    ]


STRUCTS = [value for value in vars(structs).values() if isinstance(value, type) and issubclass(value, ctypes.Structure)]


@pytest.mark.parametrize(
    "struct", [one for one in STRUCTS if one.__module__ == structs.__name__], ids=lambda one: one.__name__
)
def test_structures_have_the_fields_of_their_headers(struct: Any) -> None:
    assert [name for name, *_ in struct._fields_] == fields_in_c(struct.__name__)
    assert all(ctypes.sizeof(kind) % 8 == 0 for _, kind in struct._fields_)


def test_pictures_have_the_fields_of_their_header() -> None:
    assert list(structs.PICTURE.names or ()) == fields_in_c("Picture")
    assert structs.PICTURE.itemsize == 8 * len(structs.PICTURE)


def test_the_codes_of_operations_are_the_same() -> None:
    text = (SOURCES / "operations.h").read_text()
    [names] = re.findall(r"enum Op \{([^}]*)\}", text)
    assert [name.strip() for name in names.split(",") if name.strip()] == [*(op.name for op in Op), "OPS"]
    assert (
        max(ctypes.sizeof(one) for one in (structs.ResizeArguments, structs.CropArguments)) <= 256
    )  # MOST_ARGUMENT_BYTES
    assert f"STEP_NUMBERS = {ARGS}," in text and f"MATRIX_NUMBERS = {MAP_ARGS}," in text


def test_every_function_is_declared_and_exists() -> None:
    text = "\n".join(path.read_text() for path in [*SOURCES.glob("*.h"), *SOURCES.glob("*.c")])
    exported = set(re.findall(r"^EXPORT [^;{]*?(\w+)\(", text, re.M)) - {"kernel_stamp"}
    assert exported == set(loading._FUNCTIONS)


def test_kernels_run_without_pythons_lock() -> None:
    assert type(loading.library()) is ctypes.CDLL  # PyDLL would hold it


def test_memory_that_is_missing_is_an_error() -> None:
    """Of an output as large as nobody has."""
    from gpuload.decode.native.cuts import resample
    from gpuload.decode.native.values import PixelTarget

    image = np.zeros((8, 8, 3), np.uint8)
    picture = np.array([(image.ctypes.data, 8, 8, 24, 0, 0, 1)], structs.PICTURE)
    target = PixelTarget(np.zeros((1, 3, 4, 4), np.float32), np.zeros(3, np.float32), np.ones(3, np.float32))
    whole = np.array([[0, 0, 8, 8]])
    step = resample(picture, whole, whole.astype(float), np.zeros((1, 2), np.bool_), False, target)
    step.arguments.output.height = 1 << 58  # type: ignore[attr-defined]
    with pytest.raises(MemoryError):
        step(0, 1)
