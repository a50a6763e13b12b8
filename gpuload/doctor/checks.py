"""All checks in the order of their output; the last ones load images in processes of their own, so that a decoder that
crashes or hangs ends only its process."""

import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import gpuload
from gpuload.disk.dataset import Dataset, having_images
from gpuload.disk.places import packed_locations
from gpuload.doctor import Answer, Finding, Told, environment, sets, size
from gpuload.doctor.environment import Driver
from gpuload.errors import DecodeError, GpuloadError
from gpuload.machine.fork_server import exit_name
from gpuload.machine.installed import cuda_extra, fault_of
from gpuload.monitor import MOST_STEPS, advice, forever, pace
from gpuload.store.url import URL

SIDE = 224
_MOST_BATCH = 64
_AHEAD = 5
# Of a process that imports, compiles the CPU decoder, and decodes. A compilation takes 12 s of one core's time, or a
# minute where others use the cores too.
_MOST_SECONDS = 180.0
_PROGRAM = (
    "import sys; sys.path[:] = {}; from gpuload.doctor.checks import main; main()"
)


def examine(folder: Path | URL | None, seconds: float) -> Iterator[Finding]:
    """Yields each finding as soon as it is known.

    Args:
        folder: A packed set to look at, too; None without.
        seconds: How long each decoder is measured.

    Raises:
        FormatError, RemoteError, ArgumentError: as of `Dataset`.
    """
    datasets = [] if folder is None else list(map(Dataset, packed_locations(folder)))
    driver = environment.find_driver()
    for name, check in environment.CHECKS.items():
        yield from _run(name, check, driver)
    for dataset in datasets:
        for name, check_set in sets.CHECKS.items():
            yield from _run(name, check_set, dataset)
    for device, decoder in (choices := decoders(driver)):
        name = f"{decoder} on {device}"
        if datasets:
            yield from _run(
                name, try_decoder, datasets[0].folder, device, decoder, seconds
            )
        else:
            yield from _run(name, _try_without_set, device, decoder)
    if not choices:
        said = "neither decoder='native' nor decoder='dali' can be used here, so that nothing can be loaded"
        yield Finding(
            "decoders",
            "broken",
            said,
            f"`pip install 'gpuload[{cuda_extra() or 'cpu'}]'`",
        )


def decoders(driver: Driver | None) -> list[tuple[str, str]]:
    """(device, decoder) of all that can be tried here, by what is installed."""
    choices = [("cpu", "native")]
    if fault_of("nvidia.dali") is None:
        gpus = () if driver is None else driver.gpus
        choices += [
            ("cpu", "dali"),
            *((f"cuda:{number}", "dali") for number in range(len(gpus))),
        ]
    return choices


def _run(name: str, check: Callable[..., Answer], *subject: Any) -> list[Finding]:
    try:
        answer = check(*subject)
    except Exception as error:  # a check must not end the others
        said = f"could not be checked: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return [Finding(name, "broken", said, "The line names what is wrong")]
    return [] if answer is None else [Finding(name, *answer)]


def _try_without_set(device: str, decoder: str) -> Told:
    """Whether a decoder loads a few small images."""
    with TemporaryDirectory(prefix="gpuload-doctor-") as temporary:
        pixels = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3), np.uint8)
        gpuload.pack([{"image": image} for image in pixels], temporary, workers=1)
        grade, said, remedy, data = try_decoder(
            Path(temporary) / "train", device, decoder, 0.01
        )
    if grade == "ok":  # so short a measurement says nothing about speed
        data = {name: data[name] for name in ("device", "decoder", "first_s")}
        said = f"loads images; the first batch came after {data['first_s']:.1f} s"
    return grade, said, remedy, data


def try_decoder(folder: Path | URL, device: str, decoder: str, seconds: float) -> Told:
    """How many images/s a decoder makes: random crops of 224, normalised.

    Args:
        folder: A packed set.
        device: "cpu" or "cuda".
        decoder: As of `DaliIterator`.
        seconds: How long it is measured.
    """
    where = str(folder.absolute() if isinstance(folder, Path) else folder)
    command = [
        sys.executable,
        "-c",
        _PROGRAM.format(sys.path),
        where,
        device,
        decoder,
        str(seconds),
    ]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_MOST_SECONDS + seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        said = f"gave no batch within {_MOST_SECONDS:.0f} s"
        return (
            "broken",
            said,
            "See whether it does with num_threads=1, and report it",
            {},
        )
    if done.returncode < 0:
        how = exit_name(done.returncode)
        remedy = f"`python -m gpuload verify {folder}` finds images that end a decoder. If there are none, report this"
        return "broken", f"ended its process by {how}", remedy, {"signal": how}
    if done.returncode or not done.stdout:
        said = (
            done.stderr.strip().splitlines()
            or [f"ended with exit code {done.returncode}"]
        )[-1]
        return (
            "broken",
            said,
            "The line names what is wrong; `python -m gpuload verify` checks the set",
            {},
        )
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "error" in figures:
        return "broken", figures["error"], figures["remedy"], {}
    rate = f"{figures['images_per_s']:,.0f} images/s ({size(figures['bytes_per_s'])}/s)"
    start = f"the first batch after {figures['first_s']:.1f} s"
    said = f"{rate} with {figures['num_threads']} threads, {start}"
    return "ok", said, "", figures


def main() -> None:
    """In the process: prints what was measured, as its last line."""
    folder, device, decoder, seconds = sys.argv[1:]
    warnings.simplefilter("ignore")
    try:
        figures = measure(folder, device, decoder, float(seconds))
    except GpuloadError as error:
        remedy = f"`python -m gpuload verify {folder}` lists every fault of the set"
        figures = {
            "error": str(error),
            "remedy": remedy if isinstance(error, DecodeError) else "",
        }
    print(json.dumps(figures))  # noqa: T201 - to the process that started this one


def measure(folder: str, device: str, decoder: str, seconds: float) -> dict[str, Any]:
    """Rates, the stage that binds, and advice."""
    dataset = having_images(gpuload.Dataset(folder))
    with gpuload.DaliIterator(
        dataset,
        min(_MOST_BATCH, len(dataset)),
        augment=gpuload.Augment(SIDE, normalize=None),
        device=device,
        decoder=decoder,  # type: ignore[arg-type]  # one of `decoders`
        fields=(dataset.manifest.image.name,),
        output="torch" if fault_of("torch") is None else "numpy",
        rank=0,  # whatever the environment says
        world_size=1,
    ) as loader:
        measured = pace(forever(loader), seconds, _AHEAD)
        last = loader.metrics(min(MOST_STEPS, measured.steps))
        figures = {
            name: getattr(loader, name)
            for name in ("device", "decoder", "num_threads", "batch_size")
        }
        figures |= {
            name: getattr(measured, name)
            for name in ("images", "seconds", "images_per_s", "first_s")
        }
        figures |= {"binds": last.binds, "advice": advice(last.binds)}
        return {
            **figures,
            "bytes_per_s": measured.images_per_s * last.bytes / last.images,
        }
