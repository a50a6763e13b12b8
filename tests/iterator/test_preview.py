"""`loader.preview()`: what training sees, beside the loader and without disturbing it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged import damage
from loaders import load, same
from painted import pack_painted
from PIL import Image

import gpuload
from gpuload import pictures
from gpuload.batchwise import MixUp

AUGMENT = gpuload.Augment(24)


def pixels(image: Image.Image) -> bytes:
    return image.convert("RGB").tobytes()


def test_a_preview_is_the_next_batch(packed: Path) -> None:
    """The same pixels as the batch that comes next, before the first loop, within one, and after the last batch. The
    loader goes on as one without previews."""

    def preview() -> Image.Image:
        state, steps = loader.state_dict(), loader.metrics().steps
        loader.preview(9)  # samples of two batches
        shown = loader.preview(6)
        assert loader.state_dict() == state and loader.metrics().steps == steps
        return shown

    with load(packed, augment=AUGMENT) as loader, load(packed, augment=AUGMENT) as other:
        batches = [batch for _ in range(2) for batch in other]
        expected, found, seen = [other.preview(6, batch=batch) for batch in batches], [], []
        for _ in range(2):
            seen.append(preview())
            for batch in loader:
                found.append(batch)
                seen.append(preview())
        assert same(found, batches)
        del seen[len(loader)], seen[-1]  # after an epoch's last batch the next epoch's first is shown, twice
        assert [*map(pixels, seen)] == [*map(pixels, expected)]
        assert len({*map(pixels, seen)}) == 2 * len(loader)


def test_the_epoch_that_is_asked_for(packed: Path) -> None:
    with load(packed) as loader:
        first = [pixels(loader.preview(8, epoch=epoch)) for epoch in range(3)]
        assert len(set(first)) == 3
        next(iter(loader))
        assert pixels(loader.preview(8, epoch=0)) == first[0] != pixels(loader.preview(8))
        loader.set_epoch(2)
        assert pixels(loader.preview(8)) == first[2]


def test_batch_transforms_and_several_views(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And fields by other names."""
    captions = captions_of(monkeypatch)
    with load(packed, fields={"pixel_values": "image", "labels": "label"}, batch_transforms=[MixUp(1.0)]) as loader:
        shown = pixels(loader.preview(8))
        mixed = captions[-8:]
        assert any(caption.count(",") == 1 and "0." in caption for caption in mixed)
        assert shown == pixels(loader.preview(8, batch=next(iter(loader))))
    with load(packed, augment=[AUGMENT, gpuload.Augment(16, crop="center")]) as loader:
        shown = pixels(loader.preview(3))
        assert [caption[:6] for caption in captions[-6:]] == ["view 0", "view 1"] * 3
        assert shown == pixels(loader.preview(3, batch=next(iter(loader))))


def captions_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collects the texts under the pictures of all sheets."""
    found, draw_sheet = list[str](), pictures.draw_sheet

    def spy(cells: list[Any]) -> Image.Image:
        found.extend(cell.caption for cell in cells)
        return draw_sheet(cells)

    monkeypatch.setattr("gpuload.loader.iterator.draw_sheet", spy)
    return found


def test_samples_that_do_not_decode_are_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = damage(pack_painted(tmp_path / "painted", 8), tmp_path / "damaged", [2])
    captions = captions_of(monkeypatch)
    with load(folder, shuffle=False, fields=("image", "label")) as loader:
        loader.preview(8)
    assert [number for number, caption in enumerate(captions) if caption == "does not decode"] == [2]
    assert captions[0] == "class0"


@pytest.mark.parametrize(
    ("normalize", "shown"), [(gpuload.Normalize((0.25,) * 3, (0.5,) * 3), {102, 153}), ("image", {0, 255})]
)
def test_levels_are_those_of_the_images(packed: Path, normalize: Any, shown: set[int]) -> None:
    """Where their constants are not known, they are stretched to black and white."""
    with load(packed, augment=gpuload.Augment(8, normalize=normalize), fields=("image",)) as loader:
        (images,) = next(iter(loader))
        images[..., :4], images[..., 4:] = 0.3, 0.7
        levels = {level for _, level in loader.preview(1, batch=(images,)).convert("RGB").getcolors(1 << 16)}
    assert {(level,) * 3 for level in shown} <= levels
    assert shown == {0, 255} or (0, 0, 0) not in levels


def test_boxes_are_drawn_alike_in_every_format(tmp_path: Path) -> None:
    folder = pack_painted(tmp_path / "painted", 4)
    augment = gpuload.Augment((80, 96), crop="none", dtype="uint8")
    plain = shown(folder, augment, ["image"])
    formats = [{}, {"format": "xywh"}, {"format": "cxcywh"}]
    drawn = [shown(folder, augment, ["image", gpuload.Boxes(**form)]) for form in formats]  # type: ignore[arg-type]
    assert all(np.abs(found - drawn[0]).mean() < 0.5 for found in drawn[1:])
    assert np.abs(drawn[0] - plain).mean() > 1
    assert np.abs(shown(folder, augment, ["image", "keypoints"]) - plain).max() > 0.5
    masked = shown(folder, augment, ["image", "mask"])
    assert np.abs(masked - plain).mean() > 10


def shown(folder: Path, augment: gpuload.Augment, fields: list[Any]) -> Any:
    with load(folder, batch_size=4, augment=augment, shuffle=False, fields=fields) as loader:
        sheet = np.asarray(loader.preview(4), np.int64)
    return sheet[:90]  # without the last row's text


def test_a_sheet_is_about_square_and_not_too_wide() -> None:
    grids = {(5, 24, 24): (3, 2), (4, 24, 24): (2, 2), (3, 90, 10): (1, 3), (3, 10, 90): (3, 1), (100, 24, 24): (8, 13)}
    grids |= {(4, 688, 700): (2, 2), (4, 689, 700): (1, 4), (3, 1393, 700): (1, 3)}
    for (number, width, height), (columns, rows) in grids.items():
        sheet = pictures.draw_sheet([pictures.Cell(Image.new("RGB", (width, height)), "")] * number)
        assert sheet.size == (columns * (width + 8) + 8, rows * (height + 29) + 8)
        assert sheet.convert("L").histogram()[0] == number * width * height


def test_what_cannot_be_shown(packed: Path) -> None:
    without_images = load(packed, fields=("label",))
    with without_images, pytest.raises(gpuload.ArgumentError, match="has no 'image'. Add it to show images"):
        without_images.preview()
    with load(packed) as loader:
        for wrong in ((1, 2), {"image": 3}, (1, 2, 3)):
            with pytest.raises(gpuload.ArgumentError, match="expected a batch of this loader, with the fields 'index'"):
                loader.preview(batch=wrong)
    with pytest.raises(gpuload.GpuloadError, match="is closed"):
        loader.preview()
    few = gpuload.Dataset(packed).subset([3])
    with load(few, rank=1, world_size=2, drop_last="exact") as loader:  # type: ignore[arg-type]
        assert loader.preview().size == (16, 16)
