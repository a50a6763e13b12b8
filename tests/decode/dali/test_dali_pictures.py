"""Further pictures and lists of pictures in DALI's graph: the same crops and numbers as the image would have."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaged import damage
from images import encode, photo
from loaders import load
from made_batches import make_batch, stored_pictures

import gpuload
from gpuload import Augment, Both, CenterCrop, Letterbox, Mask, Picture, Pictures, RandomCrop
from gpuload.decode.dali.screen import Screen
from gpuload.decode.interface import PictureForm, Stored
from gpuload.decode.native.decoder import NativeDecoder
from gpuload.fields.rows import Ragged
from gpuload.transforms import ColorJitter, RandomRotation

OUT = (40, 52)
PAIRS = 12
LEVELS: dict[str, Any] = {"normalize": None, "dtype": "uint8"}

AUGMENTS = {
    "random": Augment(OUT, flip=0.5, vertical_flip=0.5),
    "stretched": Augment(OUT, crop="none", flip=0.5, dtype="float16", layout="channels_last"),
    "center": Augment(OUT, crop=CenterCrop(resize=60), interpolation="random", **LEVELS),
    "letterbox": Augment(OUT, crop=Letterbox(fill=9), flip=0.5, vertical_flip=0.5, **LEVELS),
    "padded": Augment(OUT, crop=RandomCrop(padding=16, pad_if_needed=True, fill=9), flip=0.5, **LEVELS),
    "colours": Augment(OUT, flip=0.5, transforms=[ColorJitter(0.4), RandomRotation(20)]),
    "by image": Augment(OUT, normalize="image"),
}


def sample_of(number: int) -> dict[str, Any]:
    """An image, the same again, in a quarter of the size, in a list of one to three, and a mask of its halves."""
    width = 90 + number
    image = photo(number, width, 70)
    halves = np.zeros((70, width), np.uint8)
    halves[:, width // 2 :] = 1
    encoded = encode(image, quality=90)
    return {
        "image": encoded,
        "same": encoded,
        "half": encode(image.resize((width // 2, 35)), "PNG"),
        "frames": [encoded] * (1 + number % 3),
        "mask": halves,
        "label": number,
    }


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs") / "set"
    samples = [sample_of(number) for number in range(PAIRS)]
    gpuload.pack(samples, folder, workers=1, progress=False)
    return folder / "train"


@pytest.fixture
def without_native(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is decoded by the native decoder."""

    def fail(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(NativeDecoder, "begin", fail)


@pytest.mark.usefixtures("without_native")
@pytest.mark.parametrize("name", AUGMENTS)
def test_dali_makes_of_all_pictures_what_it_makes_of_the_image(packed: Path, name: str) -> None:
    fields = ("image", "same", Pictures("frames"))
    with load(packed, 4, augment=AUGMENTS[name], fields=fields, decoder="dali") as loader:
        for image, same, frames in loader:
            assert image.shape == same.shape
            assert np.array_equal(image.numpy(), same.numpy())
            for alone, of_list in zip(image.numpy(), frames.split(), strict=True):
                for frame in of_list.numpy():
                    assert np.array_equal(alone, frame)


@pytest.mark.usefixtures("without_native")
@pytest.mark.parametrize("name", ["random", "stretched", "letterbox", "padded"])
def test_pictures_of_another_size_show_what_the_native_decoder_shows(
    packed: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"augment": AUGMENTS[name], "fields": ("label", Picture("half", scale=0.5))}
    with load(packed, 4, decoder="dali", **options) as loader:
        by_dali = [(label.tolist(), half.numpy().astype(np.float32)) for label, half in loader]
    monkeypatch.undo()
    with load(packed, 4, decoder="native", **options) as loader:
        for (numbers, half), (label, expected) in zip(by_dali, loader, strict=True):
            assert numbers == label.tolist()
            level = 1 / 255 / 0.225 if expected.dtype.is_floating_point else 1
            difference = np.abs(half - expected.numpy().astype(np.float32)) / level
            assert difference.mean() < 1
            assert np.percentile(difference, 99) < 6


def test_a_crop_that_lies_in_the_padding_is_its_fill(packed: Path) -> None:
    augment = Augment((8, 8), crop=RandomCrop(padding=200, fill=9), **LEVELS)
    options: dict[str, Any] = {"augment": augment, "fields": ("image", "same"), "decoder": "dali"}
    with load(packed, 4, **options) as loader:
        are_blank = []
        for image, same in loader:
            assert np.array_equal(image.numpy(), same.numpy())
            are_blank += [bool((pixels == 9).all()) for pixels in image.numpy()]
    assert any(are_blank)


@pytest.mark.parametrize("decoder", ["dali", Both(cpu=0.5)])
def test_masks_and_pictures_that_take_the_nearest_pixel_are_native(packed: Path, decoder: Any) -> None:
    augment = Augment(OUT, flip=0.5, **LEVELS)
    fields = ("image", Picture("same", interpolation="nearest"), Mask("mask"), "frames")
    batches = []
    for name in (decoder, "native"):
        with load(packed, 4, augment=augment, fields=fields, decoder=name) as loader:
            batches.append([[np.asarray(same), np.asarray(halves)] for _, same, halves, _ in loader])
    for ours, native in zip(*batches, strict=True):
        for values, expected in zip(ours, native, strict=True):
            assert np.array_equal(values, expected)


def test_two_decoders_share_samples_with_all_their_pictures(packed: Path) -> None:
    """What one of them decodes of a sample, image and picture, is equal; so each decodes both."""
    options: dict[str, Any] = {"augment": AUGMENTS["random"], "fields": ("label", "image", "same"), "drop_last": False}
    images = {}
    for name in ("dali", "native"):
        with load(packed, PAIRS, decoder=name, **options) as loader:
            [(label, image, _)] = list(loader)
            images[name] = dict(zip(label.tolist(), image.numpy(), strict=True))
    deciders = []
    with load(packed, 5, decoder=Both(cpu=0.5), **options) as loader:
        for label, image, same in loader:
            assert np.array_equal(image.numpy(), same.numpy())
            for number, pixels in zip(label.tolist(), image.numpy(), strict=True):
                deciders.append([name for name in images if np.array_equal(images[name][number], pixels)])
    assert {len(names) for names in deciders} == {1}
    assert {names[0] for names in deciders} == {"dali", "native"}


@pytest.mark.parametrize("decoder", ["dali", "native"])
def test_batches_whose_lists_are_all_empty(tmp_path: Path, decoder: str) -> None:
    samples = [
        {"image": encode(photo(number, 40, 30)), "shown": [encode(photo(9, 20, 20))] if number == 5 else []}
        for number in range(8)
    ]
    gpuload.pack(samples, tmp_path / "set", workers=1, progress=False, pictures=["shown"], shuffle=False)
    options: dict[str, Any] = {"augment": AUGMENTS["colours"], "fields": ("index", "shown"), "shuffle": False}
    with load(tmp_path / "set" / "train", 2, decoder=decoder, **options) as loader:
        counts = [shown.counts.tolist() for _, shown in loader]
        shapes = [tuple(shown.pixels.shape) for _, shown in loader]
    assert counts == [[0, 0], [0, 0], [0, 1], [0, 0]]
    assert shapes == [(sum(of_batch), 3, *OUT) for of_batch in counts]


@pytest.mark.parametrize("field", ["same", "frames"])
@pytest.mark.parametrize("action", [None, "skip", "mark"])
def test_a_damaged_picture_is_a_fault_of_its_sample(packed: Path, tmp_path: Path, field: str, action: Any) -> None:
    folder = damage(packed, tmp_path / "set", [3], lambda content: content[: len(content) // 2], field)
    options: dict[str, Any] = {"augment": AUGMENTS["colours"], "decoder": "dali", "drop_last": False}
    fields = ("index", "image", field)
    on_corrupt: Any = gpuload.OnCorrupt(action, most=1.0) if action else "raise"
    with load(folder, 4, fields=fields, on_corrupt=on_corrupt, **options) as loader:
        if action is None:
            with pytest.raises(gpuload.DecodeError, match=f"'{field}' of sample .* does not decode"):
                list(loader)
            return
        batches = list(loader)
        assert [one.index for one in loader.report().samples] == [3]
    index = np.concatenate([batch.index.numpy() for batch in batches])
    assert (3 in index) == (action == "mark")


def test_the_screen_looks_at_all_pictures() -> None:
    """Of an odd picture DALI gets Pillow's pixels; of a bad one the sample is at fault, in a list with its number."""
    sound = encode(photo(0, 51, 38))
    odd = np.frombuffer(encode(photo(1, 51, 38), "WEBP"), np.uint8)
    plain = np.frombuffer(sound, np.uint8)
    bad = plain[:-200]
    augment = Augment(8)
    batch = make_batch(augment, [plain] * 3, [(51, 38)] * 3)
    widths = np.full(4, 51, np.int32)
    heights = np.full(4, 38, np.int32)
    pictures = dict(batch.pictures)
    pictures["right"] = stored_pictures([odd, plain, bad], widths[:3], heights[:3])
    pictures["frames"] = Ragged(np.array([3, 0, 1]), stored_pictures([plain, bad, odd, plain], widths, heights))
    batch.pictures.update(pictures)
    forms = [PictureForm(name, (augment.form,), Stored()) for name in ("image", "right", "frames")]
    screen = Screen(forms, 1)
    prepared, faults = screen.screened(batch, np.arange(3))
    screen.close()
    assert {row: fault.picture for row, fault in faults.items()} == {2: "right", 0: "frames"}
    assert faults[0].reason.startswith("picture 1: image file is truncated")
    for name, row in (("right", 0), ("frames", 2)):
        shown = prepared.stored(name).contents[row]
        assert shown[:2].tobytes() == b"P6"
    assert prepared.stored("right").contents[1] is plain
