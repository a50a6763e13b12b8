"""Images that are floats: all of a source decide whether they are levels, not the first ones, or the packer asks."""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from reading import rows_of

import gpuload
from gpuload.errors import SourceError
from gpuload.types import Array

h5py = pytest.importorskip("h5py", reason="needs the extra 'sources'")
lmdb = pytest.importorskip("lmdb", reason="needs the extra 'sources'")

IMAGES = 40  # more than the packer looks at
RNG = np.random.default_rng(0)
SHARES = RNG.random((IMAGES, 6, 7)).astype(np.float32)
LEVELS = np.rint(SHARES * 255)
LEVELS[:20] = np.minimum(LEVELS[:20], 1)  # half of them as dark as floats in 0..1
WIDE = SHARES * 255
WIDE[::3] /= 255  # some in 0..1, not the first ones
WIDE[0] += 1


def as_npz(images: Array, root: Path) -> Any:
    np.savez(root / "set.npz", image=images, label=np.arange(IMAGES))
    return root / "set.npz"


def as_npy(images: Array, root: Path) -> Any:
    np.save(root / "set.npy", images)
    return root / "set.npy"


def as_hdf5(images: Array, root: Path) -> Any:
    with h5py.File(root / "set.h5", "w") as file:
        file["image"] = images
    return root / "set.h5"


def as_zarr(images: Array, root: Path) -> Any:
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    group = zarr.open_group(str(root / "set.zarr"), mode="w")
    group.create_array("image", data=images)
    return root / "set.zarr"


def as_lmdb(images: Array, root: Path) -> Any:
    with lmdb.open(str(root / "set.lmdb"), map_size=1 << 24) as store, store.begin(write=True) as transaction:
        for number, image in enumerate(images):
            transaction.put(f"{number:08d}".encode(), pickle.dumps({"image": image, "label": number}))
    return root / "set.lmdb"


def as_parquet(images: Array, root: Path) -> Any:
    pq.write_table(pa.table({"image": images.tolist(), "label": list(range(IMAGES))}), root / "set.parquet")
    return root / "set.parquet"


def as_rows(images: Array, root: Path) -> Any:
    return [{"image": image, "label": number} for number, image in enumerate(images)]


def as_pictures(images: Array, root: Path) -> Any:
    return [{"image": Image.fromarray(image), "label": number} for number, image in enumerate(images)]


DOORS = [as_npz, as_npy, as_hdf5, as_zarr, as_lmdb, as_parquet, as_rows, as_pictures]
Door = Callable[[Array, Path], Any]


def packed(source: Any, out: Path, **settings: Any) -> tuple[str, Array, str]:
    """The mode, the gray values of all images in their order, and the notes."""
    report = gpuload.pack(source, out, workers=1, progress=False, shuffle=False, **settings)
    pixels = report.manifests["train"].pixels
    images = list[Array]()
    for row in rows_of(out / "train"):
        if row["image"].startswith(b"\x89PNG"):
            images.append(np.asarray(Image.open(io.BytesIO(row["image"]))))
        else:
            images.append(np.frombuffer(row["image"], pixels.stored).reshape(row["height"], row["width"]))
    return pixels.mode, np.stack(images), "; ".join(report.notes)


@pytest.mark.parametrize("door", DOORS)
def test_whole_floats_up_to_255_are_levels_also_of_dark_images(tmp_path: Path, door: Door) -> None:
    mode, images, notes = packed(door(LEVELS, tmp_path), tmp_path / "out", lossless=True)
    assert mode == "RGB"
    np.testing.assert_array_equal(images, LEVELS)
    assert "40 images of floats, whole numbers up to 255, packed as these levels" in notes


@pytest.mark.parametrize("door", DOORS)
def test_other_floats_stay_as_they_are(tmp_path: Path, door: Door) -> None:
    mode, images, notes = packed(door(WIDE, tmp_path), tmp_path / "out")
    assert mode == "F"
    np.testing.assert_array_equal(images, WIDE)
    assert "the set has mode F" in notes
    assert "--mode RGB --scale 0:255 makes 8-bit colours of them" in notes


@pytest.mark.parametrize(("door", "mode"), [(as_npz, "auto"), (as_npz, "RGB"), (as_pictures, "auto")])
def test_floats_in_0_to_1_are_shares_of_white(tmp_path: Path, door: Door, mode: str) -> None:
    found, images, notes = packed(door(SHARES, tmp_path), tmp_path / "out", mode=mode, lossless=True)
    assert found == "RGB"
    np.testing.assert_array_equal(images, np.rint(SHARES.astype(np.float64) * 255))
    assert "40 images of floats in 0..1 packed as levels of 0..255, rounded: --mode F --encode raw keeps" in notes


@pytest.mark.parametrize("door", [as_npz, as_pictures])
def test_other_floats_become_8_bits_only_by_a_scale(tmp_path: Path, door: Door) -> None:
    source = door(WIDE, tmp_path)
    with pytest.raises(SourceError, match=r"40 images of floats, .* to 25[0-9.]+: neither .* Give --scale 0:255"):
        packed(source, tmp_path / "refused", mode="RGB")
    _, images, _ = packed(source, tmp_path / "out", mode="RGB", scale=(0, 255), lossless=True)
    np.testing.assert_array_equal(images, np.rint(np.minimum(WIDE.astype(np.float64), 255)))


def test_a_set_of_colours_gets_no_floats_of_unknown_range(tmp_path: Path) -> None:
    packed(as_rows(SHARES, tmp_path), tmp_path / "out", lossless=True)
    with pytest.raises(SourceError, match="Give --scale 0:255"):
        packed(as_rows(WIDE, tmp_path), tmp_path / "out", append=True, lossless=True)


def test_rare_floats_of_unknown_range_are_rejected_in_a_set_of_colours_also_dark_ones(tmp_path: Path) -> None:
    images = [image.astype(np.uint8) for image in LEVELS]
    images[5:7] = [WIDE[0], WIDE[3]]
    report = gpuload.pack(as_rows(images, tmp_path), tmp_path / "out", mode="RGB", workers=1, progress=False)
    reasons = {rejection.source: rejection.reason for rejection in report.rejected}
    assert list(reasons) == ["00000005.", "00000006."]
    assert all("of unknown range; --scale LOW:HIGH says" in reason for reason in reasons.values())


def test_floats_that_are_no_numbers_are_named(tmp_path: Path) -> None:
    images = SHARES.copy()
    images[30, 2, 3] = np.nan
    with pytest.raises(SourceError, match=r"no numbers \(NaN\).* Give --scale LOW:HIGH"):
        packed(as_rows(images, tmp_path), tmp_path / "refused", mode="RGB")
    mode, stored, _ = packed(as_rows(images, tmp_path), tmp_path / "out")
    assert mode == "F"
    np.testing.assert_array_equal(stored, images)


def test_an_interrupted_run_has_decided_for_all(tmp_path: Path) -> None:
    """The rows are given once; what they have told is kept with them."""

    def interrupt(progress: Any) -> None:
        if progress.images:
            raise KeyboardInterrupt

    settings: dict[str, Any] = {"lossless": True, "maxcount": 10}
    with pytest.raises(KeyboardInterrupt):
        packed(as_npz(LEVELS, tmp_path), tmp_path / "out", watch=interrupt, **settings)
    _, images, _ = packed(tmp_path / "set.npz", tmp_path / "out", resume=True, **settings)
    np.testing.assert_array_equal(images, LEVELS)
