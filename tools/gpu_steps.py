"""The steps of `tools/gpu_check.py`: their commands and time limits."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_IMAGES, _FEW_IMAGES = 6000, 240
# Options of each program: normally, and with --quick.
_OPTIONS = {
    "bench": ("--rounds 3 --images 32768", "--rounds 1 --images 256"),
    "tune": ("--seconds 60", "--seconds 5 --size 64 --batch-size 16"),
    "probe": ("--batch-size 128 --time-limit 20", "--images 64 --batch-size 16"),
    "streams": ("", "--size 64 --batch-size 16 --seconds 0.5"),
    "thread": ("", "--size 32 --batch-size 16 --turns 1"),
    "train": (
        "--steps 110 --warm-up 30 --loaders synthetic gpuload gpuload-native gpuload-both torch",
        "--size 32 --batch-size 4 --steps 1 --warm-up 0",
    ),
    "pictures": ("--images 512", "--images 32"),
}


@dataclass(frozen=True)
class Step:
    """seconds: time limit. makes: data that is made again if missing. needs_data: whether it reads the shards."""

    name: str
    seconds: int
    command: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    makes: Path | None = None
    needs_data: bool = True


def steps(photos: Path, out: Path, device: str, quick: bool) -> list[Step]:
    """All steps, in order."""
    return [*_first(out, device), *_data(photos, out, quick), *_measured(out, device, quick)]


def _python(program: str, *arguments: str) -> list[str]:
    return [sys.executable, str(ROOT / program), *arguments]


def _first(out: Path, device: str) -> list[Step]:
    pixels = f"test_pixels and 420 and center and {'default' if device == 'cuda' else 'native'}"
    test = _python("tools/gpu_tests.py", str(out / "codec.json"), "-s", "-k", pixels, "tests/gpu/test_gpu_pixels.py")
    packages = _python("tools/gpu_report.py", "packages", str(out / "packages.json"), device)
    return [
        Step("packages", 30, packages, needs_data=False),
        Step("codec", 60, test, {"DALI_NVIMGCODEC_LOG_LEVEL": "3"}, needs_data=False),
    ]


def _data(photos: Path, out: Path, quick: bool) -> list[Step]:
    cut, images, shards = photos / "cut", photos, out / "shards"
    found = []
    if cut.exists():
        images = out / "images"
        count = str(_FEW_IMAGES if quick else _IMAGES)
        making = [sys.executable, str(cut), str(images), count, "--like", "imagenet", "--workers", _cores()]
        found.append(Step("cut", 60, making, makes=images, needs_data=False))
    packing = ["-m", "gpuload", "pack", str(images), str(shards), "--no-splits", "--val", "0.1", "--overwrite"]
    whole = shards / "train" / "manifest.json"
    return [*found, Step("pack", 60, [sys.executable, *packing], makes=whole, needs_data=False)]


def _measured(out: Path, device: str, quick: bool) -> list[Step]:
    train, on_gpu = str(out / "shards" / "train"), device == "cuda"
    size, batch = ("64", "16") if quick else ("224", "256")
    to = ["--device", device]

    def options(name: str) -> list[str]:
        return [*_OPTIONS[name][quick].split(), *(["--json", str(out / f"{name}.json")] if name != "pictures" else [])]

    tests = [
        str(out / "tests.json"),
        *(["-m", "gpu"] if on_gpu else []),
        "tests/gpu",
        "tests/batchwise/test_batchwise.py",
        *(["tests/transforms/test_transforms_pixels.py"] if on_gpu else []),
    ]
    loaders = ["torch-gpu", "dali-gpu", "gpuload-gpu"] if on_gpu else ["torch", "dali", "gpuload"]
    crops = ["--size", size, "--batch-size", batch, "--threads", _cores()]
    bench = [train, *to, "--loaders", *loaders, *crops, "--cold", "0", "--dtype", "float16", *options("bench")]
    tune = [sys.executable, "-m", "gpuload", "tune", train, *to, *options("tune")]
    net = [] if quick else ["--batch-size", batch]
    pictures = [train, *crops, *options("pictures"), "--picture", str(out / "cpu_vs_gpu.png")]
    decoders = ["--decoder", "dali", "native", "both"]
    thread = [train, *to, *decoders, *options("thread")]
    on_streams = [Step("streams", 40, _python("tools/probe_streams.py", train, *to, *options("streams")))]
    return [
        Step("tests", 150, _python("tools/gpu_tests.py", *tests), needs_data=False),
        Step("bench", 150, _python("tools/bench.py", *bench)),
        Step("tune", 100, tune),
        Step("probe", 150, _python("tools/probe_cropped_decode.py", train, *to, *options("probe"))),
        Step("train", 110, _python("examples/train_resnet50.py", train, *to, *net, *options("train"))),
        Step("pictures", 40, _python("examples/cpu_vs_gpu.py", *pictures)),
        Step("kernel", 40, _python("examples/raw_kernel.py", train, *to, "--picture", str(out / "faded.png"))),
        *(on_streams if on_gpu else []),
        Step("thread", 30, _python("tools/training_thread.py", *thread)),
    ]


def _cores() -> str:
    return str(len(os.sched_getaffinity(0)))
