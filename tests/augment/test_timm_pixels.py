"""`Augment.timm` and `Augment.torchvision` of the factories of timm and open_clip: their pixels, or a refusal by name."""

import importlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from images import encode, smooth_image
from PIL import Image

import gpuload
from gpuload import ArgumentError, Augment

SIZE = 150, 100  # width, height
SMALL = {"input_size": (3, 64, 64)}
# What leaves nothing to chance: the whole image, always flipped.
WHOLE: dict[str, Any] = {"is_training": True, "scale": (1.0, 1.0), "ratio": (1.5, 1.5), "hflip": 1.0}
SAME: dict[str, dict[str, Any]] = {
    "evaluation": {},
    "bicubic": {"interpolation": "bicubic", "crop_pct": 0.95},
    "other constants": {"mean": (0.5, 0.4, 0.3), "std": (0.5, 0.4, 0.3)},
    "squash": {"crop_mode": "squash", "crop_pct": 0.9},
    "not square": {"input_size": (3, 48, 72), "crop_pct": 0.9},
    "tall": {"input_size": (3, 72, 48), "crop_pct": 1.0, "interpolation": "bicubic"},
    "for the prefetcher": {"use_prefetcher": True},
    "not normalised": {"normalize": False},
    "without augmentation": {"is_training": True, "no_aug": True},
    "flipped": {**WHOLE, "color_jitter": None},
    "flipped vertically": {**WHOLE, "hflip": 0.0, "vflip": 1.0, "color_jitter": None, "interpolation": "bicubic"},
    "gray": {**WHOLE, "color_jitter": None, "grayscale_prob": 1.0},
    "never": {**WHOLE, "color_jitter": 0.4, "color_jitter_prob": 0.0, "gaussian_blur_prob": 0.0, "re_prob": 0.0},
}
REFUSED = {
    "border": ({"crop_mode": "border"}, "timm's ResizeKeepRatio"),
    "border_pixels": ({"crop_border_pixels": 4}, "timm's TrimBorder has no counterpart"),
    "rkrc": ({"is_training": True, "train_crop_mode": "rkrc"}, "timm's ResizeKeepRatio"),
    "naflex": ({"is_training": True, "naflex": True}, "RandomResizedCropToSequence has no counterpart"),
    "patches": ({"patchify": True}, "Patchify has no counterpart"),
    "splits": ({"is_training": True, "re_prob": 0.5, "re_num_splits": 2}, "num_splits"),
}


@pytest.fixture(scope="module")
def timm_data() -> Any:
    importlib.import_module("torchvision_anywhere")
    return importlib.import_module("timm.data")


@pytest.fixture(scope="module")
def jpeg() -> bytes:
    return encode(smooth_image(np.random.default_rng(3), *SIZE), quality=95)


@pytest.fixture(scope="module")
def folder(jpeg: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("timm")
    gpuload.pack([{"image": jpeg, "label": 0}] * 40, out, workers=1)
    return out / "train"


def load(folder: Path, augment: Augment, batch_size: int = 1) -> torch.Tensor:
    options: Any = {"decoder": "native", "device": "cpu", "num_threads": 1}
    with gpuload.DaliIterator(folder, batch_size, augment=augment, **options) as loader:
        return next(iter(loader))[0]


def same(folder: Path, jpeg: bytes, augment: Augment, transform: Any) -> None:
    """Two levels may lie between the results, as for torchvision's transforms; four at the edges of a crop, and Pillow rounds gray levels otherwise."""
    theirs = torch.as_tensor(transform(Image.open(io.BytesIO(jpeg))))
    found = load(folder, augment)[0]
    assert (found.dtype, found.shape) == (theirs.dtype, theirs.shape)
    peak = 255 if found.dtype == torch.uint8 else 1 / 0.225
    gap = (found.double() - theirs.double()).abs() * 255 / peak
    assert gap.max() <= 4.1 and gap.mean() < 0.6, (float(gap.max()), float(gap.mean()))


@pytest.mark.parametrize("variant", SAME)
def test_variants_of_create_transform_give_timms_pixels(
    folder: Path, jpeg: bytes, timm_data: Any, variant: str
) -> None:
    options = {**SMALL, **SAME[variant]}
    same(folder, jpeg, Augment.timm(**options), timm_data.create_transform(**options))


def test_a_data_config_is_taken_as_it_is(timm_data: Any) -> None:
    config = timm_data.resolve_data_config({"input_size": (3, 48, 48)})
    augment = Augment.timm(config, crop_pct=1.0)
    assert augment == Augment.timm(**{**config, "crop_pct": 1.0}) and augment.output_size == (48, 48)
    train = Augment.timm(config, is_training=True, re_prob=0.3, re_mode="pixel", re_count=2)
    erasing = train.transforms[-1]
    assert isinstance(erasing, gpuload.transforms.RandomErasing)
    assert (erasing.p, erasing.value, erasing.count) == (0.3, "random", (1, 2))


@pytest.mark.parametrize("variant", REFUSED)
def test_other_variants_are_refused_by_name(timm_data: Any, variant: str) -> None:
    options, message = REFUSED[variant]
    with pytest.raises(ArgumentError, match=message):
        Augment.timm(**options)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["shortest", "squash"])
