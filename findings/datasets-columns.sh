#!/usr/bin/env bash
# datasets 5.2.0 (2026-11): a WebDataset loses what the first five samples of its first tar do not have, without a word.
#
# The builder takes the columns of all samples from the first five. A later member of another extension, such as the one
# PNG among JPEGs, is dropped, and the image is None. Nothing is raised or logged, streaming or not.
#
# Seen:
#   columns: ['jpg', 'cls', '__key__', '__url__']
#   images:  [True, True, True, True, True, True, False, True]
# A README.md beside the tar whose `dataset_info` lists the columns (jpg, png, cls) brings all eight:
#   with a card: 8 of 8
#
# Installs into a temporary folder, needs a package index, and fails if datasets behaves otherwise.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check datasets==5.2.0 pillow==13.0.0
mkdir "$folder/set"
cd "$folder"

HF_HOME=$folder/cache HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PYTHON'
import io
import tarfile
from pathlib import Path

import datasets
from PIL import Image

CARD = """---
configs:
- config_name: default
  data_files: "*.tar"
dataset_info:
  features:
  - name: jpg
    dtype: image
  - name: png
    dtype: image
  - name: cls
    dtype: int64
---
"""


def add(tar, name, data):
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


with tarfile.open("set/train.tar", "w") as tar:
    for number in range(8):
        file = io.BytesIO()
        encoding, extension = ("PNG", "png") if number == 6 else ("JPEG", "jpg")
        Image.new("RGB", (8, 8), (30 * number, 0, 0)).save(file, encoding)
        add(tar, f"{number}.{extension}", file.getvalue())
        add(tar, f"{number}.cls", b"1")

for streaming in (True, False):
    rows = datasets.load_dataset("webdataset", data_files="set/train.tar", split="train", streaming=streaming)
    columns = list(rows.features or next(iter(rows)))
    images = [row["jpg"] is not None for row in rows]
    print("columns:", columns)
    print("images: ", images)
    assert columns == ["jpg", "cls", "__key__", "__url__"]
    assert images == [True] * 6 + [False, True]

Path("set/README.md").write_text(CARD)
rows = list(datasets.load_dataset("set", split="train"))
complete = sum(row["jpg"] is not None or row["png"] is not None for row in rows)
print(f"with a card: {complete} of {len(rows)}")
assert complete == len(rows) == 8
PYTHON
