#!/usr/bin/env bash
# pyarrow 26.0.1 (2026-11): making an array of a list, and to_numpy, import pandas wherever it is installed.
#
# No option and no type of pandas is involved. A program that reads a few integers of an Arrow file pays for the import
# of pandas, some 0.25 s of processor time and 49 MB, which is more than opening the file and everything else it does.
# DLPack reads the same numbers without it.
#
# Seen:
#   from_dlpack: [1 2 3], pandas imported: False
#   to_numpy:    [1 2 3], pandas imported: True
#   array of a list,      pandas imported: True
#
# Installs into a temporary folder, needs a package index, and fails if pyarrow behaves otherwise.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyarrow==26.0.1 pandas==3.1.1 numpy==2.4.6
cd "$folder"

cat >read.py <<'PYTHON'
import sys

import numpy as np
import pyarrow as pa

# Three int64 of a buffer, as they lie in a mapped file.
column = pa.Array.from_buffers(pa.int64(), 3, [None, pa.py_buffer(np.array([1, 2, 3]).tobytes())])
way = sys.argv[1]
if way == "from_dlpack":
    print("from_dlpack:", np.from_dlpack(column), end=", ")
elif way == "to_numpy":
    print("to_numpy:   ", column.to_numpy(), end=", ")
else:
    pa.array([1, 2, 3])
    print("array of a list,     ", end=" ")
print("pandas imported:", "pandas" in sys.modules)
PYTHON

for way in from_dlpack to_numpy array; do
  "$folder/venv/bin/python" read.py "$way" | tee -a seen
done
diff seen - <<'SEEN'
from_dlpack: [1 2 3], pandas imported: False
to_numpy:    [1 2 3], pandas imported: True
array of a list,      pandas imported: True
SEEN
echo "as described"
