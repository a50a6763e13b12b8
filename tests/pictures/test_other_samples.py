"""What a batch shows of a further picture does not depend on the other samples of the batch, whatever their sizes are."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import encode, photo
from loaders import load

import gpuload
from gpuload import ArgumentError, Augment, Depth, Letterbox, Picture, Pictures, RandomCrop

IMAGE = (40, 30)  # width, height
HALF = (20, 15)
FIELDS = ("index", "dataset", "other", Pictures("views"), "near", Depth("depth", missing=-1), "image")
AUGMENTS = {
    "padded": Augment(24, RandomCrop(padding=9), vertical_flip=0.5, normalize=None),
    "larger than the image": Augment(48, RandomCrop(padding=3, pad_if_needed=True, fill=30), normalize=None),
    "pad or crop": Augment((33, 20), "pad_or_crop", normalize=None),
    "letterbox that scales the image alone": Augment(20, Letterbox(fill=30), normalize=None),
    "random": Augment(24, normalize=None),
}


def pack(folder: Path, sizes: list[tuple[int, int]]) -> gpuload.Dataset:
    """A sample for each size, which is that of its further pictures."""
    samples = [
        {
            "image": encode(photo(number, *IMAGE), "PNG"),
            "other": encode(photo(10 + number, *size), "PNG"),
            "views": [encode(photo(20 + number, *IMAGE), "PNG"), encode(photo(30 + number, *size), "PNG")][
                : number % 3
            ],
            "near": encode(photo(40 + number, *size), "PNG"),
            "depth": np.arange(size[0] * size[1], dtype=np.uint16).reshape(size[::-1]),
        }
        for number, size in enumerate(sizes)
    ]
    gpuload.pack(samples, folder, workers=1, progress=False, shuffle=False, pictures=["depth"])
    return gpuload.Dataset(folder / "train")


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, gpuload.Dataset]:
    """Pictures of the image's size; of half of it; of both in one set."""
    folder = tmp_path_factory.mktemp("sizes")
    sizes = {"alike": [IMAGE] * 4, "half": [HALF] * 4, "both": [IMAGE, HALF] * 2}
    return {name: pack(folder / name, list(of_set)) for name, of_set in sizes.items()}


def last_set(sets: list[gpuload.Dataset], augment: Augment, decoder: str) -> list[Any]:
    """Each sample of the last set in some batches of a mixture, with its pictures, and with its views in a list."""
    mixture = gpuload.mix([(dataset, 1) for dataset in sets])
    options: dict[str, Any] = {"augment": augment, "fields": FIELDS, "decoder": decoder, "output": "numpy"}
    options |= {"steps_per_epoch": 3, "seed": 3}
    rows = []
    with load(mixture, 8, **options) as loader:  # type: ignore[arg-type]
        for batch in loader:
            index, dataset, other, views, *pictures = batch
            columns = (index, dataset, other, views.split(), *pictures)
            rows += [[np.asarray(value) for value in row] for row in zip(*columns, strict=True)]
    return [row for row in rows if row[1] == len(sets) - 1]


@pytest.mark.parametrize("decoder", ["native", "dali"])
@pytest.mark.parametrize("name", AUGMENTS)
def test_pictures_of_several_sizes_in_one_batch(sets: dict[str, gpuload.Dataset], name: str, decoder: str) -> None:
    last = sets["half" if name.startswith("letterbox") else "both"]
    expected, *others = (last_set([first, last], AUGMENTS[name], decoder) for first in sets.values())
    assert len(expected) > 4
    for rows in others:
        assert len(rows) == len(expected)
        for row, same in zip(rows, expected, strict=True):
            for value, other in zip(row, same, strict=True):
                assert np.array_equal(value, other), (row[:2], np.shape(value))


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric"])
def test_what_is_scaled_is_not_padded_by_its_own_pixels(sets: dict[str, gpuload.Dataset], mode: Any) -> None:
    crop = RandomCrop(padding=9, padding_mode=mode)
    options: dict[str, Any] = {"augment": Augment(24, crop), "fields": ("image", Picture("other"), Depth("depth"))}
    with load(sets["alike"], 4, **options) as loader:  # type: ignore[arg-type]
        next(iter(loader))
    message = (
        rf"RandomCrop\(padding_mode='{mode}'\): pads what is not scaled, and a further picture of 20 × 15 pixels is"
    )
    with load(sets["half"], 4, **options) as loader, pytest.raises(ArgumentError, match=message):  # type: ignore[arg-type]
        next(iter(loader))
