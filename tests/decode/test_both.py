"""Two decoders for each batch: each sample has the pixels of the one that it is given to, and a batch is whole. Raw pixels,
which are the same by all decoders."""

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damaged import damage
from images import encode
from loaders import drain, load
from PIL import Image

import gpuload
from gpuload import Augment
from gpuload.sources import open_source
from gpuload.transforms import ColorJitter, RandomErasing

SHARE = 0.4
EVERYTHING = ("index", "image", "mask", "boxes", "caption", "key")
AUGMENTS: dict[str, Any] = {
    "transforms": Augment(12, transforms=[ColorJitter(0.4), RandomErasing(p=0.5)], dtype="float16"),
    "image": Augment(12, normalize="image", layout="channels_last"),
    "pads": Augment((40, 90), crop="pad_or_crop", dtype="uint8", vertical_flip=0.5),
    "bfloat16": Augment(12, dtype="bfloat16", interpolation="bicubic"),
    "views": [Augment(12, dtype="uint8"), Augment(20, dtype="uint8")],
}


def of_cpu(packed: Path, share: float, seed: int = 0, epoch: int = 0) -> set[int]:
    """The samples whose pixels are the native decoder's; those of all others are DALI's."""
    epochs = []
    for decoder in ("native", "dali", gpuload.Both(cpu=share)):
        with load(packed, 8, decoder=decoder, seed=seed, drop_last=False) as loader:
            loader.set_epoch(epoch)
            epochs.append(dict(drain([loader])))
    native, dali, both = epochs
    assert len(both) == 97 and all(native[n] != dali[n] for n in both)
    assert all(pixels in (native[n], dali[n]) for n, pixels in both.items())
    return {n for n, pixels in both.items() if pixels == native[n]}


@pytest.fixture(scope="module")
def cpus(packed: Path) -> set[int]:
    return of_cpu(packed, SHARE)


def test_which_decoder_is_a_function_of_seed_epoch_sample_and_share(packed: Path, cpus: set[int]) -> None:
    less = of_cpu(packed, 0.25)
    assert less < cpus and 28 < len(cpus) < 50
    # A change would send other samples to the CPU in runs that are resumed.
    assert sorted(n for n in less if n < 40) == [3, 4, 9, 10, 16, 17, 21, 22, 23, 28, 29, 30, 34, 35, 36]
    for other in (of_cpu(packed, SHARE, seed=1), of_cpu(packed, SHARE, epoch=1)):
        assert 8 < len(other & cpus) < len(cpus) - 8  # independent
    assert of_cpu(packed, 0.0) == set() and of_cpu(packed, 1.0) == set(range(97))
    assert 0 < len(of_cpu(packed, 0.02)) < 8  # so few that most batches have none


def fields_of(loader: gpuload.DaliIterator) -> dict[int, dict[str, Any]]:
    """By sample, what a batch holds of it."""
    found = {}
    for batch in (one._asdict() for one in loader):  # type: ignore[attr-defined]
        for row, index in enumerate(batch["index"].tolist()):
            found[index] = {name: _row(value, row) for name, value in batch.items()}
    return found


def _row(value: Any, row: int) -> Any:
    if isinstance(value, torch.Tensor):
        return value[row].double().numpy().tobytes()
    return value[row] if isinstance(value, list) else tuple(_row(part, row) for part in value)


@pytest.mark.parametrize("name", AUGMENTS)
@pytest.mark.parametrize("share", [SHARE, 1.0])
def test_each_sample_is_that_of_its_decoder(painted: Path, name: str, share: float) -> None:
    options: dict[str, Any] = {"augment": AUGMENTS[name], "fields": EVERYTHING, "drop_last": False}
    decoders = gpuload.Both(cpu=share), "native", "dali"
    found, native, dali = (fields_of(load(painted, 9, decoder=decoder, **options)) for decoder in decoders)
    assert len(found) == 40 and all(one in (native[n], dali[n]) for n, one in found.items())
    by_native = [found[n] == native[n] for n in range(40) if native[n] != dali[n]]
    assert len(by_native) > 20 or name == "pads"  # which keeps pixels as they are
    assert all(by_native) if share == 1.0 else 0.2 < np.mean([True, False, *by_native]) < 0.8


