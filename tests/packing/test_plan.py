"""Settings, the plan, and names of fields: tables for special cases, properties for the rest; and boxes as they are packed."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from images import encode, photo
from reading import rows_of

import gpuload
from gpuload import ArgumentError, SourceError
from gpuload.fields.field import Field
from gpuload.packing.options import Encoding, PackOptions
from gpuload.packing.plan import check_names
from gpuload.packing.split_plan import make_plan
from gpuload.sources import Listing
from gpuload.sources.listing import listing_schema

RECORD = 10_240  # bytes: a tar is a multiple of it


def listing(sizes: Any, labels: Any = None, kind: str = "class") -> Listing:
    """Samples with images of these sizes, and with labels where these are given."""
    names = [f"{number}.jpg" for number in range(len(sizes))]
    if labels is None:
        return Listing(pa.table([names, sizes], schema=listing_schema(())))
    fields = (Field("label", kind, "cls"),)
    return Listing(pa.table([names, sizes, labels], schema=listing_schema(fields)), fields)


def plan(source: Listing, **options: Any) -> Any:
    return make_plan(source, PackOptions(**options))


def tar_bytes(sizes: list[int], labels: bool) -> int:
    """Size of a tar with images of these sizes, and perhaps a label of one digit for each."""
    blocks = sum(1 + -(-size // 512) + 2 * labels for size in sizes) + 2
    return -(-blocks * 512 // RECORD) * RECORD


samples = st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 4)), min_size=1, max_size=200)


maxsizes = st.builds(lambda records, more: records * RECORD + more, st.integers(0, 20), st.integers(1, RECORD))


@settings(max_examples=200)
@given(samples, st.sampled_from([0.0, 0.1, 0.5]), st.integers(1, 40), maxsizes, st.integers(0, 2**40))
def test_every_sample_once_and_limits_held(
    found: list[tuple[int, int]], val: float, maxcount: int, maxsize: int, seed: int
) -> None:
    sizes, labels = map(list, zip(*found, strict=True))
    splits = plan(listing(sizes, labels), val=val, seed=seed, maxcount=maxcount, maxsize=maxsize)
    assert sorted(row for split in splits for row in split.rows.tolist()) == list(range(len(found)))
    for split in splits:
        assert split.ends[-1:].tolist() in ([], [len(split.rows)])
        shards = [split.rows[start:end].tolist() for start, end in itertools.pairwise([0, *split.ends.tolist()])]
        for shard, following in itertools.zip_longest(shards, shards[1:]):
            assert 1 <= len(shard) <= maxcount
            # A sample that is too large for any shard gets a shard of its own.
            assert len(shard) == 1 or tar_bytes([sizes[row] for row in shard], True) <= maxsize
            if following:  # no shard ends before it must
                more = [sizes[row] for row in (*shard, following[0])]
                assert len(shard) == maxcount or tar_bytes(more, True) > maxsize


@pytest.mark.parametrize(("images", "megabytes"), [(40, 16), (1600, 100), (20_000, 1000)])
def test_usual_sizes_of_shards(images: int, megabytes: int) -> None:
    """A sixteenth of all, between 16 MB and 1 GB."""
    (split,) = plan(listing([1_000_000] * images))
    assert np.diff(split.ends, prepend=0).max() == megabytes - 1


@given(st.lists(st.integers(0, 6), min_size=1, max_size=300), st.floats(0.01, 0.9), st.integers(0, 2**40))
def test_val_takes_from_each_class_its_share(labels: list[int], share: float, seed: int) -> None:
    train, val = (
        np.array(labels)[split.rows] for split in plan(listing([9] * len(labels), labels), val=share, seed=seed)
    )
    for label in set(labels):
        assert abs((val == label).sum() - share * labels.count(label)) < 1
        assert (train == label).any()
    # As many as are wanted, or as the classes can give: each its share, rounded up, but never all.
    most = sum(min(labels.count(label) - 1, math.ceil(share * labels.count(label))) for label in set(labels))
    assert len(val) == min(round(share * len(labels)), most)


def test_splits_are_shares_of_the_whole() -> None:
    labels = np.arange(2000) % 2
    shares = (("a", 0.4), ("b", 0.3), ("c", 0.2), ("d", 0.1))
    splits = plan(listing([9] * 2000, labels), splits=shares, seed=6)
    assert [np.bincount(labels[split.rows]).tolist() for split in splits] == [[n, n] for n in (400, 300, 200, 100)]
    _, val = plan(listing([9] * 1500, np.repeat(np.arange(100), 15)), val=0.1, seed=3)
    assert len(val.rows) == 150  # 1.5 of each class


@pytest.mark.parametrize("labels", [None, np.arange(10) / 8])
def test_without_class_numbers_samples_are_of_one_class(labels: Any) -> None:
    """Each value of a target would else be a class of its own, of which none can leave train."""
    splits = plan(listing([100] * 10, labels, "target"), val=0.3, seed=2, maxcount=9)
    assert [len(split.rows) for split in splits] == [7, 3]


def test_the_seed_changes_order_and_split() -> None:
    def rows(seed: int, **options: Any) -> list[list[int]]:
        source = listing([100] * 200, np.arange(200) % 2)
        return [split.rows.tolist() for split in plan(source, seed=seed, maxcount=50, **{"val": 0.1, **options})]

    assert rows(0) == rows(0)
    assert rows(0, val=0)[0] != rows(1, val=0)[0]
    assert set(rows(0)[1]) != set(rows(1)[1])
    kept = rows(0, shuffle=False)
    assert all(found == sorted(found) for found in kept)
    assert set(kept[1]) == set(rows(0)[1])  # the split does not depend on the shuffle


@pytest.mark.parametrize(("count", "measured"), [(10, 10), (512, 512), (8000, 512), (16_000, 1000), (10**6, 4096)])
def test_measured(count: int, measured: int) -> None:
    (split,) = plan(listing(np.full(count, 9)))
    assert split.measured.sum() == measured


@pytest.mark.parametrize("seed", range(4))
def test_seeds_and_splits_are_drawn_independently(seed: int) -> None:
    """In an earlier version the third split of a seed was the second split of the next seed."""
    source = listing([9] * 1000)
    *_, third = plan(source, splits=(("a", 0.4), ("b", 0.1), ("c", 0.5)), seed=seed)
    _, second = plan(source, val=0.5, seed=seed + 1)
    assert len(third.rows) == len(second.rows) == 500
    assert 200 < len(set(third.rows.tolist()) & set(second.rows.tolist())) < 300  # 250 expected by chance


def test_the_second_split_is_drawn_as_val_is() -> None:
    """--append and --resume rely on its key, as in the first version."""
    source = listing([9] * 400, np.arange(400) % 3)
    val = set(plan(source, val=0.2, seed=5)[1].rows.tolist())
    for shares in ((("a", 0.8), ("b", 0.2)), (("a", 0.7), ("b", 0.2), ("c", 0.1))):
        assert set(plan(source, splits=shares, seed=5)[1].rows.tolist()) == val
    assert sorted(val)[:8] == [4, 6, 7, 13, 16, 26, 33, 38]


# Values that are wrong by themselves: tests/test_arguments.py.
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"size": (3, 3)}, "--size needs --encode jpeg or raw"),
    ({"qualiti": 3}, r"pack\(\) has no setting 'qualiti'. Did you mean quality\?"),
    ({"colour": 3}, r"pack\(\) has no setting 'colour'. Its settings are .*quality, "),
    ({"encode": "jpeg", "enlarge": True}, "--fit and --enlarge need --size"),
    ({"check": "header", "mode": "L"}, "--check header needs --encode keep and --mode RGB"),
    ({"encode": "jpeg", "fit": "pad"}, "--fit and --enlarge need --size"),
    ({"encode": "raw", "lossless": True}, "--lossless needs --encode keep or jpeg"),
    ({"check": "header", "encode": "raw"}, "--check header needs --encode keep and --mode RGB"),
    ({"splits": (("a", 0.5), ("a", 0.5))}, "names of folders, each once, with shares that add up to 1"),
    ({"splits": (("a", 0.5), ("b", 0.6))}, "--splits: expected names of folders, .* got .*0.6"),
    *(({"splits": ((name, 1.0),)}, f"--splits: expected names of folders, .* got .*{name}") for name in ("a/b", ".a", " a", "")),
    ({"splits": (("a", 1.0), ("b", 0.0))}, "--splits: expected names of folders, .* got .*'b'"),
    ({"splits": (("a", 1.0),), "val": 0.1}, "--val stands for splits train and val and excludes --splits"),
    ({"address": "x"}, "--address needs --engine ray"),
    ({"append": True, "overwrite": True}, "--append keeps the existing set, --overwrite replaces it"),
    ({"mode": "RGBA", "encode": "jpeg"}, "--mode RGBA needs --encode keep or raw"),
    ({"mode": "F"}, "--mode F needs --encode raw"),
    ({"keep": ("webp",), "encode": "raw"}, "--keep needs --encode keep"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "message"), WRONG)
def test_wrong_settings_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        gpuload.pack([], tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


def test_settings_may_be_texts_as_on_the_command_line() -> None:
    assert (Encoding("raw", "256").size, Encoding("raw", "482x415").size) == ((256, 256), (482, 415))  # type: ignore[arg-type]
    texts = PackOptions(splits="train=0.8, val=20%", max_rejected="1%", maxsize="1MB")  # type: ignore[arg-type]
    assert (texts.splits, texts.max_rejected, texts.maxsize) == ((("train", 0.8), ("val", 0.2)), 0.01, 1_000_000)
    sizes = {"3T": 3 * 10**12, "256 MiB": 2**28, "1e6": 10**6, "500": 500, "1.5k": 1500, "2Ki": 2048}
    for text, size in sizes.items():
        assert PackOptions(maxsize=text).maxsize == size  # type: ignore[arg-type]
    for text in ("", "GB", "1XB", "1 G B", "-", "nan", "1BB"):
        with pytest.raises(ArgumentError, match="--maxsize: expected a positive number of bytes, such as 1GB, or None"):
            PackOptions(maxsize=text)  # type: ignore[arg-type]
    assert PackOptions(val="10%").val == PackOptions(val="0.1").val == 0.1  # type: ignore[arg-type]
    for name, text in (("size", "12y"), ("splits", "train"), ("val", "x%"), ("maxsize", "1 GX"), ("max_rejected", "")):
        with pytest.raises(ArgumentError, match=rf"--{name.replace('_', '-')}: expected .*; got '{text}'"):
            (Encoding if name == "size" else PackOptions)(**{name: text})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *[([(name, "target")], f"^field '{name}': has a name that gpuload reserves for every set. Rename the field$")
          for name in ("key", "source", "width", "height", "index", "dataset", "row", "measured")],
        ([("image", "target")], "field 'image': has a name that field 'image' uses already. Rename the field"),
        ([("image_bytes", "target")], "field 'image_bytes': has a name that field 'image' uses already"),
        ([("a", "boxes"), ("a_class", "class")], "field 'a_class': has a name that field 'a' uses already"),
        ([("a_class", "class"), ("a", "boxes")], "field 'a': needs a column 'a_class', a name that field 'a_class' uses already"),
        ([("a", "array"), ("a_shape", "json")], "field 'a_shape': has a name that field 'a' uses already"),
        ([("x", "mask"), ("x", "target")], "field 'x': has a name that field 'x' uses already"),
    ],
)  # fmt: skip
def test_names_that_are_used_already_are_refused(fields: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        check_names([Field(name, kind, name) for name, kind in fields])
    # Similar ones are not.
    check_names([Field(name, "target", name) for name in ("keys", "Key", "x", "x_class", "x_shape", "image_class")])


def boxed(*boxes: list[list[float]]) -> list[dict[str, Any]]:
    """Images of 48x32 with these boxes."""
    return [{"image": encode(photo(n)), "boxes": b, "boxes_class": ["dog"] * len(b)} for n, b in enumerate(boxes)]


OUTSIDE, INSIDE = [50, 0, 60, 9], [0, 0, 48, 32]


def test_boxes_outside_their_images_are_noted(tmp_path: Path) -> None:
    samples = boxed([INSIDE, OUTSIDE, [5, 5, 5, 9]], [[40, 20, 60, 30], [-0.4, 1, 48.4, 9]], [])
    report = gpuload.pack(samples, tmp_path / "out", workers=2, shuffle=False)
    assert report.notes == (
        "boxes that are empty or lie outside their images: 2, dropped",
        "boxes that reach over an edge of their images: 1, clipped",
    )
    rows = rows_of(tmp_path / "out" / "train")
    assert [row["boxes"] for row in rows] == [[INSIDE], [[40, 20, 48, 30], [0, 1, 48, 9]], []]
    assert [len(row["boxes_class"]) for row in rows] == [1, 2, 0]
    # They move with their image, here to 24x16 without 4 at each side, and those that this cuts off are not noted.
    crop = {"encode": "jpeg", "size": (16, 16), "fit": "center-crop", "workers": 1}
    report = gpuload.pack(boxed([[0, 0, 3, 3], INSIDE, [24, 0, 32, 16]]), tmp_path / "crop", **crop)
    assert report.notes == ()
    assert rows_of(tmp_path / "crop" / "train")[0]["boxes"] == [[0, 0, 16, 16], [8, 0, 12, 8]]


def test_a_resumed_run_keeps_the_counts_and_classes_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = boxed([OUTSIDE], [[0, 0, 9, 9]])
    with monkeypatch.context() as patch, pytest.raises(TypeError):
        patch.setattr("gpuload.packing.output.write_timm_info", None)
        gpuload.pack(samples, tmp_path / "out", workers=1)
    report = gpuload.pack(samples, tmp_path / "out", workers=1, resume=True)
    assert report.notes == ("boxes that are empty or lie outside their images: 1, dropped",)
    assert gpuload.Dataset(tmp_path / "out" / "train").fields["boxes"].classes == ("dog",)
