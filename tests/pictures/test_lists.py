"""Lists of pictures in a sample: how they move, how many a batch holds, and what becomes of bad ones."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from damaged import change_manifest, damage
from fuzzing.loader import write_value
from images import encode, photo
from loaders import load, skip_without_dali

import gpuload
from gpuload import ArgumentError, Augment, CenterCrop, Letterbox, Normalize, OnCorrupt, Picture, Pictures, RandomCrop
from gpuload.packing.verify import verify
from gpuload.transforms import ColorJitter, RandomRotation

OUT = (24, 28)
COUNTS = [3, 1, 0, 4, 2, 3, 1, 5, 2, 4, 0, 3]
LEVELS = {"normalize": None, "dtype": "uint8"}
AUGMENTS = {
    "crops": Augment(OUT, flip=0.5, vertical_flip=0.5, **LEVELS),
    "letterbox": Augment(OUT, crop=Letterbox(), flip=0.5, **LEVELS),
    "padded": Augment(OUT, crop=RandomCrop(padding=5, pad_if_needed=True), flip=0.5, **LEVELS),
    "colours": Augment(OUT, flip=0.5, transforms=[ColorJitter(0.4), RandomRotation(20)]),
}


def level(number: int, position: int) -> int:
    """Of the pictures in `steps`: it tells which picture of which sample it is."""
    return 10 * number + position


def sample_of(number: int) -> dict[str, Any]:
    """An image, another picture of another size, both again in `frames`, and COUNTS[number] pictures in `steps`."""
    image = photo(number, 48, 36)
    other = photo(100 + number, 64, 40 + number)
    steps = [
        np.full((12 + 2 * position, 20, 3), level(number, position), np.uint8) for position in range(COUNTS[number])
    ]
    return {
        "image": encode(image, "PNG"),
        "other": encode(other, "PNG"),
        "frames": [encode(image, "PNG"), encode(other, "PNG"), encode(image, "PNG")],
        "steps": steps,
        "label": number,
    }


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lists") / "set"
    samples = [sample_of(number) for number in range(len(COUNTS))]
    gpuload.pack(samples, folder, workers=1, progress=False, pictures=("steps",), maxcount=5)
    assert verify(folder) == []
    return folder / "train"


@pytest.mark.parametrize("decoder", ["native", "dali"])
@pytest.mark.parametrize("name", AUGMENTS)
def test_each_picture_moves_as_one_by_itself(packed: Path, name: str, decoder: str) -> None:
    skip_without_dali(decoder)
    fields = ("image", Picture("other"), Pictures("frames"))
    with load(packed, 5, augment=AUGMENTS[name], fields=fields, decoder=decoder) as loader:
        for image, other, frames in loader:
            assert frames.counts.tolist() == [3] * len(other)
            first, second, third = (frames.pixels[start::3].numpy() for start in range(3))
            assert np.array_equal(first, third)
            assert np.array_equal(second, other.numpy())
            if decoder == "native":
                assert np.array_equal(first, image.numpy())


@pytest.mark.parametrize("decoder", ["native", "dali", "both"])
def test_lists_are_decoded_without_their_image(packed: Path, decoder: str) -> None:
    skip_without_dali(decoder)
    options: dict[str, Any] = {"augment": AUGMENTS["crops"], "drop_last": False}
    with load(packed, 5, fields=("label", "steps"), decoder=decoder, **options) as loader:
        for label, steps in loader:
            levels = [pictures[:, 0, 9, 9].tolist() for pictures in steps.split()]
            expected = [[level(number, place) for place in range(COUNTS[number])] for number in label.tolist()]
            assert levels == expected


@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_a_batch_holds_all_of_them_or_as_many_of_each(packed: Path, output: Any) -> None:
    specs = {
        "all": Pictures("steps"),
        "first": Pictures("steps", count=2, more="first", fewer="pad"),
        "even": Pictures("steps", count=2, more="even", fewer="pad"),
    }
    taken = {
        "first": lambda n: list(range(min(n, 2))),
        "even": lambda n: [n // 4, 3 * n // 4] if n > 2 else [*range(n)],
    }
    augment = Augment(16, crop="none", **LEVELS)
    for name, spec in specs.items():
        with load(packed, 5, augment=augment, fields=("label", spec), output=output, drop_last=False) as loader:
            seen = []
            for label, steps in loader:
                counts = steps.counts.tolist()
                rows = steps.split() if name == "all" else [*steps.pixels]
                for number, count, pictures in zip(label.tolist(), counts, rows, strict=True):
                    chosen = taken.get(name, lambda n: list(range(n)))(COUNTS[number])
                    levels = np.asarray(pictures)[:, 0, 8, 8].tolist()
                    assert count == len(chosen)
                    assert levels[:count] == [level(number, position) for position in chosen]
                    assert not any(levels[count:])
                    seen.append(number)
            assert sorted(seen) == list(range(len(COUNTS)))


def test_pictures_are_repeated_from_the_first_one_on(packed: Path) -> None:
    data = gpuload.Dataset(packed).subset([number for number in range(len(COUNTS)) if COUNTS[number] > 0])
    spec = Pictures("frames", count=7, fewer="repeat")
    with load(data, 2, augment=AUGMENTS["crops"], fields=("image", "other", spec)) as loader:
        for image, other, frames in loader:
            assert frames.shape == (2, 7, 3, *OUT)
            expected = [image, other, image, image, other, image, image]
            for position, picture in enumerate(expected):
                assert np.array_equal(frames[:, position].numpy(), picture.numpy())


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (Pictures("steps", count=4), "have 0 to 5 pictures in 'steps'. Give more='even' or more='first'"),
        (Pictures("steps", count=6), "have 0 to 5 pictures in 'steps'. Give fewer='pad' or fewer='repeat'"),
        (Pictures("steps", count=6, fewer="repeat"), "of none nothing can be repeated. Give fewer='pad'"),
        (Pictures("frames", count=4), "have 3 pictures in 'frames'"),
        (Pictures("other"), "expected a field of kind 'pictures'"),
        (Pictures("frames", like="steps"), "have 3 pictures in 'frames', 0 to 5 in 'steps'. Pack as many of each"),
        (Picture("other", like="frames"), "'other' moves as 'frames', which is no requested picture"),
    ],
)
def test_what_does_not_fit_is_an_error_at_construction(packed: Path, spec: Any, message: str) -> None:
    fields = list(dict.fromkeys(("image", "frames" if spec.name != "frames" else "steps", spec)))
    with pytest.raises(ArgumentError, match=message):
        load(packed, 4, augment=AUGMENTS["crops"], fields=fields)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"more": "first"}, "says what becomes of samples with more or fewer pictures than count"),
        ({"geometry": "own", "colors": "same"}, "each moves by itself"),
        ({"geometry": "own", "like": "other"}, "each moves by itself"),
        ({"count": 0}, "a number of pictures from 1"),
    ],
)
def test_settings_that_contradict_each_other(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Pictures("frames", **options)


def test_a_list_moves_alone_only_picture_by_picture(packed: Path) -> None:
    augment = {"image": Augment(16), "frames": Augment(OUT, crop="none", normalize=None)}
    with pytest.raises(ArgumentError, match=r"Give Pictures\('frames', geometry='own'\)"):
        load(packed, 4, augment=augment, fields=("image", "frames"))
    with load(packed, 4, augment=augment, fields=("image", Pictures("frames", geometry="own"))) as loader:
        image, frames = next(iter(loader))
        assert image.shape == (4, 3, 16, 16) and frames.pixels.shape == (12, 3, *OUT)


COLOURED = Augment(OUT, flip=0.5, transforms=[ColorJitter(0.5)], normalize=None)


def values_by_sample(packed: Any, batch_size: int, spec: Any, **options: Any) -> dict[int, np.ndarray]:
    fields = ("label", spec)
    with load(packed, batch_size, augment=COLOURED, fields=fields, drop_last=False, **options) as loader:
        return {
            number: pictures.numpy().copy()
            for label, frames in loader
            for number, pictures in zip(label.tolist(), frames.split(), strict=True)
        }


@pytest.mark.parametrize(
    ("geometry", "colors", "is_same"),
    [("shared", "each", False), ("shared", "own", True), ("shared", "none", True), ("own", None, False)],
)
def test_geometry_and_colours_are_drawn_once_or_for_each(
    packed: Path, geometry: Any, colors: Any, is_same: bool
) -> None:
    spec = Pictures("frames", geometry=geometry, colors=colors)
    values = values_by_sample(packed, 5, spec)
    assert len(values) == len(COUNTS)
    same = [np.array_equal(frames[0], frames[2]) for frames in values.values()]
    assert all(same) if is_same else not any(same)
    # Whatever batch they are in, and whichever rank decodes them.
    again = values_by_sample(packed, 3, spec, rank=1, world_size=2)
    assert again and all(np.array_equal(values[number], frames) for number, frames in again.items())


@pytest.mark.parametrize(("colors", "is_same"), [("own", True), ("none", True), ("each", False)])
def test_colours_of_pictures_with_a_geometry_of_their_own(packed: Path, colors: Any, is_same: bool) -> None:
    jittered = Augment(OUT, crop="none", transforms=[ColorJitter(0.5)], **LEVELS)
    plain = Augment(OUT, crop="none", **LEVELS)
    spec = Pictures("frames", count=3, geometry="own", colors=colors)
    options: dict[str, Any] = {"fields": (spec, "label"), "seed": 5}
    with load(packed, 4, augment=jittered, **options) as loader, load(packed, 4, augment=plain, **options) as unchanged:
        for (frames, _), (levels, _) in zip(loader, unchanged, strict=True):
            for pictures, expected in zip(frames.numpy(), levels.numpy(), strict=True):
                assert np.array_equal(pictures[0], pictures[2]) == is_same
                if colors == "none":
                    assert np.array_equal(pictures, expected)


def test_a_run_resumes_with_the_same_pictures(packed: Path) -> None:
    fields = ("index", Pictures("frames", geometry="own"), Pictures("steps", count=2, more="even", fewer="pad"))
    options: dict[str, Any] = {"augment": COLOURED, "fields": fields, "seed": 3}
    with load(packed, 4, **options) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = list(batches)
    with load(packed, 4, **options) as loader:
        loader.load_state_dict(state)
        again = list(loader)
    assert len(rest) == len(again) == 2
    for (index, frames, steps), (same_index, same_frames, same_steps) in zip(rest, again, strict=True):
        assert index.tolist() == same_index.tolist()
        for value, same in zip((*frames, *steps), (*same_frames, *same_steps), strict=True):
            assert np.array_equal(value.numpy(), same.numpy())


def test_pictures_of_their_own_sizes_come_as_lists(packed: Path) -> None:
    augment = Augment(None, crop="keep", **LEVELS)
    with load(packed, 4, augment=augment, fields=("label", Pictures("steps", geometry="own"))) as loader:
        for label, steps in loader:
            for number, pictures in zip(label.tolist(), steps, strict=True):
                sizes = [tuple(picture.shape) for picture in pictures]
                assert sizes == [(3, 12 + 2 * position, 20) for position in range(COUNTS[number])]


def test_several_views_and_channels_last(packed: Path) -> None:
    views = [Augment(16, flip=1.0, **LEVELS), Augment(20, layout="channels_last", **LEVELS)]
    with pytest.raises(ArgumentError):
        load(packed, 4, augment=views, fields=("image", "frames"))
    views = [Augment(16, crop="none", flip=1.0, **LEVELS), Augment(20, crop=CenterCrop(), **LEVELS)]
    with load(packed, 4, augment=views, fields=("image", Pictures("frames", count=3))) as loader:
        images, frames = next(iter(loader))
        assert [one.shape for one in frames] == [(4, 3, 3, 16, 16), (4, 3, 3, 20, 20)]
        for image, of_view in zip(images, frames, strict=True):
            assert np.array_equal(image.numpy(), of_view[:, 0].numpy())
    last = Augment(20, layout="channels_last", **LEVELS)
    with load(packed, 4, augment=last, fields=("image", Pictures("frames", count=3))) as loader:
        image, frames = next(iter(loader))
        assert np.array_equal(image.numpy(), frames[:, 2].numpy())


def test_patches_are_those_of_the_image_alone(packed: Path) -> None:
    augment = Augment(None, gpuload.Patches(patch=8, max_tokens=30), normalize=None)
    fields = ("image", "other", Pictures("frames", count=3))
    with load(packed, 4, augment=augment, fields=fields) as loader:
        image, other, frames = next(iter(loader))
        assert image["patches"].shape[2] == 8 * 8 * 3
        assert other.shape[1] == 3 and frames.shape[:3] == (4, 3, 3)
        # The first patch of the first frame, which is the image.
        first = frames[:, 0, :, :8, :8].permute(0, 2, 3, 1).reshape(4, -1)
        assert np.array_equal(image["patches"][:, 0].numpy(), first.numpy())


def test_buckets_hold_lists_across_windows(packed: Path) -> None:
    buckets = gpuload.Buckets([(16, 24), (24, 24)])
    options = {"shuffle": gpuload.Shuffle(window=1), "drop_last": False}
    seen = []
    with load(packed, 3, augment=Augment(buckets, **LEVELS), fields=("label", "steps"), **options) as loader:
        for label, steps in loader:
            assert steps.counts.tolist() == [COUNTS[number] for number in label.tolist()]
            for number, pictures in zip(label.tolist(), steps.split(), strict=True):
                assert pictures[:, 0, 4, 4].tolist() == [level(number, place) for place in range(len(pictures))]
                seen.append(number)
    assert sorted(seen) == list(range(len(COUNTS)))


@pytest.fixture(scope="module")
def damaged(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The second of the frames of sample 3 is damaged."""

    def change(span: bytes) -> bytes:
        place = span.rindex(b"\x89PNG", 0, span.rindex(b"\x89PNG"))
        return span[: place + 60] + bytes(400) + span[place + 460 :]

    folder = tmp_path_factory.mktemp("damaged") / "set"
    return damage(packed, folder, [3], change, "frames")


