"""Decodes a few batches of a set, in a process of its own: a decoder that crashes or hangs ends that process alone."""

import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import gpuload
from gpuload.doctor.findings import Finding, size
from gpuload.machine.installed import fault_of
from gpuload.monitor.measure import measure_loader
from gpuload.store.url import URL

SIDE = 224
_MOST_BATCH, _AHEAD = 64, 5
# Of a process that imports, compiles the CPU decoder, and decodes. A compilation takes 12 s of one core's time, or a
# minute where others use the cores too.
_MOST_SECONDS = 180.0


def try_loading(device: str, decoder: str) -> Finding:
    """Whether a decoder loads anything on a device: a few small images that are packed for it."""
    with TemporaryDirectory(prefix="gpuload-doctor-") as folder:
        pixels = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3), np.uint8)
        gpuload.pack([{"image": image} for image in pixels], folder, workers=1)
        found = try_decoder(Path(folder) / "train", device, decoder, 0.01)
    if found.grade != "ok":
        return found
    first_s = found.data["first_s"]
    said = f"loads images; the first batch came after {first_s:.1f} s"
    return Finding(found.name, "ok", said, data={"device": device, "decoder": decoder, "first_s": first_s})


def try_decoder(folder: Path | URL, device: str, decoder: str, seconds: float) -> Finding:
    """How many images/s a decoder makes on a device: random crops of 224, normalised."""
    name = f"{decoder} on {device}"
    where = str(folder.absolute() if isinstance(folder, Path) else folder)
    command = [sys.executable, "-m", "gpuload.doctor.trial", where, device, decoder, str(seconds)]
    parent = str(Path(gpuload.__file__).parents[1])
    paths = os.pathsep.join([parent, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=_MOST_SECONDS + seconds, check=False
        )
    except subprocess.TimeoutExpired:
        said = f"gave no batch within {_MOST_SECONDS:.0f} s"
        return Finding(name, "broken", said, "See whether it does with num_threads=1, and report it")
    lines = done.stdout.splitlines()
    if done.returncode < 0:
        died = signal.Signals(-done.returncode).name
        remedy = f"`python -m gpuload verify {folder}` finds images that end a decoder. If there are none, report this"
        return Finding(name, "broken", f"ended its process by {died}", remedy, {"signal": died})
    if done.returncode or not lines:
        said = (done.stderr.strip().splitlines() or [f"ended with exit code {done.returncode}"])[-1]
        return Finding(name, "broken", said, "The line names what is wrong; `python -m gpuload verify` checks the set")
    told: dict[str, Any] = json.loads(lines[-1])
    if "error" in told:
        return Finding(name, "broken", told["error"], told["remedy"])
    said = f"{told['images_per_s']:,.0f} images/s ({size(told['bytes_per_s'])}/s) with {told['num_threads']} threads, "
    said += f"the first batch after {told['first_s']:.1f} s"
    return Finding(name, "ok", said, data=told)


def measure(folder: str, device: str, decoder: str, seconds: float) -> dict[str, Any]:
    """What the process prints: rates, the stage that binds, and advice."""
    dataset = gpuload.Dataset(folder)
    batch_size = min(_MOST_BATCH, len(dataset))
    with gpuload.DaliIterator(
        dataset,
        batch_size,
        augment=gpuload.Augment(SIDE, normalize=None),
        device=device,
        decoder=decoder,  # type: ignore[arg-type]
        fields=("image",),
        output="torch" if fault_of("torch") is None else "numpy",
        rank=0,  # whatever the environment says
        world_size=1,
    ) as loader:
        found, last, advice = measure_loader(loader, seconds, _AHEAD, _wait_for_compilation)
        return {
            "device": loader.device,
            "decoder": loader.decoder,
            "num_threads": loader.num_threads,
            "batch_size": batch_size,
            "images": found.images,
            "seconds": found.seconds,
            "images_per_s": found.images_per_s,
            "bytes_per_s": found.images_per_s * last.bytes / last.images,
            "first_s": found.first_s,
            "binds": last.binds,
            "advice": advice,
        }


def _wait_for_compilation() -> None:
    """The JPEG decoder is compiled while libjpeg-turbo decodes, more slowly."""
    background = sys.modules.get("gpuload.decode.native.compiled")
    if background is not None:
        background.wait_for_all()


def main() -> None:
    folder, device, decoder, seconds = sys.argv[1:]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            told = measure(folder, device, decoder, float(seconds))
        except gpuload.GpuloadError as error:
            remedy = f"`python -m gpuload verify {folder}` lists every fault of the set"
            told = {"error": str(error), "remedy": remedy if isinstance(error, gpuload.DecodeError) else ""}
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
