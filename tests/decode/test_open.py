"""Which decoder is taken, what is said where its packages cannot be used, and what bounds a GPU's memory. No GPU is at
hand, so its counts are pretended."""

import ctypes
import importlib.util
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
from gpuload.decode.interface import Resources
from gpuload.machine.installed import cuda_extra
from gpuload.machine.ranks import Ranks

SMALL, SECOND = Resources(8, 2, 2), Ranks(1, 2, 1, 2)


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


@pytest.mark.parametrize(
    ("decoder", "device", "lacks", "gpus", "expected", "logged"),
    [
        ("auto", "cpu", "", 2, ("native", None), ""),
        ("auto", "cpu", "nvidia.dali", 2, ("native", None), ""),
        ("native", "cpu", "", 2, ("native", None), ""),
        ("native", "auto", "", 2, ("native", 1), ""),
        ("native", "auto", "", 0, ("native", None), ""),  # DALI's GPUs are not asked for
        ("native", "cuda", "", 2, ("native", 1), ""),
        (gpuload.Dali(), "cuda", "", 2, ("dali", 1), ""),
        (gpuload.Both(), "cuda", "", 2, ("both", 1), ""),
        ("auto", "cuda", "", 2, ("dali", 1), ""),
        ("auto", "cuda", "", 0, ("dali", 1), ""),  # torch was built for the CPU; what uses it says so
        ("auto", "cuda", "torch", 2, ("dali", 1), "decoder='dali' is used: torch is not installed"),
        ("auto", "cuda", "nvidia.dali", 2, ("native", 1), "decoder='native' is used: nvidia.dali is not installed"),
        (
            "auto",
            "auto",
            "nvidia.dali",
            0,
            ("native", None),
            "the CPU decodes, although there is an NVIDIA driver: nvid",
        ),
    ],
)
def test_the_fastest_that_can_be_used_is_taken(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    decoder: Any,
    device: str,
    lacks: str,
    gpus: int,
    expected: tuple[str, int | None],
    logged: str,
) -> None:
    """gpus: that torch finds; DALI finds two."""
    caplog.set_level(logging.INFO, "gpuload")
    monkeypatch.setitem(sys.modules, lacks, None)
    monkeypatch.setattr(opening, "has_driver", lambda: True)
    monkeypatch.setattr(opening, "_count_torchs_gpus", lambda: gpus)
    monkeypatch.setattr(opening, "_count_dalis_gpus", lambda: 2)
    monkeypatch.setattr(opening, "count_threads", lambda ranks: 2)
    assert opening.choose_decoder(decoder, device, SECOND, [], SMALL) == expected
    assert [message[: len(logged)] for message in caplog.messages] == [logged] * bool(logged)


