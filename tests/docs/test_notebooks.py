"""examples/notebooks: they are what their text says, and each of them runs from beginning to end."""

import importlib
import json
import os
import runpy
from pathlib import Path
from typing import Any

import pytest
from snippets import ROOT

FOLDER = ROOT / "examples" / "notebooks"
IN_JUPYTER = "quickstart.ipynb"
NAMES = sorted(path.name for path in FOLDER.glob("*.ipynb"))


def test_they_are_what_the_script_makes() -> None:
    made = runpy.run_path(str(FOLDER / "make.py"))["texts"]()
    assert sorted(made) == NAMES and len(NAMES) == 4
    for name, text in made.items():
        assert (FOLDER / name).read_text() == text, "run `python examples/notebooks/make.py`"
        assert all(not cell.get("outputs") for cell in json.loads(text)["cells"])


@pytest.mark.parametrize("name", [name for name in NAMES if name != IN_JUPYTER])
def test_it_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cell after cell, without a kernel, whose start takes longer."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(json.loads((FOLDER / name).read_text())["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{name}[{number}]", "exec"), names)


@pytest.mark.filterwarnings("ignore:Jupyter is migrating its paths:DeprecationWarning")
def test_one_runs_in_jupyter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = nbformat.read(FOLDER / IN_JUPYTER, as_version=4)
    nbformat.validate(notebook)
    resources = {"metadata": {"path": str(tmp_path)}}
    # Not by ports, which Jupyter looks for before its kernel takes them: another process may take one meanwhile. Files
    # lie in the current folder, which is the kernel's, too.
    monkeypatch.chdir(tmp_path)
    files = importlib.import_module("traitlets.config").Config(KernelManager={"transport": "ipc"})
    options = {"timeout": 800, "startup_timeout": 800, "resources": resources, "shutdown_kernel": "immediate"}
    nbclient.NotebookClient(notebook, config=files, **options).execute()
    run = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in run] == list(range(1, len(run) + 1))
