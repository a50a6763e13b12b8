"""Packages that are missing: they are named before anything is done, with a command that brings them from here."""

import gc
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from images import encode, photo, write_files

import gpuload
from gpuload.machine import installed
from gpuload.machine.installed import cuda_extra, fault_of, install_command
from gpuload.output.arrays import make_arrays

ROOT = Path(__file__).parents[1]

# Hides packages from a process and from those that it starts, as if they were not installed.
SITECUSTOMIZE = """
import sys

class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name in {names!r} else self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Hiding, sys.meta_path)
"""


def run_without(names: str, code: str, folder: Path, modules: Path) -> subprocess.CompletedProcess[str]:
    """Runs code in a process that does not find these packages. modules: an empty folder."""
    (modules / "sitecustomize.py").write_text(SITECUSTOMIZE.format(names=names.split()))
    return subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}"],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (modules, ROOT, ROOT / "examples")))},
    )


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, packed: Path) -> Path:
    folder = tmp_path_factory.mktemp("here")
    write_files(folder, {f"photos/{'ab'[n % 2]}/{n}.jpg": encode(photo(n)) for n in range(4)} | {"images.h5": b""})
    (folder / "store.lmdb").mkdir()
    shutil.copytree(packed, folder / "shards")
    return folder


def command(line: str) -> str:
    return f"from gpuload import cli\nsys.exit(cli.main({line.split()!r}))"


LOADER = "import gpuload\ngpuload.DaliIterator('shards', 4, augment=gpuload.Augment(8{}), device='cpu'{})"


DALI_LOADER = LOADER.format(", normalize='image'", ", decoder='dali', output='numpy'")


# Packages, the extra that brings them, a program that needs them, and what its message says of them.
@pytest.mark.parametrize(
    ("missing", "extra", "code", "message"),
    [
        ("h5py", "sources", command("pack images.h5 out"), "images.h5: h5py is not installed"),
        ("lmdb msgpack", "sources", command("pack store.lmdb out"), "lmdb is not installed; msgpack is not installed"),
        ("ray", "ray", command("pack photos out --engine ray"), "--engine ray: ray is not installed"),
        ("torch", "cpu", DALI_LOADER, "normalize='image' and erasing need torch: torch is not installed"),
        ("sklearn", "examples", "import made_up\nmade_up.main(['lmdb', 'out'])", "out: sklearn is not installed"),
    ],
)
def test_what_is_missing_is_named_before_anything_is_done(
    here: Path, tmp_path: Path, missing: str, extra: str, code: str, message: str
) -> None:
    before = sorted(here.rglob("*"))
    done = run_without(missing, code, here, tmp_path)
    remedy = install_command(cuda_extra() or "cpu" if extra == "cpu" else extra)
    assert done.stderr.splitlines()[-1].endswith(f"{message}. `{remedy}` brings it"), done.stderr
    assert done.returncode != 0 and done.stdout == "" and sorted(here.rglob("*")) == before


