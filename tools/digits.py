"""Writes the handwritten digits that come with scikit-learn as 64×64 JPEGs in class folders: images without a download.

    python tools/digits.py digits

1,797 images of 10 classes, enlarged from 8×8 pixels (UCI Optical Recognition of Handwritten Digits).
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpuload import MissingPackageError
from gpuload.machine.installed import require

SIDE_PX = 64


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="new or empty folder to write to")
    args = parser.parse_args(argv)
    try:
        require("tools/digits.py", "sklearn")
    except MissingPackageError as error:
        raise SystemExit(str(error)) from None
    from sklearn.datasets import load_digits

    if args.out.is_dir() and any(args.out.iterdir()):
        parser.error(
            f"{args.out}: holds files already, which would be mixed with the digits. Give a new folder"
        )
    digits = load_digits()
    for number, (pixels, label) in enumerate(
        zip(digits.images, digits.target, strict=True)
    ):
        folder = args.out / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        # Values are 0..16.
        small = Image.fromarray((pixels * (255 / 16)).astype(np.uint8))
        small.resize((SIDE_PX, SIDE_PX), Image.Resampling.BICUBIC).save(
            folder / f"{number:04d}.jpg", quality=92
        )
    print(
        f"{args.out}: {len(digits.images):,} images of {len(digits.target_names)} classes"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
