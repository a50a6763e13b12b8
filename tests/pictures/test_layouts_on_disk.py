"""Benchmarks of vision as they lie on disk, in their own encodings: each is packed by one command, and loaded by its spec
with the values that its development kit, or OpenCV, reads."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest
from images import photo

import gpuload
from gpuload import ArgumentError, SourceError
from gpuload.cli import main
from gpuload.commands import DONE, REJECTED

HEIGHT, WIDTH, COUNT = 20, 36, 4
RNG = np.random.default_rng(0)


def write_photo(path: Path, number: int = 0, height: int = HEIGHT, width: int = WIDTH) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    photo(number, width, height).save(path)


def write_values(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), values)


def sparse(low: int, high: int) -> np.ndarray:
    """uint16: numbers in a range, and 0 for a third of the pixels, which a sensor did not see."""
    values = RNG.integers(low, high, (HEIGHT, WIDTH), dtype=np.uint16)
    values[RNG.random((HEIGHT, WIDTH)) < 0.3] = 0
    return values


def write_kitti(root: Path) -> None:
    """The scene flow benchmark of 2015: two frames of two cameras, disparities of the first frame, flow."""
    for number in range(COUNT):
        for camera in ("image_2", "image_3"):
            for frame in (10, 11):
                write_photo(root / camera / f"{number:06d}_{frame}.png", number + frame)
        for name in ("disp_occ_0", "disp_noc_0"):
            write_values(root / name / f"{number:06d}_10.png", sparse(256, 20_000))
        # OpenCV writes B, G, R: the file has u, v, and whether they are known.
        flow = RNG.integers(30_000, 36_000, (HEIGHT, WIDTH, 3), dtype=np.uint16)
        flow[..., 0] = RNG.random((HEIGHT, WIDTH)) < 0.7
        write_values(root / "flow_occ" / f"{number:06d}_10.png", flow)
        calibration = root / "calib_cam_to_cam" / f"{number:06d}.txt"
        calibration.parent.mkdir(exist_ok=True)
        calibration.write_text("P_rect_02: 7.2e+02")


def write_sintel(root: Path) -> None:
    """Passes of frames by scene; each frame but the last has the flow to the next."""
    for scene in ("alley_1", "bandage_2"):
        for frame in range(1, 4):
            for render in ("clean", "final"):
                write_photo(root / render / scene / f"frame_{frame:04d}.png", frame)
            if frame < 3:
                path = root / "flow" / scene / f"frame_{frame:04d}.flo"
                path.parent.mkdir(parents=True, exist_ok=True)
                cv2.writeOpticalFlow(str(path), RNG.normal(0, 4, (HEIGHT, WIDTH, 2)).astype(np.float32))
                hidden = (RNG.random((HEIGHT, WIDTH)) < 0.2).astype(np.uint8) * 255
                write_values(root / "occlusions" / scene / f"frame_{frame:04d}.png", hidden)


def write_div2k(root: Path) -> None:
    for split, start in (("train", 1), ("valid", 801)):
        for number in range(start, start + COUNT):
            write_photo(root / f"DIV2K_{split}_HR" / f"{number:04d}.png", number, 4 * HEIGHT, 4 * WIDTH)
            write_photo(root / f"DIV2K_{split}_LR_bicubic" / "X4" / f"{number:04d}x4.png", number)


def write_nyu(root: Path) -> None:
    """The raw set as most programs export it: frames by scene, depths in millimetres."""
    for scene in ("basement_0001a", "cafe_0001a"):
        for number in range(COUNT):
            write_photo(root / scene / f"rgb_{number:05d}.jpg", number)
            write_values(root / scene / f"sync_depth_{number:05d}.png", sparse(700, 9999))


def write_sidecars(root: Path) -> None:
    for number in range(COUNT):
        folder = root / ("cat", "dog")[number % 2]
        write_photo(folder / f"{number}.jpg", number)
        write_values(folder / f"{number}.depth.png", sparse(700, 9999))


def pack(root: Path, out: Path, **patterns: str) -> gpuload.Dataset:
    """By the command line, as the documentation shows it."""
    given = [word for name, pattern in patterns.items() for word in ("--picture", f"{name}={pattern}")]
    assert main(["pack", str(root), str(out), *given, "--workers", "1"]) in (DONE, REJECTED)
    return gpuload.Dataset(out / "train")


def batch_of(data: gpuload.Dataset, *fields: Any) -> Any:
    """All samples, in their stored order, as they are stored: without a crop, a resize or a flip."""
    augment = gpuload.Augment((HEIGHT, WIDTH), crop="none", flip=0, normalize=None)
    with gpuload.DaliIterator(
        data, len(data), augment=augment, fields=[*fields], device="cpu", shuffle=False, output="numpy"
    ) as loader:
        return next(iter(loader))


def sources(data: gpuload.Dataset) -> list[str]:
    return [str(data[number]["source"]) for number in range(len(data))]


def test_kitti(tmp_path: Path) -> None:
    write_kitti(tmp_path / "training")
    data = pack(
        tmp_path / "training",
        tmp_path / "out",
        left="image_2/*_10.png",
        right="image_3/*_10.png",
        next="image_2/*_11.png",
        disparity="disp_occ_0/*_10.png",
        flow="flow_occ/*_10.png",
    )
    batch = batch_of(
        data, "left", "right", "next", gpuload.Disparity("disparity", unit=1 / 256), gpuload.Flow("flow", missing=0)
    )
    for place, source in enumerate(sources(data)):
        folder, name = tmp_path / "training", Path(source).name
        for field, file in (
            ("left", f"image_2/{name}"),
            ("right", f"image_3/{name}"),
            ("next", f"image_2/{name.replace('_10', '_11')}"),
        ):
            expected = cv2.cvtColor(cv2.imread(str(folder / file)), cv2.COLOR_BGR2RGB) / np.float32(255)
            np.testing.assert_allclose(getattr(batch, field)[place], expected.transpose(2, 0, 1), atol=1e-6)
        disparity = cv2.imread(str(folder / "disp_occ_0" / name), cv2.IMREAD_UNCHANGED)
        assert np.array_equal(batch.disparity[place, 0], disparity / np.float32(256))
        # As RAFT reads it (core/utils/frame_utils.py): B, G, R of OpenCV are valid, v, u.
        stored = cv2.imread(str(folder / "flow_occ" / name), cv2.IMREAD_ANYDEPTH | cv2.IMREAD_COLOR).astype(np.float32)
        flow = (stored[..., :0:-1] - 2**15) / 64 * stored[..., :1]
        assert np.array_equal(batch.flow[place], flow.transpose(2, 0, 1))
    assert len(data) == COUNT


def test_sintel(tmp_path: Path) -> None:
    write_sintel(tmp_path / "training")
    data = pack(
        tmp_path / "training",
        tmp_path / "out",
        frame="clean/*/frame_*.png",
        next="clean/*/frame_{+1}.png",
        flow="flow/*/frame_*.flo",
        hidden="occlusions/*/frame_*.png",
    )
    assert sorted(sources(data)) == [
        f"clean/{scene}/frame_{number:04d}.png" for scene in ("alley_1", "bandage_2") for number in (1, 2)
    ]
    batch = batch_of(data, "frame", "next", gpuload.Flow("flow"), gpuload.Matte("hidden", interpolation="nearest"))
    for place, source in enumerate(sources(data)):
        _, scene, name = source.split("/")
        following = tmp_path / "training" / "clean" / scene / f"frame_{int(name[6:10]) + 1:04d}.png"
        expected = cv2.cvtColor(cv2.imread(str(following)), cv2.COLOR_BGR2RGB) / np.float32(255)
        np.testing.assert_allclose(batch.next[place], expected.transpose(2, 0, 1), atol=1e-6)
        flow = cv2.readOpticalFlow(str(tmp_path / "training" / "flow" / scene / name.replace("png", "flo")))
        assert np.array_equal(batch.flow[place], flow.transpose(2, 0, 1))
        hidden = cv2.imread(str(tmp_path / "training" / "occlusions" / scene / name), cv2.IMREAD_GRAYSCALE)
        assert np.array_equal(batch.hidden[place, 0], hidden / np.float32(255))


def test_div2k_with_its_splits(tmp_path: Path) -> None:
    write_div2k(tmp_path / "div2k")
    pack(
        tmp_path / "div2k",
        tmp_path / "out",
        low="DIV2K_{split}_LR_bicubic/X4/*x4.png",
        high="DIV2K_{split}_HR/*.png",
    )
    for split in ("train", "val"):
        data = gpuload.Dataset(tmp_path / "out" / split)
        assert len(data) == COUNT
        low, high = batch_of(data, "low", gpuload.Picture("high", scale=4))
        assert low.shape == (COUNT, 3, HEIGHT, WIDTH) and high.shape == (COUNT, 3, 4 * HEIGHT, 4 * WIDTH)
        for place, source in enumerate(sources(data)):
            name = Path(source).name.replace("x4", "")
            folder = source.split("/")[0].replace("LR_bicubic", "HR")
            expected = cv2.cvtColor(cv2.imread(str(tmp_path / "div2k" / folder / name)), cv2.COLOR_BGR2RGB)
            np.testing.assert_allclose(high[place], expected.transpose(2, 0, 1) / np.float32(255), atol=1e-6)


def test_folders_of_low_and_high_resolution_in_either_order(tmp_path: Path) -> None:
    write_div2k(tmp_path)
    low, high = tmp_path / "DIV2K_train_LR_bicubic" / "X4", tmp_path / "DIV2K_train_HR"
    for number, folders in enumerate(({"low": low, "high": high}, {"high": high, "low": low})):
        out = tmp_path / f"out{number}"
        gpuload.pack(folders, out, workers=1, progress=False)
        data = gpuload.Dataset(out / "train")
        for sample in map(data.__getitem__, range(COUNT)):
            assert sample["low"].size == (WIDTH, HEIGHT) and sample["high"].size == (4 * WIDTH, 4 * HEIGHT)


@pytest.mark.parametrize(
    ("write", "image", "depth", "classes"),
    [
        (write_nyu, "{label}/rgb_*.jpg", "{label}/sync_depth_*.png", ("basement_0001a", "cafe_0001a")),
        (write_nyu, "**/rgb_*.jpg", "**/sync_depth_*.png", None),
        (write_sidecars, "{label}/*.jpg", "{label}/*.depth.png", ("cat", "dog")),
    ],
)
def test_depths_beside_photos(
    tmp_path: Path, write: Callable[[Path], None], image: str, depth: str, classes: tuple[str, ...] | None
) -> None:
    write(tmp_path / "in")
    data = pack(tmp_path / "in", tmp_path / "out", image=image, depth=depth)
    assert data.classes == classes
    images, depths = batch_of(data, "image", gpuload.Depth("depth", unit=0.001))
    assert len(images) == len(sources(data)) > 0
    for place, source in enumerate(sources(data)):
        name = Path(source).name.replace("rgb", "sync_depth").replace(".jpg", ".png")
        path = tmp_path / "in" / Path(source).parent / name
        path = path if path.exists() else path.with_suffix(".depth.png")
        millimetres = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        np.testing.assert_allclose(depths[place, 0], millimetres * 0.001, rtol=1e-6)


def test_nyus_labelled_matlab_file(tmp_path: Path) -> None:
    """Its arrays have MATLAB's order of axes: (samples, channels, width, height) as HDF5 tells it."""
    path = tmp_path / "nyu_depth_v2_labeled.mat"
    images = RNG.integers(0, 256, (COUNT, 3, WIDTH, HEIGHT), dtype=np.uint8)
    depths = RNG.uniform(0.7, 10, (COUNT, WIDTH, HEIGHT)).astype(np.float32)
    with h5py.File(path, "w", userblock_size=512) as file:
        file["images"], file["depths"] = images, depths
        file["labels"] = RNG.integers(0, 894, (COUNT, WIDTH, HEIGHT), dtype=np.uint16)
        file["accelData"] = np.zeros((4, COUNT), np.float32)
        cell = file.create_dataset("#refs#/a", data=np.frombuffer("kitchen".encode("utf-16-le"), np.uint16)[:, None])
        scenes = file.create_dataset("scenes", (1, COUNT), h5py.ref_dtype)
        scenes[0] = [cell.ref] * COUNT
    options = ["--column", "image=images", "--column", "picture=depths", "--lossless", "--no-shuffle"]
    assert main(["pack", str(path), str(tmp_path / "out"), *options, "--workers", "1"]) == 0
    batch = batch_of(gpuload.Dataset(tmp_path / "out" / "train"), "image", gpuload.Depth("depths"))
    np.testing.assert_allclose(batch.image, images.transpose(0, 1, 3, 2) / np.float32(255), atol=1e-6)
    assert np.array_equal(batch.depths[:, 0], depths.transpose(0, 2, 1))