def test_what_needs_none_of_the_extras_works_without_all_of_them(here: Path, tmp_path: Path) -> None:
    names = "torch simplejpeg nvidia.dali cupy h5py lmdb msgpack ray sklearn tqdm torchvision matplotlib"
    shutil.copytree(here / "photos", tmp_path / "photos")
    done = run_without(
        names,
        "from gpuload import cli\n"
        "for line in ('pack photos plain', 'pack photos smaller --encode jpeg --size 16', 'verify plain/train',\n"
        "             'info plain/train', 'index plain/train/shard-000000.tar --out again'):\n"
        "    assert cli.main(line.split()) == 0, line\n"
        "import gpuload\n"
        "loader = gpuload.DaliIterator('plain/train', 2, augment=gpuload.Augment(8), fields=['label'], output='numpy')\n"
        "assert len(list(loader)) == 2",
        tmp_path,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr


WITHOUT_TORCH = """
import hashlib, gpuload
from gpuload import transforms as T

def load(**options):
    augment = gpuload.Augment(**{'size': 8, **options})
    return gpuload.DaliIterator('shards', 4, augment=augment, device='cpu', decoder='native', output='numpy')

def invert(sample, rng):
    return {**sample, 'image': 255 - sample['image']}

for options in (
    {}, {'transforms': [T.RandAugment(), T.RandomRotation(20)]}, {'crop': gpuload.ScaleJitter(), 'interpolation': 'random'},
    {'size': None, 'crop': gpuload.Resize(8, None, 4), 'transforms': [T.ColorJitter(0.4)]},
    {'transforms': [T.Function(invert), T.RandomInvert(0.5)], 'layout': 'channels_last'},
):
    print(hashlib.sha256(b''.join(images.tobytes() for images, _ in load(**options))).hexdigest())
if 'torch' not in sys.modules:
    for options in ({'transforms': [T.RandomErasing()]}, {'normalize': 'image', 'dtype': 'float16'}):
        try:
            load(**options)
        except gpuload.MissingPackageError as error:
            print(str(error).partition(' is not')[0])
"""


def test_numpys_batches_on_a_cpu_need_no_torch(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are the same with it; what needs torch says so before anything is read."""
    without = run_without("torch nvidia.dali", WITHOUT_TORCH, here, tmp_path)
    assert without.returncode == 0, without.stderr
    monkeypatch.chdir(here)
    importlib.import_module("torch")
    exec(f"import sys\n{WITHOUT_TORCH}", {})
    told = ["RandomErasing: torch", "normalize='image' and dtype='float16': torch"]
    assert without.stdout.splitlines() == [*capsys.readouterr().out.splitlines(), *told]


# While packages are imported, also one within another, there is no collection of garbage, of which they make none.
COLLECTOR = """
import gc
from gpuload.machine.installed import fault_of
fault_of("json")
raise OSError(f"the collector is on: {gc.isenabled()}")
"""


@pytest.mark.parametrize(
    ("package", "code", "reason"),
    [
        ("lacks_another", "import not_there", "(ModuleNotFoundError: No module named 'not_there')"),
        ("fails", COLLECTOR, "(OSError: the collector is on: False)"),
        ("cupy", "raise RuntimeError('no libnvrtc\\nmore')", "(RuntimeError: no libnvrtc)"),
    ],
)
def test_a_broken_package_is_not_called_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: str, code: str, reason: str
) -> None:
    monkeypatch.setattr(installed, "cuda_extra", lambda: "cuda12")
    (tmp_path / f"{package}.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, package, raising=False)
    fault, missing = fault_of(package), fault_of("not_there")
    assert fault is not None and not fault.is_missing and missing is not None and missing.is_missing
    assert fault.reason == f"{package} is installed but cannot be imported {reason}"
    name = "cupy-cuda12x" if package == "cupy" else package
    assert fault.remedy == f"`pip install -U {name}` brings versions that fit"
    assert gc.isenabled() and fault_of("json") is None
    gc.disable()
    with installed.paused_collector():
        pass
    was_off = not gc.isenabled()
    gc.enable()
    assert was_off


def test_what_is_imported_is_not_scanned_again() -> None:
    gc.unfreeze()
    with installed.paused_collector():
        made: list[Any] = [[] for _ in range(20_000)]
    assert any(one is made for one in gc.get_objects(generation=2)) and not gc.get_freeze_count()
    gc.freeze()
    with installed.paused_collector():
        made = [[] for _ in range(20_000)]
    assert gc.get_freeze_count() and not any(one is made for one in gc.get_objects(generation=2))


def test_cupy_is_missed_when_the_loader_is_made(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "cuda_extra", lambda: None)
    monkeypatch.setitem(sys.modules, "cupy", None)
    form = gpuload.Augment(8).form
    message = r"^output='cupy', or batch_transforms on a GPU: cupy is not installed. `pip install -e '\S+\[cuda13\]'`"
    with pytest.raises(gpuload.MissingPackageError, match=message):
        make_arrays("cupy", 0, form)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    arrays = make_arrays("torch", 0, form)
    monkeypatch.setattr("gpuload.loader.build.make_arrays", lambda *_: arrays)
    options: dict[str, Any] = {"augment": gpuload.Augment(8), "device": "cpu"}
    gpuload.DaliIterator(packed, 4, **options).close()
    with pytest.raises(gpuload.MissingPackageError, match=message):
        gpuload.DaliIterator(packed, 4, **options, batch_transforms=[gpuload.batchwise.MixUp()])


def test_every_extra_that_a_message_names_exists() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    extras = re.findall(r"^(\w+) = \[", text.partition("[project.optional-dependencies]")[2].partition("\n[")[0], re.M)
    named = {*installed._EXTRAS.values(), *installed._WITHOUT_GPU.values(), "cuda12", "cuda13", "cpu"}
    assert named <= set(extras)
    for name in installed._DISTRIBUTIONS.values():
        assert all(f'"{name.format(extra)}' in text for extra in ("cuda12", "cuda13"))


def test_the_command_is_for_where_gpuload_came_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert install_command("cpu") == f"pip install -e '{ROOT}[cpu]'"
    monkeypatch.setattr(installed, "__file__", str(tmp_path / "gpuload" / "machine" / "installed.py"))
    assert install_command("cpu") == "pip install 'gpuload[cpu]'"
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "another"\n')  # some packages install theirs
    assert install_command("cpu") == "pip install 'gpuload[cpu]'"
