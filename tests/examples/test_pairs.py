"""The recipes of several pictures: they learn, and their batches have the samples and the values of the loaders that
such models are usually trained with, in OpenCV and Pillow as RAFT-Stereo, BTS, BasicSR and pix2pix read them."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import image_to_image
import monocular_depth
import numpy as np
import pytest
import stereo
import super_resolution
import torch
import vision_language
from PIL import Image

import gpuload

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("program", "make"),
    [
        (stereo, stereo.make_pairs),
        (monocular_depth, monocular_depth.make_scenes),
        (super_resolution, super_resolution.make_pairs),
        (image_to_image, image_to_image.make_pairs),
        (vision_language, vision_language.make_pictures),
    ],
)
def test_it_learns(
    program: ModuleType, make: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "set")
    torch.manual_seed(0)
    assert program.main([str(tmp_path / "set"), "--epochs", "2"]) == 0
    first, second = map(float, re.findall(r"epoch \d of 2: \D*([\d.]+)", capsys.readouterr().out))
    assert second < first


def levels(images: torch.Tensor) -> np.ndarray:
    """uint8 (N, h, w, C) of images in 0..1."""
    return np.rint(255 * images.permute(0, 2, 3, 1).numpy()).astype(np.uint8)


def of_imagenet(images: torch.Tensor) -> torch.Tensor:
    """In 0..1 again, of what `Augment` normalises by default."""
    normalize = gpuload.Normalize()
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (normalize.mean, normalize.std))
    return images * std + mean


class Origin:
    """Where a crop was taken: the number of the file, its first pixel, and how it was flipped."""

    def __init__(self, number: int, top: int, left: int, across: bool, down: bool) -> None:
        self.number, self.across, self.down = number, across, down
        self._top, self._left = top, left

    def cut(self, pixels: np.ndarray, size: tuple[int, int], scale: int = 1) -> np.ndarray:
        """The same of another picture, of `scale` times the size."""
        top, left = scale * self._top, scale * self._left
        crop = pixels[top : top + scale * size[0], left : left + scale * size[1]]
        crop = crop[:, ::-1] if self.across else crop
        return crop[::-1] if self.down else crop


def origin_of(crop: np.ndarray, files: list[np.ndarray], tolerance: int = 0) -> Origin:
    """Found by comparing it with every place of every file; it may be flipped.

    Args:
        crop: uint8 (height, width, 3).
        files: The pixels of which it is a part.
        tolerance: By which levels may differ.
    """
    best = (np.inf, Origin(0, 0, 0, False, False))
    for across in (False, True):
        for down in (False, True):
            upright = crop[:, ::-1] if across else crop
            upright = np.ascontiguousarray(upright[::-1] if down else upright)
            for number, file in enumerate(files):
                least, _, (left, top), _ = cv2.minMaxLoc(cv2.matchTemplate(file, upright, cv2.TM_SQDIFF))
                if least < best[0]:
                    best = (least, Origin(number, top, left, across, down))
    origin = best[1]
    expected = origin.cut(files[origin.number], crop.shape[:2])
    assert np.abs(expected.astype(int) - crop).max() <= tolerance, "no part of any file"
    return origin


def read_rgb(folder: Path, pattern: str) -> list[np.ndarray]:
    return [cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB) for path in sorted(folder.glob(pattern))]


def read_raw(folder: Path, pattern: str) -> list[np.ndarray]:
    return [cv2.imread(str(path), cv2.IMREAD_UNCHANGED) for path in sorted(folder.glob(pattern))]


def test_stereo_pairs_are_raft_stereos(tmp_path: Path) -> None:
    """Its reader of disparities is cv2.imread(name, IMREAD_ANYDEPTH) / 256, valid where above 0; in a flip of stereo
    pairs the mirrored right view becomes the left one, here with its own disparity."""
    stereo.make_pairs(tmp_path / "set", 8)
    stereo.pack(tmp_path / "set", tmp_path / "packed")
    files = {name: read_rgb(tmp_path / "set", f"{name}/*.png") for name in ("left", "right")}
    maps = {name: read_raw(tmp_path / "set", f"{name}/*.png") for name in ("disparity", "disparity_right")}
    seen, flips = [], 0
    with stereo.open_loader(tmp_path / "packed", 4, (40, 64), jitter=0) as loader:
        for batch in loader:
            views = levels(of_imagenet(batch.left)), levels(of_imagenet(batch.right))
            for left, right, disparity in zip(*views, batch.disparity[:, 0].numpy(), strict=True):
                origin = origin_of(left, [*files["left"], *files["right"]])
                number = origin.number % 8
                is_swapped = origin.number >= 8
                other, own_map = ("left", "disparity_right") if is_swapped else ("right", "disparity")
                assert origin.across == is_swapped
                assert np.array_equal(right, origin.cut(files[other][number], (40, 64)))
                assert np.array_equal(disparity, origin.cut(maps[own_map][number] / np.float32(256), (40, 64)))
                seen.append(number)
                flips += is_swapped
    assert sorted(seen) == list(range(8)) and 0 < flips < 8


def test_depths_are_btss(tmp_path: Path) -> None:
    """Its reader of NYU divides 16-bit PNGs by 1000, and crops and flips both alike."""
    monocular_depth.make_scenes(tmp_path / "set", 8)
    monocular_depth.pack(tmp_path / "set", tmp_path / "packed")
    depths = read_raw(tmp_path / "set", "*/sync_depth_*.png")
    photos = read_rgb(tmp_path / "set", "*/rgb_*.jpg")
    seen = []
    options: dict[str, Any] = {"size": (40, 56), "crop": gpuload.RandomCrop(), "jitter": 0}
    with monocular_depth.open_loader(tmp_path / "packed", 4, **options) as loader:
        for images, metres in loader:
            for photo, depth in zip(levels(of_imagenet(images)), metres[:, 0].numpy(), strict=True):
                origin = origin_of(photo, photos)
                expected = origin.cut(depths[origin.number], (40, 56)) / np.float32(1000)
                np.testing.assert_allclose(depth, expected, rtol=1e-6)
                seen.append(origin.number)
    assert sorted(seen) == list(range(8))


def test_resolutions_are_basicsrs(tmp_path: Path) -> None:
    """Its paired crop takes the large image from `scale` times the first pixel of the small one's."""
    super_resolution.make_pairs(tmp_path / "set", 128)
    super_resolution.pack(tmp_path / "set", tmp_path / "packed")
    small = read_rgb(tmp_path / "set", "DIV2K_train_LR_bicubic/X4/*.png")
    large = read_rgb(tmp_path / "set", "DIV2K_train_HR/*.png")
    seen = []
    with super_resolution.open_loader(tmp_path / "packed", 6, 24) as loader:
        for batch in loader:
            for low, high in zip(levels(batch.low), levels(batch.high), strict=True):
                origin = origin_of(low, small)
                assert np.array_equal(high, origin.cut(large[origin.number], (24, 24), 4))
                seen.append(origin.number)
    assert sorted(seen) == list(range(30)) == list(range(len(small)))