def test_from_a_program_and_from_a_zip(tmp_path: Path) -> None:
    write_nyu(tmp_path / "nyu" / "scenes")
    archive = shutil.make_archive(str(tmp_path / "nyu"), "zip", tmp_path / "nyu")
    patterns = {"image": "scenes/*/rgb_*.jpg", "depth": "scenes/*/sync_depth_*.png"}
    for source in (tmp_path / "nyu", archive):
        report = gpuload.pack(
            source, tmp_path / f"out{Path(source).suffix}", pictures=patterns, workers=1, progress=False
        )
        assert report.images == 2 * COUNT and not report.rejected


def test_a_sample_without_all_pictures_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sintel(tmp_path / "training")
    pack(
        tmp_path / "training",
        tmp_path / "out",
        image="clean/*/frame_*.png",
        next="clean/*/frame_{+1}.png",
        flow="flow/*/frame_*.flo",
    )
    said = capsys.readouterr().out
    assert "rejected: 2 × lacks its picture next, flow" in said
    assert (
        "10 files that fit no pattern, in 'final/alley_1', 'final/bandage_2', 'occlusions/alley_1' and 1 more" in said
    )


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        ({"depth": "*/*.depth.png"}, "got one pattern, .*, and the image of the sample needs one, too"),
        ({"image": "*/*.jpg", "depth": "*.depth.png"}, r"'\*.depth.png' has 1 wildcards, and '\*/\*.jpg' has 2"),
        ({"image": "*/*.jpg", "depth": "*/{name}.png"}, "A pattern is a path below the source with"),
        ({"image": "*/{+1}.jpg", "depth": "*/*.depth.png"}, "Write \\* in place of the number"),
        ({"image": "*/*.jpg", "depth": "depths"}, "Give patterns for all, or folders for all"),
        ({"image": "*/*.jpg", "depth": "*/*.deep.png"}, "no file fits '\\*/\\*.deep.png'.*such as 'cat/0.depth.png'"),
        (
            {"image": "*/*.jpg", "next": "*/{+1}.jpg"},
            "'cat/0.jpg' and 'cat/00.jpg' are both the picture 'image' of one",
        ),
    ],
)
def test_what_is_no_pattern_is_named(tmp_path: Path, patterns: dict[str, str], message: str) -> None:
    write_sidecars(tmp_path / "in")
    write_photo(tmp_path / "in" / "cat" / "00.jpg")
    with pytest.raises((ArgumentError, SourceError), match=message):
        gpuload.pack(tmp_path / "in", tmp_path / "out", pictures=patterns, workers=1, progress=False)