@pytest.mark.parametrize("decoder", ["native", "dali"])
@pytest.mark.parametrize("spec", [Pictures("frames"), Pictures("frames", count=3)])
def test_a_bad_picture_is_a_fault_of_its_sample(damaged: Path, spec: Any, decoder: Any) -> None:
    skip_without_dali(decoder)
    options: dict[str, Any] = {"augment": AUGMENTS["crops"], "drop_last": False, "decoder": decoder}
    fields = ("index", "image", spec)
    with (
        load(damaged, 4, fields=fields, on_corrupt="raise", **options) as loader,
        pytest.raises(gpuload.DecodeError, match="the pictures 'frames' of sample .* does not decode .*: picture 1: "),
    ):
        list(loader)
    for action in ("skip", "mark"):
        with load(damaged, 4, fields=fields, on_corrupt=OnCorrupt(action, most=1.0), **options) as loader:
            batches = list(loader)
            report = loader.report()
        assert [one.index for one in report.samples] == [3]
        index = np.concatenate([batch.index.numpy() for batch in batches])
        assert (3 in index) == (action == "mark")
        for batch in batches:
            frames = batch.frames.split() if spec.count is None else list(batch.frames)
            for row, pictures in enumerate(frames):
                is_bad = action == "mark" and bool(batch.corrupt[row])
                assert is_bad == (batch.index[row] == 3 and action == "mark")
                expected = np.zeros_like(batch.image[row]) if is_bad else batch.image[row].numpy()
                if decoder == "native" or is_bad:
                    assert np.array_equal(pictures[0].numpy(), expected)