def test_open_clips_evaluation(folder: Path, jpeg: bytes, timm_data: Any, mode: str) -> None:
    transform = importlib.import_module("open_clip.transform").image_transform(48, is_train=False, resize_mode=mode)
    same(folder, jpeg, Augment.torchvision(transform), transform)


@pytest.mark.filterwarnings("ignore")
def test_open_clips_training(timm_data: Any) -> None:
    transform = importlib.import_module("open_clip.transform").image_transform(48, is_train=True)
    augment = Augment.torchvision(transform)
    assert augment.crop == gpuload.RandomResizedCrop((0.9, 1.0)) and augment.interpolation == "bicubic"


def test_rectangles_of_timm(folder: Path, timm_data: Any) -> None:
    """Each has its part of the area, and a colour of its own, or noise."""
    erase = gpuload.transforms.RandomErasing(1.0, (0.2, 0.3), count=(1, 3), value="color")
    plain = load(folder, Augment(64, crop="none"), 40)
    images = load(folder, Augment(64, crop="none", transforms=[erase]), 40)
    numbers = set()
    for own, image in zip(plain, images, strict=True):
        changed = (own != image).any(0)
        colors = {tuple(color) for color in image[:, changed].T.tolist()}
        numbers.add(len(colors))
        assert 0 < changed.float().mean() <= 0.31
    assert numbers == {1, 2, 3}
    theirs = timm_data.random_erasing.RandomErasing(1.0, 0.2, 0.3, mode="rand", min_count=1, max_count=3, device="cpu")
    shares = [(theirs(torch.full((3, 64, 64), 9.0)) != 9).any(0).float().mean() for _ in range(300)]
    ours = [(load(folder, Augment(64, crop="none", transforms=[erase]), 40) != plain).any(1).float().mean()]
    assert abs(float(np.mean(shares)) - float(np.mean(ours))) < 0.03
    noise = gpuload.transforms.RandomErasing(1.0, (0.2, 0.3), count=(2, 2), value="random")
    assert len({*load(folder, Augment(64, crop="none", transforms=[noise]), 1)[0, 0].flatten().tolist()}) > 700
    for wrong in ((2, 1), (0, 1), (1.5, 2), 3):
        with pytest.raises(ArgumentError, match="count"):
            gpuload.transforms.RandomErasing(count=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("decoder", ["native", "dali", "both"])
def test_the_filter_is_drawn_for_each_image(folder: Path, timm_data: Any, decoder: Any) -> None:
    """timm's default in training: each image is resized by one of the two filters, and as with that filter alone."""
    augment = Augment.timm({**SMALL, "interpolation": "random"}, is_training=True, color_jitter=None)
    assert augment.interpolation == "random"
    made = {}
    for name in ("random", "bilinear", "bicubic"):
        other = gpuload.Augment(64, interpolation=name, dtype="uint8")
        with gpuload.DaliIterator(folder, 40, augment=other, decoder=decoder, device="cpu", num_threads=2) as loader:
            made[name] = next(iter(loader))[0]
    equal = [(made["random"] == made[name]).flatten(1).all(1) for name in ("bilinear", "bicubic")]
    assert (equal[0] ^ equal[1]).all() and 8 < equal[0].sum() < 32
