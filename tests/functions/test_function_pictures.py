"""Functions of samples with further pictures: what they get, and what becomes of what they return."""

from pathlib import Path
from typing import Any

import albumentations
import numpy as np
import pytest
import torch
from images import encode, photo
from loaders import load, skip_without_dali
from opened import pretend_gpu
from picture_functions import change_all, same
from PIL import Image

import gpuload
from gpuload import ArgumentError, Augment, Depth, Flow, FunctionError, Mask, Picture, Pictures
from gpuload.functions import Torchvision
from gpuload.transforms import ColorJitter, Function, RandomRotation

SIZE = (24, 32)
COUNTS = [2, 1, 0, 3, 2, 1, 2, 3]


def sample_of(number: int) -> dict[str, Any]:
    image = photo(number, 80, 64)
    rng = np.random.default_rng(number)
    return {
        "image": encode(image, "PNG"),
        "half": encode(image.resize((40, 32)), "PNG"),
        "depth": encode(Image.fromarray(rng.integers(0, 3000, (64, 80)).astype(np.uint16)), "PNG"),
        "flow": rng.normal(0, 3, (64, 80, 2)).astype(np.float32),
        "mask": rng.integers(0, 5, (64, 80)).astype(np.uint8),
        "frames": [encode(photo(10 * number + place, 48, 40 + place), "PNG") for place in range(COUNTS[number])],
        "masks": [np.full((40 + place, 48), 10 * number + place, np.uint8) for place in range(COUNTS[number])],
        "label": number,
    }


FIELDS = (
    "image",
    Picture("half", colors="own"),
    Depth("depth", unit=0.001, missing=-1.0),
    Flow("flow"),
    Mask("mask"),
    Pictures("frames", geometry="own"),
    Pictures("masks", like="frames", each=Mask(fill=255)),
    "label",
)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("functions") / "set"
    samples = [sample_of(number) for number in range(len(COUNTS))]
    gpuload.pack(samples, folder, workers=1, progress=False, pictures=["flow", "frames", "masks"])
    return folder / "train"


def values_of(packed: Path, augment: Augment, decoder: str, fields: Any = FIELDS) -> list[dict[str, Any]]:
    with load(packed, 4, augment=augment, decoder=decoder, fields=fields, seed=3) as loader:
        batches = [batch._asdict() for batch in loader]
    for batch in batches:
        for name in ("frames", "masks"):
            if name in batch:
                batch[name], batch[f"{name} counts"] = batch[name]
    return batches


STEPS = [ColorJitter(0.4), RandomRotation(20)]


@pytest.mark.parametrize(
    ("decoder", "options"),
    [
        ("native", {"dtype": "float32"}),
        ("native", {"dtype": "uint8", "layout": "channels_last", "normalize": None}),
        ("native-uploading", {"dtype": "float16"}),
        ("dali", {"dtype": "float32"}),
        ("dali-uploading", {"dtype": "bfloat16"}),
    ],
)
@pytest.mark.parametrize("steps", [[], STEPS], ids=["plain", "transforms"])
def test_a_function_that_changes_nothing_changes_nothing(
    packed: Path, monkeypatch: pytest.MonkeyPatch, decoder: str, options: Any, steps: Any
) -> None:
    name, _, uploads = decoder.partition("-")
    skip_without_dali(name)
    if uploads:
        pretend_gpu(monkeypatch)
    usual: dict[str, Any] = {"flip": 0.5, "vertical_flip": 0.5, **options}
    expected = values_of(packed, Augment(SIZE, transforms=steps, **usual), name)
    found = values_of(packed, Augment(SIZE, transforms=[Function(same), *steps], **usual), name)
    assert len(found) == 2
    # DALI normalises by itself where nothing follows, and rounds otherwise.
    close = 1e-6 if decoder == "dali" else 0
    for batch, without in zip(found, expected, strict=True):
        for field, values in without.items():
            assert values.dtype == batch[field].dtype
            torch.testing.assert_close(batch[field], values, rtol=close, atol=close, equal_nan=True)


@pytest.mark.parametrize("processes", [0, 1])
def test_what_a_function_returns_is_flipped_and_normalised(packed: Path, processes: int) -> None:
    usual: dict[str, Any] = {"flip": 0.5, "vertical_flip": 0.5, "normalize": None}
    function = Function(change_all, processes=processes)
    before = values_of(packed, Augment(SIZE, **usual), "native")
    after = values_of(packed, Augment(SIZE, transforms=[function], **usual), "native")
    for batch, plain in zip(after, before, strict=True):
        for name in ("image", "half"):
            torch.testing.assert_close(batch[name], 1 - plain[name])
        measured = plain["depth"] >= 0
        torch.testing.assert_close(batch["depth"][measured], plain["depth"][measured] + 1)
        assert torch.equal(batch["mask"], plain["mask"])
        assert torch.equal(batch["flow"], plain["flow"])
        counts = plain["frames counts"].tolist()
        # Each frame is flipped as its place in the list is, so their means tell them apart.
        means = [clip.mean((1, 2, 3)).flip(0) for clip in plain["frames"].split(counts)]
        torch.testing.assert_close(batch["frames"].mean((1, 2, 3)), torch.cat(means))


def test_what_a_function_gets(packed: Path) -> None:
    seen = {}

    def look(sample: Any, rng: np.random.Generator) -> Any:
        seen[sample["index"]] = {
            name: (value.shape, str(value.dtype), value.flags.writeable)
            for name, value in sample.items()
            if isinstance(value, np.ndarray)
        }
        return sample["image"]

    values_of(packed, Augment(SIZE, transforms=[Function(look)]), "native")
    assert len(seen) == len(COUNTS)
    for number, entries in seen.items():
        count = COUNTS[gpuload.Dataset(packed)[number]["label"]]
        assert entries == {
            "image": ((*SIZE, 3), "uint8", True),
            "half": ((*SIZE, 3), "uint8", True),
            "depth": (SIZE, "float32", True),
            "flow": ((*SIZE, 2), "float32", True),
            "mask": (SIZE, "uint8", True),
            "frames": ((count, *SIZE, 3), "uint8", True),
            "masks": ((count, *SIZE), "uint8", True),
        }


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"depth": np.zeros((3, 3), np.float32)}, r"as 'depth': expected float32 \(24, 32\), as it was given"),
        ({"half": np.zeros((*SIZE, 3), np.float32)}, r"float32 \(24, 32, 3\) as 'half': expected uint8"),
        ({"frames": "none"}, "as 'frames': expected uint8"),
        ({"other": 1}, "the entries are 'image', 'mask', 'half', 'depth', 'flow', 'frames', 'masks'"),
    ],
)
def test_what_does_not_fit_is_named(packed: Path, changed: Any, message: str) -> None:
    augment = Augment(SIZE, transforms=[Function(lambda sample, rng: changed)])
    with pytest.raises(FunctionError, match=message):
        values_of(packed, augment, "native")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (Function(same, before_crop=True), "gets whole images, and not 'half', a further picture"),
        (
            Function(Torchvision(lambda image: image)),
            r"a transform of another library gets the image, and would leave 'half'",
        ),
        (Function(albumentations.GaussNoise()), "Write a function of sample and rng that calls it for all pictures"),
    ],
)
def test_what_no_function_gets_is_refused(packed: Path, function: Function, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        load(packed, 4, augment=Augment(SIZE, transforms=[function]), fields=("image", "half"))
