"""Which decoder is taken, and what is said where its packages cannot be used."""

import ctypes
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gpuload
from gpuload.decode import open as opening
from gpuload.machine.installed import cuda_extra
from gpuload.machine.ranks import Ranks

CPU = ("auto", "cpu", Ranks())
BROKEN_NUMBA = 'raise ImportError("Numba needs NumPy 2.2 or less. Got NumPy 2.5.")'
REASON = "numba is installed but cannot be imported (ImportError: Numba needs NumPy 2.2 or less. Got NumPy 2.5.)"


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuload.machine.installed.cuda_extra", lambda: None)


def run_alone(packed: Path, code: str, path: Path | None = None, **environment: str) -> tuple[list[str], list[str]]:
    """What a new process prints and logs. `make(**options)` makes a loader. path: of modules that come first."""
    start = (
        "import logging, sys, gpuload\n"
        "logging.basicConfig(format='%(levelname)s %(message)s')\n"
        f"make = lambda **options: gpuload.DaliIterator({str(packed)!r}, 8, augment=gpuload.Augment(12), **options)\n"
    )
    paths = os.pathsep.join(filter(None, [path and str(path), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", start + code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr.splitlines()


def test_auto_is_the_faster_decoder_that_is_installed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gpuload")
    assert opening.choose_backend(*CPU) == ("native", None)
    for package in ("nvidia.dali", "simplejpeg", "numba"):
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, package, None)
            is_dalis = package == "nvidia.dali"
            assert opening.choose_backend(*CPU) == ("native" if is_dalis else "dali", None)
        assert caplog.messages == ([] if is_dalis else [f"decoder='dali' is used: {package} is not installed"])
        caplog.clear()


@pytest.mark.parametrize(
    ("package", "decoder", "device", "driver", "message"),
    [
        (
            "numba",
            "native",
            "cpu",
            None,
            r"decoder='native': numba is not installed. `pip install -e '\S+\[cpu\]'` brings",
        ),
        ("simplejpeg", "native", "cpu", None, r"simplejpeg is not installed. `pip install -e '\S+\[cpu\]'` brings it"),
        ("nvidia.dali", "dali", "cpu", None, r"nvidia.dali is not installed. `pip install -e '\S+\[dali\]'` brings it"),
        ("numba", "native", "cpu", "cuda12", r"numba is not installed. `pip install -e '\S+\[cuda12\]'`"),
        ("nvidia.dali", "dali", "cpu", "cuda13", r"nvidia.dali is not installed. `pip install -e '\S+\[cuda13\]'`"),
        ("nvidia.dali", "auto", "cuda", "cuda12", r"nvidia.dali is not installed. `pip install -e '\S+\[cuda12\]'`"),
        ("nvidia.dali", "auto", "cuda", None, "device='cuda'.*no"),  # what is missing is the GPU
        ("nvidia.dali", "dali", "cuda:1", None, "device='cuda:1'.*no"),
    ],
)
def test_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, package: str, decoder: Any, device: str, driver: str | None, message: str
) -> None:
    monkeypatch.setattr("gpuload.machine.installed.cuda_extra", lambda: driver)
    monkeypatch.setitem(sys.modules, package, None)
    error = gpuload.DeviceError if "device=" in message else gpuload.MissingPackageError
    with pytest.raises(error, match=message):
        opening.choose_backend(decoder, device, Ranks())


def test_the_drivers_extra_is_read_from_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    class Driver:
        def __init__(self, version: int, error: int) -> None:
            self.version, self.error = version, error

        def cuDriverGetVersion(self, pointer: Any) -> int:  # noqa: N802
            pointer._obj.value = self.version
            return self.error

    for version, error, extra in (
        (12_080, 0, "cuda12"),
        (13_000, 0, "cuda13"),
        (13_010, 0, "cuda13"),
        (0, 3, "cuda13"),
    ):
        driver = Driver(version, error)
        monkeypatch.setattr(ctypes, "CDLL", lambda name, driver=driver: driver)
        assert cuda_extra() == extra

    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert cuda_extra() is None


@pytest.mark.usefixtures("no_driver")
def test_where_neither_can_be_used_both_reasons_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("numba", "nvidia.dali"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        gpuload.MissingPackageError,
        match=r"no decoder can be used. 'native': numba is not installed; 'dali': nvidia.dali is not installed. `pip install -e '\S+\[cpu\]'` brings it",
    ):
        opening.choose_backend(*CPU)
    assert opening.choose_backend(*CPU, decodes=False) == ("native", None)


def test_a_gpu_machine_without_dali_says_that_the_cpu_decodes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gpuload")
    monkeypatch.setattr(opening, "has_driver", lambda: True)
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    assert opening.choose_backend("auto", "auto", Ranks()) == ("native", None)
    assert caplog.messages == ["the CPU decodes, although there is an NVIDIA driver: nvidia.dali is not installed"]


TRY = """
loader = make(device='cpu')
print(loader.decoder, len(next(iter(loader))[0]))
for options in ({'decoder': 'native'}, {}):
    try: make(device='cpu', **options)
    except gpuload.MissingPackageError as error: print(error)
    sys.modules['nvidia.dali'] = None
"""


@pytest.mark.parametrize(
    ("reason", "remedy", "environment"),
    [
        (REASON, "`pip install -U numba` brings ", {}),
        ("NUMBA_DISABLE_JIT disables numba", "Unset it", {"NUMBA_DISABLE_JIT": "1"}),
    ],
)
def test_numba_that_does_not_work(
    packed: Path, tmp_path: Path, reason: str, remedy: str, environment: dict[str, str]
) -> None:
    if not environment:
        (tmp_path / "numba").mkdir()
        (tmp_path / "numba" / "__init__.py").write_text(BROKEN_NUMBA)
    said, logged = run_alone(packed, TRY, tmp_path, **environment)
    assert said[0] == "dali 8" and len(said) == 3
    assert logged == [f"WARNING decoder='dali' is used: {reason}"]
    assert said[1].startswith(f"decoder='native': {reason}. {remedy}")
    assert said[2].startswith(f"decoder='auto': no decoder can be used. 'native': {reason}; 'dali': nvidia.dali is not")


def test_without_a_driver_nobody_waits_for_dali_to_look_for_gpus(packed: Path) -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        said, _ = run_alone(packed, "print(make().decoder, 'nvidia.dali' in sys.modules)")
        assert said == ["native False"]
    else:
        pytest.skip("is about machines without an NVIDIA driver")
