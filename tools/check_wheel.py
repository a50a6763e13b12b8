"""Tries an installed gpuload as a new user would: packs a few images, verifies them, and loads them by what is there.

    python tools/check_wheel.py

Run it outside of the clone, with the Python of the environment that gpuload was installed into. It prints what it did,
and exits with 1 if something does not work.
"""

import argparse
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args(arguments)

    import numpy as np
    from PIL import Image

    import gpuload

    print(
        f"gpuload {gpuload.__version__} in {Path(gpuload.__file__).parent}, Python {sys.version.split()[0]}"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rng = np.random.default_rng(0)
        for number in range(32):
            path = folder / "photos" / "ab"[number % 2] / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (48, 64, 3), np.uint8)).save(path)
        for command in (
            ["pack", "photos", "shards"],
            ["verify", "shards"],
            ["info", "shards/train"],
        ):
            if subprocess.run(
                [sys.executable, "-m", "gpuload", *command], cwd=folder
            ).returncode:
                return 1
        has_torch = importlib.util.find_spec("torch") is not None
        data = folder / "shards" / "train"
        options = {
            "augment": gpuload.Augment(32),
            "device": "cpu",
            "output": "torch" if has_torch else "numpy",
        }
        with gpuload.DaliIterator(data, 8, **options) as loader:
            held = [images for images, _ in loader]
            sums = [float(images.sum()) for images in held]
            again = [float(images.sum()) for images, _ in loader]
            print(loader)
        shapes = [tuple(images.shape) for images in held]
    print(f"loaded {len(shapes + again)} batches")
    untouched = sums == [float(images.sum()) for images in held]
    return 0 if shapes == [(8, 3, 32, 32)] * 4 and untouched else 1


if __name__ == "__main__":
    sys.exit(main())
