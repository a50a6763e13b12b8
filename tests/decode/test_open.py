"""Which decoder is taken, what is said where its packages cannot be used, and what bounds a GPU's memory. No GPU is at
hand, so its counts are pretended."""

import ctypes
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from images import encode
from PIL import Image

import gpuload
from gpuload.decode import open as opening
from gpuload.decode.dali import memory
from gpuload.loader import tuning
from gpuload.machine.installed import Fault, cuda_extra
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
        ("numba", "native", "cpu", None, r"decoder='native': numba is not installed. .*'\S+\[cpu\]'` brings"),
        ("simplejpeg", "native", "cpu", None, r"simplejpeg is not installed. `pip install -e '\S+\[cpu\]'` brings it"),
        ("nvidia.dali", "dali", "cpu", None, r"nvidia.dali is not installed. `pip install -e '\S+\[dali\]'` brings it"),
        ("numba", "native", "cpu", "cuda12", r"numba is not installed. `pip install -e '\S+\[cuda12\]'`"),
        ("nvidia.dali", "dali", "cpu", "cuda13", r"nvidia.dali is not installed. `pip install -e '\S+\[cuda13\]'`"),
        ("nvidia.dali", "auto", "cuda", "cuda12", r"nvidia.dali is not installed. `pip install -e '\S+\[cuda12\]'`"),
        ("nvidia.dali", "auto", "cuda", None, "device='cuda'.*no"),  # what is missing is the GPU
        ("nvidia.dali", "dali", "cuda:1", None, "device='cuda:1'.*no"),
        ("nvidia.dali", "native", "cuda", None, "device='cuda': needs GPU 0, and none can be used"),
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

    for version, error, extra in ((12_080, 0, "cuda12"), (13_000, 0, "cuda13"), (0, 3, "cuda13")):
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
    reasons = "'native': numba is not installed; 'dali': nvidia.dali is not installed"
    with pytest.raises(
        gpuload.MissingPackageError, match=rf"no decoder can be used. {reasons}. .*'\S+\[cpu\]'` brings"
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


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Images of 2,000×1,500 pixels: 9 MB each as RGB."""
    samples = [{"image": encode(Image.new("RGB", (2000, 1500)), quality=50), "label": n} for n in range(4)]
    gpuload.pack(samples, tmp_path, workers=1)
    return tmp_path / "train"


@pytest.mark.parametrize(("decoder", "share"), [("dali", 1.0), (gpuload.Both(cpu=0.3), 0.7)])
def test_a_loader_looks_at_what_dali_decodes(
    large: Path, monkeypatch: pytest.MonkeyPatch, decoder: Any, share: float
) -> None:
    monkeypatch.setattr("gpuload.loader.tuning.choose_backend", lambda name, *_: (name, 0))
    found = []

    def check(*given: Any) -> None:
        found.append(given)
        raise gpuload.DeviceError("too large")

    monkeypatch.setattr("gpuload.loader.iterator.check_whole_images", check)
    monkeypatch.setattr(tuning, "_gpu_name", lambda device_id: "NVIDIA H100")
    with pytest.raises(gpuload.DeviceError, match="too large"):
        gpuload.DaliIterator(large, 4, augment=gpuload.Augment(8), decoder=decoder, prefetch=3)
    ((_, *rest),) = found
    assert rest == [4, 3, 0, pytest.approx(share)]


def test_whole_images_are_counted_by_the_index(large: Path) -> None:
    dataset = gpuload.Dataset(large)
    assert memory.whole_images_bytes([dataset], 256, 2) == 2000 * 1500 * 3 * 256 * 2
    assert memory.whole_images_bytes([dataset, dataset], 1, 1) == 2000 * 1500 * 3


def test_raw_pixels_are_counted_at_their_own_size(tmp_path: Path) -> None:
    samples = [{"image": np.zeros((20, 30, 7), np.float32), "label": 0} for _ in range(4)]
    gpuload.pack(samples, tmp_path, workers=1, mode="float32x7", encode="raw")
    assert memory.whole_images_bytes([gpuload.Dataset(tmp_path / "train")], 16, 2) == 20 * 30 * 7 * 4 * 16 * 2


def test_what_does_not_fit_is_an_error_with_its_figures(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = gpuload.Dataset(large)
    monkeypatch.setattr(memory, "gpu_bytes", lambda device_id: 8 * 10**9)
    memory.check_whole_images([dataset], 64, 2, 0)  # 1.2 GB
    with pytest.raises(
        gpuload.DeviceError,
        match=r"batch_size=256, with prefetch=2, take 4\.6 GB of the GPU's 8\.0, .*smaller batch_size or prefetch, decoder='native'",
    ):
        memory.check_whole_images([dataset], 256, 2, 0)
    with pytest.raises(gpuload.DeviceError, match=r"decoder='both': .* batch_size=700, with prefetch=2, take 6\.3 GB"):
        memory.check_whole_images([dataset], 700, 2, 0, share=0.5)
    memory.check_whole_images([dataset], 400, 2, 0, share=0.5)
    monkeypatch.setattr(memory, "gpu_bytes", lambda device_id: None)
    memory.check_whole_images([dataset], 256, 2, 0)  # it is not known


@pytest.mark.parametrize(
    ("cores", "fits", "measured", "decoder"),
    [
        (2, True, None, "dali"),
        (5, True, None, "dali"),
        (6, True, None, "native"),
        (64, True, None, "native"),
        (2, False, None, "native"),  # whole images would not fit
        (64, True, "dali", "dali"),  # tune knows better
        (2, True, "native", "native"),
        (2, True, "both", "both"),
        (64, False, "dali", "native"),  # measured with smaller batches
    ],
)
def test_auto_is_decided_by_cores_memory_and_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, fits: bool, measured: str | None, decoder: str
) -> None:
    monkeypatch.setattr(tuning, "count_threads", lambda ranks: cores)
    monkeypatch.setattr(tuning, "_gpu_name", lambda device_id: "NVIDIA H100")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if measured is not None:
        device = tuning.describe_device(0, Ranks())
        rates = {"dali": 900.0, "native": 800.0, "both": 700.0, measured: 1000.0}
        saved = [tuning.Tuning(name, 4, 3, None, 64, rate) for name, rate in rates.items()]
        tuning.save_tuning(tmp_path, device, saved)
    asked: list[Any] = []
    monkeypatch.setattr(tuning, "fits", lambda *given: asked.append(given) or fits)
    monkeypatch.setattr(tuning, "choose_backend", lambda name, device, ranks, decodes, prefer: (prefer(0), 0))
    data: Any = SimpleNamespace(folder=tmp_path)
    found, device_id, resources = tuning.choose_decoder("auto", "cuda", Ranks(), [data], tuning.Resources(64, 0, 0))
    ahead = 2 if measured is None else 3
    assert (found, device_id, resources.prefetch) == (decoder, 0, ahead) and asked == [([data], 64, ahead, 0)]


@pytest.mark.parametrize(
    ("asked_for", "lacks", "torchs", "expected"),
    [
        (("auto", "cuda"), "", 2, ("both", 1)),  # what `prefer` says of GPU 1
        (("auto", "cuda"), "dali", 2, ("native", 1)),
        (("auto", "cuda"), "native", 2, ("dali", 1)),
        (("auto", "cuda"), "", 0, ("both", 1)),  # torch was built for the CPU; what uses it says so
        (("native", "cuda"), "", 2, ("native", 1)),
        (("native", "auto"), "", 2, ("native", 1)),
        (("native", "cpu"), "", 2, ("native", None)),
    ],
)
def test_what_can_be_used_is_taken(
    monkeypatch: pytest.MonkeyPatch, asked_for: Any, lacks: str, torchs: int, expected: tuple[str, int | None]
) -> None:
    for name in ("native", "dali"):
        fault = Fault(f"{name} is missing", "Get it") if name == lacks else None
        monkeypatch.setattr(opening, f"{name}_fault", lambda *_, fault=fault: fault)
    monkeypatch.setattr(opening, "has_driver", lambda: True)
    monkeypatch.setattr(opening, "_count_torchs_gpus", lambda: torchs)
    monkeypatch.setattr(opening, "_count_dalis_gpus", lambda: 2)
    asked: list[int] = []

    def prefer(device_id: int) -> opening.Backend:
        asked.append(device_id)
        return "both"

    assert opening.choose_backend(*asked_for, Ranks(1, 2, 1, 2), prefer=prefer) == expected
    assert asked == ([1] if expected[0] == "both" else [])