@pytest.fixture(scope="module")
def raw(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photos as pixels, 24 × 24."""
    options: dict[str, Any] = {"encode": "raw", "size": 24, "fit": "stretch", "maxcount": 20, "workers": 1}
    gpuload.pack(open_source(photos), out := tmp_path_factory.mktemp("raw"), progress=False, **options)
    return out / "train"


def test_raw_images_and_batches_of_one_decoder_alone(raw: Path) -> None:
    options: dict[str, Any] = {"augment": Augment(24, crop="none", dtype="uint8")}  # not resized: the same by either
    expected = drain([load(raw, 8, decoder="native", **options)])
    for share in (0.0, 0.5, 1.0):
        with load(raw, 8, decoder=gpuload.Both(cpu=share), **options) as loader:
            assert drain([loader]) == expected
            assert np.isnan(loader.metrics().queue_depth) == (share < 1)  # which DALI does not tell


def test_pixels_and_encoded_images_mix_in_the_cpu_decoder_only(raw: Path, packed: Path) -> None:
    mixture = gpuload.mix([(raw, 1), (packed, 1)])
    for decoder in ("dali", "both"):
        with pytest.raises(gpuload.ArgumentError, match=r"encoded images and another raw ones.*decoder='native'"):
            load(mixture, decoder=decoder)
    assert len(drain([load(mixture, 10, decoder="native")])) == 190


def without_pixels(png: bytes) -> bytes:
    """Sound by its chunks and their checksums, so that DALI alone, some batches ahead, finds that it is not."""
    at = png.index(b"IDAT") + 4
    size = int.from_bytes(png[at - 8 : at - 4], "big")
    checksum = zlib.crc32(b"IDAT" + bytes(size)).to_bytes(4, "big")
    return png[:at] + bytes(size) + checksum + png[at + size + 4 :]


def test_an_image_that_dali_itself_refuses_is_named_in_its_turn(tmp_path: Path, cpus: set[int]) -> None:
    noise = encode(Image.effect_noise((40, 30), 90).convert("RGB"), "PNG")
    gpuload.pack([{"image": noise, "label": 0}] * 40, tmp_path / "out", workers=1, shuffle=False)
    bad = [n for n in range(24, 40) if n not in cpus and n // 4 * 4 in cpus][:2]  # not the same row of DALI's part
    assert len(bad) == 2
    damaged = damage(tmp_path / "out" / "train", tmp_path / "damaged", bad, without_pixels)
    options: dict[str, Any] = {"shuffle": False, "decoder": gpuload.Both(cpu=SHARE), "drop_last": False}
    with load(damaged, 4, **options, on_corrupt=gpuload.OnCorrupt("skip", most=1.0)) as loader:
        assert len(drain([loader])) == 40
        assert [sample.index for sample in loader.report().samples] == bad
    seen: list[int] = []
    with load(damaged, 4, **options) as loader, pytest.raises(gpuload.DecodeError, match="does not decode"):
        for index, *_ in loader:
            seen += index.tolist()
    assert seen == list(range(bad[0] // 4 * 4))


@pytest.mark.parametrize("on_corrupt", ["skip", "mark"])
def test_a_replacement_is_decoded_by_its_own_decoder(
    packed: Path, cpus: set[int], tmp_path: Path, on_corrupt: str
) -> None:
    """Whichever decoder the bad sample had; and a sample is refused only by the one that it is given to."""
    bad = sorted({*range(0, 97, 5), *range(40, 48)})
    damaged = damage(packed, tmp_path / "damaged", bad)
    options: dict[str, Any] = {"drop_last": False, "fields": ("index", "image"), "augment": Augment(12)}
    by = {decoder: fields_of(load(packed, 8, decoder=decoder, **options)) for decoder in ("dali", "native")}
    options |= {"on_corrupt": gpuload.OnCorrupt(on_corrupt, most=1.0)}
    with load(damaged, 8, decoder=gpuload.Both(cpu=SHARE), **options) as loader:
        found = list(loader)
        assert sorted(sample.index for sample in loader.report().samples) == bad
    came: list[int] = []
    for index, images, *marks in found:
        for row, number in enumerate(index.tolist()):
            came.append(number)
            if marks and marks[0][row]:
                assert number in bad and not images[row].any()
            else:
                decoder = "native" if number in cpus else "dali"
                assert number not in bad and _row(images, row) == by[decoder][number]["image"]
    assert len(came) == 97 and (sorted(came) == list(range(97))) == (on_corrupt == "mark")


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize("decoder", [gpuload.Dali, gpuload.Both])
def test_two_units_are_not_deterministic(decoder: Any, share: float) -> None:
    message = rf"{decoder.__name__}\(hardware={share:g}, deterministic=True\): which unit decodes"
    with pytest.raises(gpuload.ArgumentError, match=message):
        decoder(hardware=share, deterministic=True)
