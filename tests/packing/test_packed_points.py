"""Seek points of large JPEGs: the packer and `index --points` write the same; batches are those of a set without."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from images import encode
from PIL import Image

import gpuload
from gpuload.cli import main
from gpuload.packing.image import prepare_image
from gpuload.packing.options import Encoding

POINTS = "image_points"
SIZES = [(400, 300), (640, 450), (96, 64)]  # the last one is too small


def write_images(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(12):
        width, height = SIZES[number % 3]
        rough = Image.fromarray(rng.integers(0, 256, (height // 6, width // 6, 3), np.uint8))
        image = rough.resize((width, height), Image.Resampling.BICUBIC)
        path = folder / f"class{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(image, quality=95, subsampling=2))


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """With points and without."""
    root = tmp_path_factory.mktemp("points")
    write_images(root / "images")
    for name, how in (("with", "auto"), ("without", "no")):
        assert main(["pack", str(root / "images"), str(root / name), "--points", how, "--workers", "1"]) == 0
    return root / "with" / "train", root / "without" / "train"


def points_of(folder: Path) -> list[bytes]:
    dataset = gpuload.Dataset(folder)
    found = [dataset.rows(shard).column(POINTS).to_pylist() for shard in range(len(dataset.shard_paths))]
    return [points for shard in found for points in shard]


def batches(folder: Path, augment: gpuload.Augment, decoder: str = "native") -> Iterator[np.ndarray]:
    with gpuload.DaliIterator(folder, 4, augment=augment, device="cpu", decoder=decoder, num_threads=2) as loader:
        for batch in loader:
            yield batch[0].numpy().copy()


def test_shards_are_the_same_and_large_images_have_points(sets: tuple[Path, Path]) -> None:
    shards = [[shard.read_bytes() for shard in sorted(folder.glob("*.tar"))] for folder in sets]
    assert shards[0] == shards[1]
    heights = [int(row["height"]) for row in gpuload.Dataset(sets[0]).rows(0).to_pylist()]
    assert [bool(points) for points in points_of(sets[0])] == [height >= 300 for height in heights]
    assert POINTS not in gpuload.Dataset(sets[1]).schema.names


def test_a_progressive_jpeg_that_becomes_baseline_has_points() -> None:
    pytest.importorskip("jpeglib", reason="needs the extra 'sources'")
    data = encode(Image.effect_noise((640, 450), 60).convert("RGB"), progressive=True)
    kept, made = prepare_image(data), prepare_image(data, encoding=Encoding(jpeg="baseline"))
    assert not kept.points and made.points and made.points == prepare_image(made.data).points


@pytest.mark.parametrize(
    "augment",
    [gpuload.Augment(64), gpuload.Augment(64, crop=gpuload.RandomCrop(padding=8))],
    ids=["resized crops", "crops as they are"],
)
def test_batches_are_the_same(sets: tuple[Path, Path], augment: gpuload.Augment) -> None:
    both = [list(batches(folder, augment)) for folder in sets]
    assert len(both[0]) == 3
    np.testing.assert_array_equal(both[0], both[1])


def test_a_mixture_with_a_set_without_points(sets: tuple[Path, Path]) -> None:
    mixture = gpuload.mix([(folder, 0.5) for folder in sets])
    with gpuload.DaliIterator(mixture, 8, augment=gpuload.Augment(64), device="cpu", decoder="native") as loader:
        assert sum(len(batch[0]) for batch in loader) == 24


def test_index_writes_what_the_packer_writes(
    sets: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in sets[1].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    for _ in range(2):  # again, with points that are there already
        assert main(["index", "--points", str(tmp_path)]) == 0
        assert "8 of 12 images with seek points" in capsys.readouterr().out
        assert points_of(tmp_path) == points_of(sets[0])
    assert (tmp_path / "index.arrow").read_bytes() == (sets[0] / "index.arrow").read_bytes()
    assert main(["verify", str(tmp_path), "--workers", "1"]) == 0
