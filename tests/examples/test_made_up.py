"""examples/made_up.py: each form holds what it says, and gpuload packs it."""

from pathlib import Path

import h5py
import made_up
import numpy as np
import pytest
from images import encode, photo

import gpuload
from gpuload.cli import main as gpuload_command


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three classes of five JPEGs, 60×40."""
    for number in range(15):
        path = tmp_path / "photos" / "abc"[number % 3] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(photo(number, 60, 40)))
    return tmp_path / "photos"


def test_hdf5_of_photos_gone_through_twice(tmp_path: Path, photos: Path) -> None:
    path = made_up.make("hdf5", tmp_path / "set.h5", 30, 24, photos)
    with h5py.File(path) as file:
        images, targets, labels = (file[name][:] for name in ("images", "target", "label"))
    assert images.shape == (30, 24, 24, 3)
    assert (images[:15] == images[15:]).all()
    assert sorted(np.bincount(labels).tolist()) == [10, 10, 10]
    flipped = [made_up.balance(image[:, ::-1]) for image in images]
    assert targets == pytest.approx([-value for value in flipped], abs=1e-6)
    assert np.ptp(targets) > 0.02  # there is something to be predicted


def test_detection(tmp_path: Path) -> None:
    path, out = made_up.make("detection", tmp_path / "set", 40, 64), tmp_path / "packed"
    assert gpuload_command(["pack", str(path), str(out), "--workers", "1", "--no-shuffle"]) == 0
    dataset = gpuload.Dataset(out / "train")
    found = list(made_up.pictures(None, 40, 64, some_empty=True))
    names = [(dataset.classes or ())[int(label)] for label in dataset.labels]
    assert names == [picture.name if picture.box else "background" for picture in found]
    assert names.count("background") == 4
    boxes = dataset.rows(0).column("boxes").to_pylist()
    assert [len(row) for row in boxes] == [
        0 if picture.box is None else 2 if number % 3 == 0 else 1 for number, picture in enumerate(found, 1)
    ]


def test_detection_of_photos_keeps_their_bytes(tmp_path: Path, photos: Path) -> None:
    out = made_up.make("detection", tmp_path / "set", 15, photos=photos)
    originals = {path.read_bytes() for path in photos.rglob("*.jpg")}
    assert {path.read_bytes() for path in out.rglob("*.JPEG")} == originals
    assert sum("<object>" not in path.read_text() for path in out.rglob("*.xml")) == 5  # class c


def test_the_same_arguments_give_the_same_files_and_what_is_there_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (made_up.make("captions", tmp_path / name, 25) for name in ("first", "second"))
    contents = [{path.name: path.read_bytes() for path in out.iterdir()} for out in (first, second)]
    assert len(contents[0]) == 50 and contents[0] == contents[1]
    with pytest.raises(SystemExit):
        made_up.main(["lmdb", str(first)])
    assert "exists already; choose another name" in capsys.readouterr().err
    assert len(list(first.iterdir())) == 50