def test_verify_names_the_picture(damaged: Path) -> None:
    assert any("its frames 1 cannot be decoded" in line for line in verify(damaged))


@pytest.mark.parametrize(
    ("column", "change"),
    [
        ("frames_offsets", lambda value: [value[0] - 10**6, *value[1:]]),
        ("frames_sizes", lambda value: [*value[:-1], 10**9]),
        ("frames_sizes", lambda value: value[:-1]),
        ("frames_points", lambda value: [*value, b"x"]),
        ("frames_widths", lambda value: [0, *value[1:]]),
        ("frames_heights", lambda value: [2**30, *value[1:]]),
        ("frames_bytes", lambda value: 5),
    ],
)
def test_an_index_that_points_elsewhere_is_refused(packed: Path, tmp_path: Path, column: str, change: Any) -> None:
    folder = Path(shutil.copytree(packed, tmp_path / "set"))
    intact = (folder / "index.arrow").read_bytes()
    rows = pa.ipc.open_file(intact).read_all().to_pylist()
    write_value(folder, intact, column, 1, change(rows[1][column]))
    with pytest.raises(gpuload.ShardError, match="'frames'"):
        load(folder, 4, fields=("frames",))


def test_a_manifest_that_tells_of_other_counts_is_refused(packed: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(packed, tmp_path / "set"))

    def claim(manifest: dict[str, Any]) -> None:
        next(field for field in manifest["fields"] if field["name"] == "frames")["counts"] = [2, 2]

    change_manifest(folder, claim, fingerprint=False)
    with pytest.raises(gpuload.ShardError, match="3 pictures in its 'frames', expected 2 to 2"):
        load(folder, 4, fields=(Pictures("frames", count=2),))


