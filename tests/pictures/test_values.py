"""Values that change with their image: flows, disparities and normals; pairs that change places; mattes and ids."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from coordinate_sets import COUNT, SIZES, coordinates, maps_to_output, pack_coordinates
from images import encode, smooth_image
from loaders import load
from PIL import Image

import gpuload
from gpuload import (
    ArgumentError,
    Augment,
    Depth,
    Disparity,
    Flow,
    InstanceMap,
    Letterbox,
    Matte,
    Normals,
    OnCorrupt,
    Picture,
    RandomCrop,
)
from gpuload.transforms import RandomAffine, RandomPerspective, RandomRotation

OUT = (40, 48)
FLOW = (3.0, -2.0)
NORMAL = np.array([0.6, -0.48, 0.64], np.float32)
AUGMENTS = {
    "crops": Augment(OUT, flip=0.5, vertical_flip=0.5),
    "letterbox": Augment(OUT, crop=Letterbox(), flip=0.5),
    "padded": Augment(OUT, crop=RandomCrop(padding=5, pad_if_needed=True), flip=0.5),
    "rotated": Augment(OUT, crop="none", flip=0.5, transforms=[RandomRotation(40)]),
    "sheared": Augment(OUT, transforms=[RandomAffine(10, scale=(0.8, 1.3), shear=10)]),
}


def constant(*values: float, dtype: type = np.float32) -> Any:
    """Makes an array (height, width, channels) of these values."""
    return lambda size: np.broadcast_to(np.array(values, dtype), (*size, len(values))).copy()


def kitti_flow(size: tuple[int, int]) -> np.ndarray:
    """uint16 (height, width, 3), as KITTI's PNGs: the left half of the picture has no flow."""
    stored = np.zeros((*size, 3), np.uint16)
    stored[:] = 64 * FLOW[0] + 2**15, 64 * FLOW[1] + 2**15, 1
    stored[:, : size[1] // 2] = 0
    return stored


def ids(size: tuple[int, int]) -> np.ndarray:
    """uint16 (height, width): a number for each pixel."""
    x, y = coordinates(size)
    return (256 * np.floor(y) + np.floor(x)).astype(np.uint16)[..., None]


FIELDS = {
    "flow": constant(*FLOW),
    "kitti": kitti_flow,
    "disparity": constant(1024, dtype=np.uint16),
    "normals": constant(*NORMAL),
    "matte": constant(51, dtype=np.uint8),
    "ids": ids,
}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_coordinates(tmp_path_factory.mktemp("values") / "set", **FIELDS)


def samples(packed: Path, augment: Any, *specs: Any, **options: Any) -> Iterator[tuple[np.ndarray | None, list[Any]]]:
    """The projection of each sample whose keypoints tell it, and the values of the specs."""
    names = [spec.name for spec in specs]
    fields = ("label", *specs, gpuload.Keypoints("keypoints"))
    with load(packed, 6, augment=augment, fields=fields, **options) as loader:
        for batch in loader:
            values = batch._asdict()
            for row, number in enumerate(values["label"].tolist()):
                points = values["keypoints"].keypoints[row, 0].double().numpy()
                projection = maps_to_output(points, number)
                if projection is not None:
                    yield projection, [values[name][row].numpy() for name in names]


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize("name", AUGMENTS)
def test_flow_moves_as_the_difference_of_two_points(packed: Path, name: str, interpolation: Any) -> None:
    compared = 0
    specs = Flow("flow", interpolation=interpolation), Flow("kitti", interpolation=interpolation)
    for projection, values in samples(packed, AUGMENTS[name], *specs):
        expected = (projection[:2, :2] @ np.array(FLOW))[:, None]
        for flow in values:
            assert flow.dtype == np.float32 and flow.shape == (2, *OUT)
            there = ~np.isnan(flow[0])
            assert np.abs(flow[:, there] - expected).max(initial=0) < 2e-3
        assert np.isnan(values[1]).sum() >= np.isnan(values[0]).sum()
        compared += 1
    assert compared > COUNT // 2


def test_a_flow_is_not_moved_by_a_perspective(packed: Path) -> None:
    augment = Augment(OUT, transforms=[RandomPerspective(p=1.0)])
    with pytest.raises(ArgumentError, match=r"Flow\('flow'\): is not moved by a perspective"):
        list(samples(packed, augment, Flow("flow")))


@pytest.mark.parametrize("name", ["crops", "letterbox", "padded"])
def test_a_disparity_grows_with_the_width(packed: Path, name: str) -> None:
    for projection, (disparity,) in samples(packed, AUGMENTS[name], Disparity("disparity", unit=1 / 256, missing=-1)):
        there = disparity[disparity != -1]
        assert np.allclose(there, 4 * abs(projection[0, 0]), rtol=1e-4)
        assert len(there)


def test_a_disparity_is_not_rotated(packed: Path) -> None:
    with pytest.raises(ArgumentError, match="not defined in images that are rotated or warped"):
        list(samples(packed, AUGMENTS["rotated"], Disparity("disparity")))


@pytest.mark.parametrize("name", ["crops", "padded", "rotated"])
def test_normals_turn_with_the_image(packed: Path, name: str) -> None:
    for projection, (normals,) in samples(packed, AUGMENTS[name], Normals("normals", missing=7)):
        left, _, right = np.linalg.svd(projection[:2, :2])
        if name == "rotated":  # the rotation alone: after the image was stretched to the output
            continue
        expected = np.array([*(left @ right @ NORMAL[:2]), NORMAL[2]])
        there = normals[:, normals[0] != 7]
        assert np.allclose(there, expected[:, None], atol=1e-3)
        assert np.allclose(np.linalg.norm(there, axis=0), 1, atol=1e-5)


def test_mattes_are_shares_and_end_with_the_image(packed: Path) -> None:
    for _, (matte,) in samples(packed, AUGMENTS["letterbox"], Matte("matte")):
        assert set(np.unique(matte.round(5))) == {0, np.float32(0.2)}


@pytest.mark.parametrize("name", AUGMENTS)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_ids_are_those_of_the_nearest_pixels(packed: Path, name: str, dtype: Any) -> None:
    x, y = (Depth(axis, invalid=None, missing=-1) for axis in "xy")
    for _, (numbers, across, down) in samples(packed, AUGMENTS[name], InstanceMap("ids", fill=9, dtype=dtype), x, y):
        expected = 256 * np.floor(down[0]) + np.floor(across[0])
        assert numbers.dtype == dtype and numbers.shape == OUT
        assert np.array_equal(numbers, np.where(across[0] < 0, 9, expected))


@pytest.mark.parametrize("invalid", [None, 0, 65_535])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize("name", ["letterbox", "padded", "sheared"])
def test_whole_numbers_are_missing_outside_of_the_picture(
    packed: Path, name: str, interpolation: Any, invalid: int | None
) -> None:
    """Whichever stored number stands for no measurement, even none."""
    depth = Depth("disparity", invalid=invalid, missing=-1, interpolation=interpolation)
    there = Depth("x", invalid=None, missing=-1, interpolation=interpolation)
    outside = 0
    for _, (values, across) in samples(packed, AUGMENTS[name], depth, there):
        outside += int((across < 0).sum())
        assert np.allclose(values, np.where(across < 0, -1, 1024))
    assert outside > 0


@pytest.mark.parametrize(("dtype", "fill"), [("int32", 300), ("int64", 65_535), ("uint8", 255)])
@pytest.mark.parametrize("name", ["letterbox", "sheared"])
def test_ids_of_8_bits_have_any_number_outside(packed: Path, name: str, dtype: Any, fill: int) -> None:
    found = set[int]()
    for _, (numbers,) in samples(packed, AUGMENTS[name], InstanceMap("matte", fill=fill, dtype=dtype)):
        assert numbers.dtype == dtype
        found |= set(numbers.ravel().tolist())
    assert found == {51, fill}


def test_an_id_outside_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"InstanceMap\(fill=256, dtype='uint8'\): expected fill in 0..255"):
        InstanceMap(fill=256, dtype="uint8")


