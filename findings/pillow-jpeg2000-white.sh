#!/usr/bin/env bash
# Pillow 13.0.0 reads the white of 16-bit RGB JPEG 2000 as black.
#
# A valid, lossless JPEG 2000 of 8 × 8 pixels of one 16-bit colour, written and read back exactly by imagecodecs. Pillow
# gives 8 bits, as if it added half a step before it shifts: values from 65,408 on become 256, of
# which a byte keeps 0. Values below are right.
#
# Seen with Pillow 13.0.0 (OpenJPEG 2.5.4), imagecodecs 2026.3.6, NumPy 2.4.6, Python 3.11, Linux x86-64:
#
#     65407: Pillow (255, 255, 255), imagecodecs 65407
#     65408: Pillow (0, 0, 0), imagecodecs 65408
#     65535: Pillow (0, 0, 0), imagecodecs 65535
#
# Exits with 0 if this is what happens, and with 1 if it has changed. Needs python3.11 and a package index.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check pillow==13.0.0 imagecodecs==2026.3.6 numpy==2.4.6

"$folder/venv/bin/python" - >"$folder/seen" <<'PROGRAM'
import io

import imagecodecs
import numpy as np
from PIL import Image

for value in (65_407, 65_408, 65_535):
    pixels = np.full((8, 8, 3), value, np.uint16)
    data = imagecodecs.jpeg2k_encode(pixels, reversible=True, level=0)
    back = imagecodecs.jpeg2k_decode(data)
    assert np.array_equal(back, pixels)
    with Image.open(io.BytesIO(data)) as image:
        print(f"{value}: Pillow {image.getpixel((0, 0))}, imagecodecs {back[0, 0, 0]}")
PROGRAM

cat "$folder/seen"
diff "$folder/seen" - <<'EXPECTED'
65407: Pillow (255, 255, 255), imagecodecs 65407
65408: Pillow (0, 0, 0), imagecodecs 65408
65535: Pillow (0, 0, 0), imagecodecs 65535
EXPECTED
