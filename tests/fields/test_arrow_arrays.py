"""Arrow arrays are those that pyarrow makes, and no process of a run that packs a folder of images imports pandas."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from images import Folder, encode, photo
from sources.sources_read import coco

import gpuload
from gpuload.fields.arrow_arrays import array_of

KINDS = {
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint8(): st.integers(0, 255),
    pa.float32(): st.floats(width=32, allow_nan=False) | st.integers(-(2**24), 2**24),
    pa.float64(): st.floats(allow_nan=False) | st.integers(-(2**53), 2**53),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=9),
    pa.large_string(): st.none() | st.text(max_size=9),
    pa.binary(): st.binary(max_size=9),
    pa.list_(pa.int64()): st.lists(st.integers(-(2**40), 2**40), max_size=4),
    pa.list_(pa.large_string()): st.none() | st.lists(st.text(max_size=4), max_size=4),
    pa.list_(pa.int32(), 2): st.none() | st.lists(st.integers(-9, 9), min_size=2, max_size=2),
    pa.list_(pa.list_(pa.float32(), 4)): st.lists(st.tuples(*[st.floats(0, 1e6)] * 4), max_size=3),
    pa.list_(pa.list_(pa.float64())): st.lists(st.lists(st.floats(allow_nan=False), max_size=3), max_size=3),
}

# A module that notes which process imports pandas.
HOOK = """
import os, sys

class Noted:
    def find_spec(self, name, path=None, target=None):
        if name in NAMES:
            with open(NOTES, "a") as notes:
                notes.write(f"{os.getpid()} {name}\\n")

sys.meta_path.insert(0, Noted())
"""


@given(st.data())
def test_values_become_the_array_that_arrow_makes(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(list(KINDS)))
    values = data.draw(st.lists(KINDS[kind], max_size=20))
    assert array_of(values, kind).equals(pa.array(values, kind))
    array_of(values, kind).validate(full=True)


@pytest.mark.parametrize("name", ["bool", "int8", "uint16", "int32", "int64", "float32", "float64"])
def test_numbers_of_numpy_become_the_array_that_arrow_makes(name: str) -> None:
    numbers = np.arange(41).astype(name)
    for part in (numbers, numbers[3:29], numbers[::3], numbers[::-1], numbers[:0]):
        assert array_of(part).equals(pa.array(part))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 300], pa.uint8()),
        (np.array([1, 300]), pa.uint8()),
        (np.array([1.5]), pa.int64()),
        ([b"\xff"], pa.string()),
        (["text"], pa.int64()),
        ([2**70], pa.int64()),
        ([2**24 + 1], pa.float32()),
        ([0.5, 2**53 + 1], pa.float64()),
        ([2**2000], pa.float64()),
        ([[1.0, 2.0], [3.0]], pa.list_(pa.float32(), 2)),
    ],
)
def test_what_a_type_cannot_hold_is_refused_as_by_arrow(values: Sequence[Any], kind: pa.DataType) -> None:
    with pytest.raises((pa.ArrowInvalid, OverflowError, TypeError)) as theirs:
        pa.array(values, kind)
    with pytest.raises(theirs.type):
        array_of(values, kind)


@pytest.mark.parametrize("has_boxes", [False, True])
def test_packing_a_folder_imports_neither_pandas_nor_annotation_tools(
    make_folder: Folder, tmp_path: Path, has_boxes: bool
) -> None:
    photos = {f"{name}/{number}.jpg": encode(photo(number)) for name in ("ant", "bee") for number in range(3)}
    table = {"images.json": coco([*photos])}
    source = make_folder({**photos, **(table if has_boxes else {})})
    notes = tmp_path / "notes"
    names = ["pandas", "gpuload.sources.drawn_json", "gpuload.sources.folder"]
    hook = f"NAMES = {json.dumps(names)}\nNOTES = {str(notes)!r}\n{HOOK}"
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks/sitecustomize.py").write_text(hook)
    path = os.pathsep.join([str(tmp_path / "hooks"), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "gpuload", "pack", str(source), str(tmp_path / "out"), "--workers", "1"]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path}, capture_output=True)
    noted = {line.split()[1] for line in notes.read_text().splitlines()}
    assert noted == {"gpuload.sources.folder"}
    assert ("boxes" in gpuload.Dataset(tmp_path / "out" / "train").fields) == has_boxes