def stereo(folder: Path, count: int = 12) -> Path:
    """Pairs whose left pictures are dark and whose right ones are bright, growing brighter to the right."""
    ramp = np.linspace(0, 60, 50).astype(np.uint8)
    pair = {"left": ramp, "right": ramp + 150}
    rows = [
        {name: np.broadcast_to(row[:, None], (40, 50, 3)).copy() for name, row in pair.items()} | {"label": number}
        for number in range(count)
    ]
    gpuload.pack(rows, folder, workers=1, progress=False, pictures=("left", "right"), encode="keep", lossless=True)
    return folder / "train"


@pytest.mark.parametrize("decoder", ["native", "dali", "both"])
def test_left_and_right_change_places_in_flipped_images(tmp_path: Path, decoder: Any) -> None:
    fields = ("left", Picture("right", swapped=True))
    augment = Augment((40, 50), crop="none", flip=0.5, normalize=None)
    flipped = 0
    with load(stereo(tmp_path), 6, augment=augment, fields=fields, decoder=decoder) as loader:
        for left, right in loader:
            for one, other in zip(255 * left.numpy(), 255 * right.numpy(), strict=True):
                is_flipped = one[0, 0, 0] > one[0, 0, -1]
                assert (one.mean() > 100) == is_flipped == (other.mean() < 100)
                flipped += is_flipped
    assert 0 < flipped < 12


