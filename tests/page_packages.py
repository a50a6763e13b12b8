"""Packages that pages of the documentation show whole, installed as a reader would install them."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest
from snippets import ROOT, blocks

Run = Callable[..., subprocess.CompletedProcess[str]]


class PagePackage:
    """The package of a page: its module, the module's test suite and its pyproject.toml, in this order.

    page: in docs/. module: the file that the program is written to.
    """

    def __init__(self, page: str, module: str) -> None:
        parts = blocks((ROOT / "docs" / page).read_text())
        self.module = module
        self.program, self.suite = (block.text for block in parts if block.language == "python")
        (self.project,) = (block.text for block in parts if block.language == "toml")

    @property
    def code_lines(self) -> int:
        return len([line for line in self.program.splitlines() if line.strip()])

    def install(self, folders: pytest.TempPathFactory) -> Path:
        """A folder with the package, as pip installs it."""
        package, target = (folders.mktemp(name) for name in ("package", "installed"))
        (package / self.module).write_text(self.program)
        (package / "pyproject.toml").write_text(self.project)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
        subprocess.run([*pip, "--target", str(target), str(package)], check=True, cwd=package)
        return target


def python_with(installed: Path, folder: Path) -> Run:
    """Runs Python in a folder, with what is installed in another."""
    paths = os.pathsep.join([str(installed), str(ROOT), *sys.path])

    def python(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, *map(str, arguments)]
        environment = {**os.environ, "PYTHONPATH": paths}
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return python


def suites_run(run: Run, folder: Path, suites: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Runs test suites, given by the names of their modules, in one process.

    Returns:
        Of each class, such as "test_rig.TestRig", the outcomes of its tests by name: "passed", "failed" or "skipped".
    """
    for name, suite in suites.items():
        (folder / f"{name}.py").write_text(suite)
    record = folder / "outcomes.xml"
    paths = [folder / f"{name}.py" for name in suites]
    run("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", folder, "--junitxml", record, *paths, code=1)
    words = {"failure": "failed", "error": "failed", "skipped": "skipped"}
    outcomes: dict[str, dict[str, str]] = {}
    for case in ElementTree.parse(record).iter("testcase"):
        marks = [words[child.tag] for child in case if child.tag in words]
        outcomes.setdefault(case.attrib["classname"], {})[case.attrib["name"]] = marks[0] if marks else "passed"
    return outcomes


def failed(outcomes: Mapping[str, str]) -> list[str]:
    return [name for name, outcome in outcomes.items() if outcome == "failed"]