def test_conditions_are_pix2pixs(tmp_path: Path) -> None:
    """Its aligned data set crops and flips both by one draw, and normalises each to its own range."""
    image_to_image.make_pairs(tmp_path / "set")
    for path in sorted((tmp_path / "set").glob("*"))[40:]:
        path.unlink()
    image_to_image.pack(tmp_path / "set", tmp_path / "packed")
    names = sorted((tmp_path / "set").glob("*.jpg"))
    photos = [np.asarray(Image.open(path)) for path in names]
    edges = [np.asarray(Image.open(path.with_suffix(".edges.png"))) for path in names]
    seen = []
    with image_to_image.open_loader(tmp_path / "packed", 5, jitter=0) as loader:
        for batch in loader:
            assert batch.photo.min() < -0.5 and batch.photo.max() > 0.5 and batch.edges.shape == (5, 1, 64, 64)
            for photo, condition in zip(levels((batch.photo + 1) / 2), levels(batch.edges), strict=True):
                origin = origin_of(photo, photos)
                assert np.array_equal(condition[..., 0], origin.cut(edges[origin.number], (64, 64)))
                seen.append(origin.number)
    assert sorted(seen) == list(range(20)) == list(range(len(names)))


def test_sequences_are_llavas(tmp_path: Path) -> None:
    """Its collate puts the patches of each image in the place of <image>, pads to the longest sequence, and has -100 in
    place of all that is not the answer."""
    vision_language.make_pictures(tmp_path / "set", 16)
    vision_language.pack(tmp_path / "set", tmp_path / "packed")
    lines = (tmp_path / "set" / "questions.jsonl").read_text().splitlines()
    wanted = sorted((line["text"], line["images"]) for line in map(json.loads, lines))
    tokenizer = vision_language.Tokenizer()
    words = {number: word for word, number in tokenizer.words.items()}
    seen = []
    with vision_language.open_loader(tmp_path / "packed", tokenizer, 8) as loader:
        for images, texts in loader:
            assert len(images.pixels) == images.counts.sum()
            for pictures, *row in zip(images.split(), *texts.values(), strict=True):
                ids, labels, attention = (values.tolist() for values in row)
                length = sum(attention)
                patches = 16 * len(pictures)
                assert ids[:patches] == [vision_language.IMAGE] * patches and ids[length - 1] == vision_language.END
                assert ids[length:] == [vision_language.PAD] * (len(ids) - length)
                answer = length - 2
                assert labels == [-100] * answer + ids[answer:length] + [-100] * (len(ids) - length)
                said = " ".join(
                    [*["<image>"] * len(pictures), *(words[token] for token in ids[patches:-1] if token > 2)]
                )
                seen.append((said, [pixels.tobytes() for pixels in levels((pictures + 1) / 2)]))
    read = [
        (text, [np.asarray(Image.open(tmp_path / "set" / name)).tobytes() for name in names]) for text, names in wanted
    ]
    assert sorted(seen) == sorted(read)