def shifted_pairs(folder: Path, count: int = 12) -> Path:
    """Views of a stereo camera and the disparities of each: left[x] is right[x - d], where that is in the picture."""
    rng = np.random.default_rng(8)
    rows = []
    for number in range(count):
        offset = 1 + number % 4
        left = rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)
        of_left = np.full((20, 30), 256 * offset, np.uint16)
        of_right = of_left.copy()
        of_left[:, :offset] = 0
        of_right[:, -offset:] = 0
        rows.append(
            {
                "left": left,
                "right": np.roll(left, -offset, axis=1),
                "disparity": Image.fromarray(of_left),
                "disparity_right": Image.fromarray(of_right),
            }
        )
    pictures = ("left", "right")
    gpuload.pack(rows, folder, workers=1, progress=False, pictures=pictures, lossless=True)
    return folder / "train"


def test_disparities_are_those_of_the_left_view_of_flipped_pairs_too(tmp_path: Path) -> None:
    fields = (
        "left",
        Picture("right", swapped=True),
        Disparity("disparity", unit=1 / 256),
        Disparity("disparity_right", unit=1 / 256, like="disparity", swapped=True),
    )
    augment = Augment((20, 30), crop="none", flip=0.5, normalize=None, dtype="uint8")
    with load(shifted_pairs(tmp_path), 12, augment=augment, fields=fields) as loader:
        lefts, rights, disparities, others = next(iter(loader))
    for left, right, disparity, other in zip(lefts, rights, disparities, others, strict=True):
        offset = int(disparity.max())
        assert (disparity[..., :offset] == 0).all() and (disparity[..., offset:] == offset).all()
        assert (other[..., -offset:] == 0).all() and (other[..., :-offset] == offset).all()
        assert torch.equal(left[..., offset:], right[..., :-offset])


def test_disparities_of_one_view_are_not_flipped_with_the_views(tmp_path: Path) -> None:
    folder = shifted_pairs(tmp_path)
    fields = ("left", Picture("right", swapped=True), Disparity("disparity", unit=1 / 256))
    with pytest.raises(ArgumentError, match="whose disparity is then that of the other view. Give it, too, as Dispar"):
        load(folder, 4, augment=Augment((20, 30), crop="none", flip=0.5), fields=fields)
    augment = Augment((20, 30), crop="none", flip=0, vertical_flip=0.5, normalize=None, dtype="uint8")
    with load(folder, 12, augment=augment, fields=fields) as loader:
        for left, right, disparity in zip(*next(iter(loader)), strict=True):
            offset = int(disparity.max())
            assert torch.equal(left[..., offset:], right[..., :-offset])


def test_what_changes_places_has_one_size(tmp_path: Path) -> None:
    rows = [{"left": np.zeros((8, 8, 3), np.uint8), "right": np.zeros((9, 8, 3), np.uint8)}] * 4
    gpuload.pack(rows, tmp_path, workers=1, progress=False, pictures=("left", "right"))
    augment = Augment(8, flip=1.0)
    with (
        load(tmp_path / "train", 2, augment=augment, fields=("left", Picture("right", swapped=True))) as loader,
        pytest.raises(ArgumentError, match="change places where images are flipped, and those of sample . differ"),
    ):
        next(iter(loader))