def test_floats_need_constants_of_their_own(tmp_path: Path) -> None:
    rows = [
        {"image": photo(number, 20, 16), "maps": [np.full((16, 20, 2), number + at, np.float32) for at in range(2)]}
        for number in range(4)
    ]
    gpuload.pack(rows, tmp_path, workers=1, progress=False, pictures=["maps"], shuffle=False)
    assert verify(tmp_path) == []
    assert gpuload.Dataset(tmp_path / "train").fields["maps"].member == "maps.*.npy"
    with pytest.raises(ArgumentError, match=r"no colours. Request it as .* or as Pictures\('maps', normalize="):
        load(tmp_path / "train", 2, fields=("maps",))
    spec = Pictures("maps", count=2, normalize=Normalize((0.0, 0.0), (1.0, 1.0)))
    with load(tmp_path / "train", 4, augment=Augment(8), fields=("index", spec), shuffle=False) as loader:
        index, maps = next(iter(loader))
        assert maps.shape == (4, 2, 2, 8, 8)
        assert np.allclose(maps[:, 1].numpy(), (index.numpy() + 1)[:, None, None, None])


def test_a_preview_shows_them(packed: Path) -> None:
    for spec in ("frames", Pictures("steps", count=2, more="even", fewer="pad")):
        with load(packed, 4, augment=AUGMENTS["colours"], fields=("image", spec)) as loader:
            assert loader.preview(3).width > 2 * OUT[1]
