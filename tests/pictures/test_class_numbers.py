"""Further pictures and lists of class numbers: of files with palettes and few bits the numbers are packed."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import encode, photo
from loaders import load
from PIL import Image

import gpuload
from gpuload import InstanceMap, Mask, Pictures
from gpuload.packing.run import PackReport
from gpuload.packing.verify import verify

SIZE = (12, 16)
PALETTE = [value for index in range(256) for value in (index * 37 % 256, index * 91 % 256, index * 13 % 256)]


def numbers(number: int) -> np.ndarray:
    return (np.arange(SIZE[0] * SIZE[1]).reshape(SIZE) // 20 + number).astype(np.uint8)


def as_palette(values: np.ndarray, palette: list[int] = PALETTE, form: str = "PNG", **options: Any) -> bytes:
    image = Image.fromarray(values).convert("L")
    image = Image.frombytes("P", image.size, image.tobytes())
    image.putpalette(palette)
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def opened(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


FORMS = {
    "palette": as_palette,
    "palette of 4 bits": lambda values: as_palette(values % 14, bits=4),
    "gif": lambda values: as_palette(values, form="GIF", optimize=False),
    "a loaded image": lambda values: opened(as_palette(values)),
    "gray": lambda values: encode(Image.fromarray(values), "PNG"),
    "bits": lambda values: encode(Image.fromarray(values % 2 == 1), "PNG"),
    "an array": lambda values: values,
}


def expected(form: str, number: int) -> np.ndarray:
    values = numbers(number)
    return {"bits": values % 2, "palette of 4 bits": values % 14}.get(form, values)


def pack(samples: Any, out: Path, **options: Any) -> PackReport:
    report = gpuload.pack(samples, out, workers=1, progress=False, shuffle=False, **options)
    assert verify(out) == []
    return report


def first_batch(folder: Path, *fields: Any) -> Any:
    augment = gpuload.Augment(SIZE, crop="none", normalize=None)
    with load(folder, 2, augment=augment, fields=fields, shuffle=False) as loader:
        return next(iter(loader))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["masks", "parts"])
def test_masks_of_frames(tmp_path: Path, form: str, name: str) -> None:
    """As DAVIS has them: a palette for each frame. A list called "masks" is one of masks."""
    samples = [
        {"frames": [photo(number, 16, 12)] * 2, name: [FORMS[form](numbers(number + place)) for place in range(2)]}
        for number in range(2)
    ]
    options: dict[str, Any] = {"class_numbers": ["parts"]} if name == "parts" else {}
    report = pack(samples, tmp_path, pictures=[name], **options)
    assert report.rejected == () and report.notes == ()
    spec = Pictures(name, like="frames", each=Mask())
    batch = first_batch(tmp_path / "train", Pictures("frames", count=2), spec)
    found = getattr(batch, name).numpy()
    for number in range(2):
        for place in range(2):
            assert np.array_equal(found[number, place], expected(form, number + place))


def test_a_further_picture_of_ids(tmp_path: Path) -> None:
    samples = [{"image": photo(number, 16, 12), "ids": as_palette(numbers(number))} for number in range(2)]
    pack(samples, tmp_path / "ids", class_numbers="ids")
    found = first_batch(tmp_path / "ids/train", InstanceMap("ids")).ids
    assert np.array_equal(found.numpy(), np.stack([numbers(0), numbers(1)]))
    assert gpuload.Dataset(tmp_path / "ids/train").manifest.packing["options"] == {"class_numbers": ["ids"]}
    # Colours by default, as of photos with a palette, but not without a word.
    report = pack(samples, tmp_path / "colours")
    note = "pictures in 'ids' with a palette or fewer than 8 bits: 2, packed as they are shown; --class-numbers ids"
    assert len(report.notes) == 1 and report.notes[0].startswith(note)
    with pytest.raises(gpuload.ArgumentError, match="expected whole numbers, as pack --class-numbers ids takes them"):
        first_batch(tmp_path / "colours/train", InstanceMap("ids"))


def test_what_has_no_class_numbers_is_rejected_by_name(tmp_path: Path) -> None:
    samples = [
        {"image": photo(0, 16, 12), "ids": as_palette(numbers(0))},
        {"image": photo(1, 16, 12), "ids": encode(photo(1, 16, 12), "PNG")},
        {"image": photo(2, 16, 12), "ids": encode(photo(2, 16, 12))},
        {"image": photo(3, 16, 12), "ids": as_palette(numbers(3), [255 - n // 3 for n in range(768)])},
        {"image": photo(4, 16, 12), "ids": as_palette(np.zeros((50, 50), np.uint8))},
        {"image": photo(5, 16, 12), "ids": as_palette(numbers(0))[:70]},
    ]
    report = pack(samples, tmp_path, class_numbers=["ids"], max_pixels=2000, max_rejected=1.0)
    reasons = [rejection.reason for rejection in report.rejected]
    assert [reason.split(":")[0][:60] for reason in reasons] == [
        "its 'ids' a mask must hold one class number per pixel; found",
        "its 'ids' the mask is compressed with losses, which change c",
        "its 'ids' the mask shows its number 3 as the gray 252 of a p",
        "its 'ids' 50 x 50 pixels, more than --max-pixels 2000",
        "its 'ids' the mask cannot be decoded",
    ]
    with pytest.raises(gpuload.ArgumentError, match="--class-numbers id: is no further picture; there are 'ids'"):
        pack(samples, tmp_path / "other", class_numbers=["id"])