def test_a_target_of_four_times_the_size_shows_the_same_pixels(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    rows = []
    for _ in range(8):
        low = rng.integers(0, 256, (30, 37, 3), dtype=np.uint8)
        rows.append({"low": low, "high": np.repeat(np.repeat(low, 4, axis=0), 4, axis=1)})
    gpuload.pack(rows, tmp_path, workers=1, progress=False, pictures=("low", "high"), lossless=True)
    augment = Augment(16, crop=RandomCrop(), flip=0.5, normalize=None, dtype="uint8")
    with load(tmp_path / "train", 4, augment=augment, fields=("low", Picture("high", scale=4))) as loader:
        for low, high in loader:
            assert high.shape == (4, 3, 64, 64)
            assert np.array_equal(np.repeat(np.repeat(low.numpy(), 4, axis=2), 4, axis=3), high.numpy())


def test_pictures_with_an_augment_of_their_own_move_alone(tmp_path: Path) -> None:
    rows = [
        {"image": np.full((20, 20, 3), n, np.uint8), "reference": np.full((60, 40, 3), 100 + n, np.uint8)}
        for n in range(8)
    ]
    gpuload.pack(rows, tmp_path, workers=1, progress=False, pictures=("reference",), lossless=True)
    augments = {
        "image": Augment(12, normalize=None, dtype="uint8"),
        "reference": Augment((30, 20), crop="none", normalize=None, dtype="uint8"),
    }
    with load(tmp_path / "train", 4, augment=augments, fields=("image", "reference")) as loader:
        for image, reference in loader:
            assert image.shape == (4, 3, 12, 12) and reference.shape == (4, 3, 30, 20)
            assert np.array_equal(image[:, 0, 0, 0].numpy() + 100, reference[:, 0, 0, 0].numpy())


@pytest.mark.parametrize(
    ("augment", "fields", "message"),
    [
        ({"x": Augment(8)}, ("image",), "none for 'image'"),
        ({"image": Augment(8), "x": Augment(8)}, ("image", Depth("x")), "'x' is a map of values"),
        ({"image": Augment(8), "z": Augment(8)}, ("image",), "'z' is not among the requested pictures"),
        (Augment(8), (Depth("x", like="y"),), "'x' moves as 'y', which is no requested picture"),
        (Augment(8), (Flow("x"),), "expected u, v as floats, or KITTI's PNG"),
        (Augment(8), (Depth("label"),), "expected a field of kind 'picture'"),
        (Augment(8), (InstanceMap("ids", dtype="uint8"),), "expected 8 bits, or dtype='int32'"),
        (Augment(8), (InstanceMap("x"),), "expected whole numbers"),
        (Augment(8), (Picture("x"),), "constants of normalize are 3 each"),
        (Augment(8), ("x",), "holds 1 channel of float32, which are no colours. Request it by a spec, such as"),
        (Augment(None, crop="keep"), ("image", Depth("x", scale=2)), "needs images of one size"),
    ],
)
def test_what_does_not_fit_is_an_error_at_construction(packed: Path, augment: Any, fields: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        load(packed, 4, augment=augment, fields=fields)


@pytest.mark.parametrize("action", ["skip", "mark"])
def test_a_bad_map_is_a_fault_of_its_sample(tmp_path: Path, action: Any) -> None:
    packed = pack_coordinates(tmp_path, ids=ids)
    dataset = gpuload.Dataset(packed)
    row = dataset.row(3).to_pylist()[0]
    shard = dataset.shard_paths[0]
    with shard.open("r+b") as file:
        file.seek(row["ids_offset"] + row["ids_bytes"] // 2)
        file.write(b"\xff" * 16)
    names = ["index", "image", "ids", *(["corrupt"] if action == "mark" else [])]
    with load(
        packed,
        6,
        fields=("index", "image", InstanceMap("ids")),
        on_corrupt=OnCorrupt(action, most=1.0),
        drop_last=False,
    ) as loader:
        batches = [dict(zip(names, batch, strict=True)) for batch in loader]
        report = loader.report()
    assert report.corrupt == 1
    assert report.samples[0].index == 3
    index = np.concatenate([batch["index"].numpy() for batch in batches])
    assert (3 in index) == (action == "mark")
    if action == "mark":
        marked = np.concatenate([batch["index"][batch["corrupt"]].numpy() for batch in batches])
        assert marked.tolist() == [3]


@pytest.mark.parametrize("size", SIZES[:2])
def test_a_run_resumes_with_the_same_maps(packed: Path, size: Any) -> None:
    fields = ("index", "image", Depth("x"), Flow("flow"), InstanceMap("ids"))
    options = {"augment": AUGMENTS["crops"], "fields": fields, "seed": size[0]}
    with load(packed, 4, **options) as loader:
        whole = list(loader)
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = list(batches)
    with load(packed, 4, **options) as loader:
        loader.load_state_dict(state)
        again = list(loader)
    assert len(rest) == len(again) == len(whole) - 1
    for batch, same in zip(rest, again, strict=True):
        for value, other in zip(batch, same, strict=True):
            assert np.array_equal(value.numpy(), other.numpy(), equal_nan=value.dtype.is_floating_point)


def test_the_levels_of_gray_jpegs_are_values(tmp_path: Path) -> None:
    """Of 8 bits, beside PNGs of the same field: all are decoded to three channels."""
    levels = smooth_image(np.random.default_rng(5), 40, 30).convert("L")
    formats = ("JPEG", "PNG", "JPEG", "PNG")
    samples = [{"image": encode(Image.new("RGB", (40, 30)), "PNG"), "ids": encode(levels, name)} for name in formats]
    gpuload.pack(samples, tmp_path, workers=1, progress=False, pictures=["ids"], shuffle=False)
    augment = Augment((30, 40), crop="none", flip=0)
    fields = ("index", InstanceMap("ids", dtype="int64"), "image")
    with load(tmp_path / "train", 4, augment=augment, fields=fields, shuffle=False) as loader:
        [(index, ids, _)] = list(loader)
    expected = {"JPEG": np.asarray(Image.open(io.BytesIO(encode(levels)))), "PNG": np.asarray(levels)}
    for number, values in zip(index.tolist(), ids.numpy(), strict=True):
        assert np.array_equal(values, expected[formats[number]])