def test_options_of_other_sources_are_refused(tmp_path: Path) -> None:
    write_sidecars(tmp_path / "in")
    with pytest.raises(ArgumentError, match=r"pack\(no_labels=…\): patterns of pictures say which files are packed"):
        gpuload.pack(
            tmp_path / "in",
            tmp_path / "out",
            pictures={"image": "*/*.jpg", "depth": "*/*.depth.png"},
            no_labels=True,
            progress=False,
        )


def test_pictures_of_one_sample_are_not_packed_as_samples(tmp_path: Path) -> None:
    write_sidecars(tmp_path / "in")
    advice = r"'cat/0.depth.png' lies beside 'cat/0.jpg'.*--picture depth='{label}/\*.depth.png'"
    with pytest.raises(SourceError, match=advice):
        gpuload.pack(tmp_path / "in", tmp_path / "out", progress=False)
    report = gpuload.pack(tmp_path / "in", tmp_path / "out", from_="folder", mode="RGB", workers=1, progress=False)
    assert report.images == 2 * COUNT


@pytest.mark.parametrize("write", [write_kitti, write_div2k])
def test_folders_of_pictures_are_not_taken_for_classes(tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path / "in")
    with pytest.raises(SourceError, match=r"does not look like a class.*--picture for several pictures of each sample"):
        gpuload.pack(tmp_path / "in", tmp_path / "out", progress=False)