@pytest.mark.parametrize(
    ("package", "decoder", "device", "driver", "message"),
    [
        ("nvidia.dali", "dali", "cpu", None, r"nvidia.dali is not installed. `pip install -e '\S+\[dali\]'` brings it"),
        (
            "torch",
            "native",
            "cuda",
            "cuda12",
            r"decoder='native': torch is not installed. `pip install -e '\S+\[cuda12\]'`",
        ),
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
        opening.choose_decoder(decoder, device, Ranks(), [], SMALL)


def test_the_drivers_extra_is_read_from_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, error, extra in ((12_080, 0, "cuda12"), (13_000, 0, "cuda13"), (0, 3, "cuda13")):

        def get(pointer: Any, version: int = version, error: int = error) -> int:
            pointer._obj.value = version
            return error

        monkeypatch.setattr(ctypes, "CDLL", lambda name, get=get: SimpleNamespace(cuDriverGetVersion=get))
        assert cuda_extra() == extra
    monkeypatch.setattr(ctypes, "CDLL", lambda name: open(f"/none/{name}"))  # noqa: SIM115 - an OSError
    assert cuda_extra() is None


def test_the_first_batch_does_not_wait_for_pandas(packed: Path) -> None:
    """pyarrow imports it where it is installed and columns are read the usual way, which takes 0.2 s."""
    assert importlib.util.find_spec("pandas") is not None
    said, _ = run_alone(packed, "next(iter(make())); import sys; print('pandas' in sys.modules)")
    assert said == ["False"]


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


@pytest.mark.parametrize(("decoder", "name", "most"), [("dali", "dali", 110), (gpuload.Both(cpu=0.5), "both", 220)])
def test_whole_images_that_do_not_fit_are_refused_with_their_figures(
    large: Path, monkeypatch: pytest.MonkeyPatch, decoder: Any, name: str, most: int
) -> None:
    """Of 8 GB they may take 4: two batches of 110 images of 9 MB that DALI decodes, and slices of at most their size."""
    monkeypatch.setattr("gpuload.loader.build.choose_decoder", lambda *_: (name, 0))
    monkeypatch.setattr(memory, "gpu_bytes", lambda device_id: 8 * 10**9)
    figures = f"batch_size={most + 1}, with prefetch=2, and what is made of them take 4.0 GB of the GPU's 8.0"
    remedy = "smaller batch_size or prefetch, decoder='native'"
    with pytest.raises(gpuload.DeviceError, match=rf"decoder='{name}': whole images of {figures},.*{remedy}"):
        gpuload.DaliIterator(large, most + 1, augment=gpuload.Augment(8), decoder=decoder, drop_last=False, prefetch=2)
    outputs = [memory.OutputImages(((8, 8),))]
    memory.check_whole_images([gpuload.Dataset(large)], most, 2, 0, share=110 / most, outputs=outputs)
    monkeypatch.setattr(memory, "gpu_bytes", lambda device_id: None)
    memory.check_whole_images([gpuload.Dataset(large)], 10_000, 2, 0)  # it is not known


def test_a_gpus_memory_is_of_no_importance_on_a_cpu(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "gpu_bytes", lambda device_id: 1)
    gpuload.DaliIterator(large, 4, augment=gpuload.Augment(8), decoder="dali", device="cpu").close()


def test_whole_images_are_counted_by_the_index(large: Path, tmp_path: Path) -> None:
    """Raw pixels at their own size."""
    samples = [{"image": np.zeros((20, 30, 7), np.float32), "label": 0} for _ in range(4)]
    gpuload.pack(samples, tmp_path / "raw", workers=1, mode="float32x7", encode="raw")
    raw = gpuload.Dataset(tmp_path / "raw" / "train")
    assert memory.whole_images_bytes([raw], 16, 2) == 20 * 30 * 7 * 4 * 16 * 2
    photos = gpuload.Dataset(large)
    decoded = 2000 * 1500 * 3
    assert memory.whole_images_bytes([raw, photos], 256, 2) == decoded * 256 * 2
    outputs = [memory.OutputImages(((224, 320), (96, 96)), 3, "float16")]  # two views in float16
    values = (224 * 320 + 96 * 96) * 3 * 2
    intermediates = (320 + 96) * 2000 * 3 * 4 * 32
    expected = (3 * decoded + 2 * values) * 256 * 2 + intermediates
    assert memory.whole_images_bytes([photos], 256, 2, outputs) == expected


def test_whole_further_pictures_are_counted_too(tmp_path: Path) -> None:
    """A right view of half the sides, and lists of 1, 2, 3 and 2 frames."""
    samples = [
        {
            "left": encode(Image.new("RGB", (200, 100))),
            "right": encode(Image.new("RGB", (100, 50))),
            "frames": [encode(Image.new("RGB", (40, 30))) for _ in range(count)],
        }
        for count in (1, 2, 3, 2)
    ]
    gpuload.pack(samples, tmp_path / "set", workers=1, progress=False)
    dataset = gpuload.Dataset(tmp_path / "set" / "train")
    expected = {"left": 200 * 100 * 3, "right": 100 * 50 * 3, "frames": 2 * 40 * 30 * 3}
    for name, decoded in expected.items():
        outputs = [memory.OutputImages(name=name, most=3)]
        assert memory.whole_images_bytes([dataset], 16, 2, outputs) == decoded * 16 * 2
    one_frame = [memory.OutputImages(name="left"), memory.OutputImages(name="frames")]
    assert memory.whole_images_bytes([dataset], 16, 2, one_frame) == (200 * 100 + 40 * 30) * 3 * 16 * 2


def test_whole_further_pictures_that_do_not_fit_are_refused(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 8 GB 110 pairs of 9 MB images each take more than 4, of which 110 images take less."""
    samples = [{name: encode(Image.new("RGB", (2000, 1500)), quality=50) for name in ("left", "right")} for _ in "1234"]
    folder = large.parent / "pairs"
    gpuload.pack(samples, folder, workers=1, progress=False)
    monkeypatch.setattr("gpuload.loader.build.choose_decoder", lambda *_: ("dali", 0))
    monkeypatch.setattr(memory, "gpu_bytes", lambda device_id: 8 * 10**9)
    fields = ("left", gpuload.Picture("right", scale=0.5))
    with pytest.raises(gpuload.DeviceError, match="whole images of batch_size=110,.*take 7.9 GB of the GPU's 8.0"):
        gpuload.DaliIterator(
            folder / "train",
            110,
            augment=gpuload.Augment(8),
            fields=fields,
            decoder="dali",
            drop_last=False,
            prefetch=2,
        )


@pytest.mark.parametrize(
    ("cores", "num_threads", "gpu_bytes", "decoder"),
    [
        (2, 2, 8e9, "dali"),
        (5, 5, 8e9, "dali"),
        (6, 6, 8e9, "native"),
        (64, 64, 8e9, "native"),
        (64, 6, 8e9, "native"),
        (64, 5, 8e9, "dali"),  # the other cores are not for decoding
        (2, 64, 8e9, "dali"),  # threads that share two cores
        (2, 2, 4e9, "native"),  # whole images, 2.3 GB, take more than half
        (2, 2, None, "dali"),  # it is not known
    ],
)
def test_auto_on_a_gpu_is_decided_by_cores_and_memory(
    large: Path,
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    num_threads: int,
    gpu_bytes: float | None,
    decoder: str,
) -> None:
    monkeypatch.setattr(opening, "has_driver", lambda: True)
    monkeypatch.setattr(opening, "_count_torchs_gpus", lambda: 2)
    monkeypatch.setattr(opening, "count_threads", lambda ranks: cores if ranks == SECOND else 0)
    monkeypatch.setattr(memory, "gpu_bytes", lambda device_id: gpu_bytes if device_id == 1 else 0)
    datasets, resources = [gpuload.Dataset(large)], Resources(128, num_threads, 2)
    assert opening.choose_decoder("auto", "cuda", SECOND, datasets, resources) == (decoder, 1)
