#!/usr/bin/env bash
# Pillow 13.0.0 reads unsigned 16-bit FITS with the halves of its range exchanged, and signed ones as unsigned.
#
# FITS has no unsigned 16 bits. By its standard (4.0, 4.4.2.5), such images are stored as signed numbers with BZERO = 32768,
# as astropy writes them. Pillow opens them in mode I;16 without an error, and does not add BZERO: black becomes
# 32768, and white 32767. Negative numbers of signed images become large ones.
#
# Seen with Pillow 13.0.0, astropy 8.0.2, NumPy 2.4.6, Python 3.11, Linux x86-64:
#
#     uint16: written [0, 1, 32768, 65535], astropy [0, 1, 32768, 65535], Pillow [32768, 32769, 0, 32767]
#     int16: written [-5, 0, 7, 300], astropy [-5, 0, 7, 300], Pillow [65531, 0, 7, 300]
#
# Exits with 0 if this is what happens, and with 1 if it has changed. Needs python3.11 and a package index.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check pillow==13.0.0 astropy==8.0.2 numpy==2.4.6

"$folder/venv/bin/python" - >"$folder/seen" <<'PROGRAM'
import io

import numpy as np
from astropy.io import fits
from PIL import Image

for row, kind in (([0, 1, 32_768, 65_535], np.uint16), ([-5, 0, 7, 300], np.int16)):
    file = io.BytesIO()
    fits.PrimaryHDU(np.array([row, row], kind)).writeto(file)
    with fits.open(io.BytesIO(file.getvalue())) as back:
        astropy = back[0].data[0].tolist()
    with Image.open(io.BytesIO(file.getvalue())) as image:
        pillow = np.asarray(image)[0].tolist()
    print(f"{np.dtype(kind)}: written {row}, astropy {astropy}, Pillow {pillow}")
PROGRAM

cat "$folder/seen"
diff "$folder/seen" - <<'EXPECTED'
uint16: written [0, 1, 32768, 65535], astropy [0, 1, 32768, 65535], Pillow [32768, 32769, 0, 32767]
int16: written [-5, 0, 7, 300], astropy [-5, 0, 7, 300], Pillow [65531, 0, 7, 300]
EXPECTED
