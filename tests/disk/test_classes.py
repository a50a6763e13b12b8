"""The number of classes, with names and without."""

from pathlib import Path
from typing import Any

import packed_fields
import pytest
from images import encode, photo
from loaders import load

import gpuload

IMAGE = encode(photo())


def pack(folder: Path, *samples: dict[str, Any]) -> gpuload.Dataset:
    return packed_fields.pack(folder, [{"image": IMAGE, **sample} for sample in samples])


def test_names_tell_the_number(packed: Path, caplog: pytest.LogCaptureFixture) -> None:
    dataset = gpuload.Dataset(packed)
    assert dataset.num_classes == 3 == dataset.subset([0]).num_classes
    assert gpuload.mix([(packed, 1), (packed, 1)]).num_classes == 3
    with load(packed) as loader:
        assert (loader.num_classes, loader.classes) == (3, dataset.classes)
    assert not [line for line in caplog.messages if "class" in line]


def test_without_names_the_largest_number_tells_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dense = pack(tmp_path / "dense", {"label": 1}, {"label": 0}, {"label": 2})
    assert dense.classes is None and dense.num_classes == 3
    with load(dense, 2) as loader:
        assert (loader.num_classes, loader.classes) == (3, None)
    assert dense.subset([0]).num_classes == 3  # as the model of the whole set has
    assert not [line for line in caplog.messages if "class" in line]
    gaps = pack(tmp_path / "gaps", {"label": 1}, {"label": 4})
    assert gpuload.mix([(dense, 1), (gaps, 1)]).num_classes == 5
    assert "label: 3 of 5 classes have no sample, as 0, 2, 3. Number the classes from 0" in caplog.text
    assert pack(tmp_path / "far", {"label": 0}, {"label": 2**60}).num_classes == 2**60 + 1
    assert "label: 1,152,921,504,606,846,975 of 1,152,921,504,606,846,977 classes have no sample, as 1" in caplog.text


def test_boxes_and_labels_have_classes(tmp_path: Path) -> None:
    box = [[0, 0, 5, 5]]
    named = pack(tmp_path / "named", {"boxes": box, "boxes_class": ["cat"]}, {"boxes": box, "boxes_class": ["ant"]})
    assert named.classes == ("ant", "cat") and named.num_classes == 2
    unnamed = pack(tmp_path / "unnamed", {"labels": [3, 0]}, {"labels": []})
    assert unnamed.classes is None and unnamed.num_classes == 4
    both = pack(tmp_path / "both", {"label": 4, "boxes": box, "boxes_class": ["cat"]})
    assert both.classes is None and both.num_classes == 5
    assert pack(tmp_path / "none", {"angle": 0.5}).num_classes is None
    assert pack(tmp_path / "empty", {"labels": []}).num_classes == 0
