"""The contract test of kinds of fields, run for each kind in the registry, from the source to the batch.

A new kind only needs an `Example` here; a kind without one fails.
"""

import csv
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fuzzing.loader import write_value
from images import encode
from PIL import Image
from pyarrow import parquet

import gpuload
from gpuload.cli import main
from gpuload.fields.registry import KINDS, kind_of
from gpuload.packing.verify import verify

SAMPLES = 7
WIDTH, HEIGHT = 32, 24
NAMES = ("nose", "left_eye", "right_eye")


@dataclass(frozen=True)
class Example:
    """A field of a kind, for uncropped images of WIDTH × HEIGHT.

    give: the entries of a sample's dict, by sample number; the first key is the field's name. show: a sample's value in
    a form that can be compared, from the field's output for a batch and the row. expect: that value, by sample number.
    mirror, half: how the value changes when the image is flipped left to right, or packed at half its size. cell: the
    value in a table, by sample number; None for a kind that tables cannot hold. settings: of the packer.
    """

    give: Callable[[int], dict[str, Any]]
    show: Callable[[Any, int], Any]
    expect: Callable[[int], Any]
    mirror: Callable[[Any], Any] = lambda value: value
    half: Callable[[Any], Any] = lambda value: value
    cell: Callable[[int], Any] | None = None
    settings: tuple[tuple[str, Any], ...] = ()


def pixels(number: int) -> np.ndarray:
    """An image with one gray level in its left half and another in its right half, which JPEG almost preserves."""
    image = np.full((HEIGHT, WIDTH, 3), 40 + 10 * number, np.uint8)
    image[:, WIDTH // 2 :] = 200
    return image


def boxes(number: int) -> list[list[float]]:
    return [[0.0, 2.0, 8.0, 10.0], [4.0, 4.0, 16.0 + 2 * number, 20.0]][: number % 3]


def points(number: int) -> np.ndarray:
    """Instances of three points; in every other instance the last point is not labelled."""
    instances = [
        [[4.0, 2.0, 2], [6.0 + 2 * number, 8.0, 1], [20.0, 12.0 + number, 2 * (at % 2)]] for at in range(number % 3)
    ]
    array = np.array(instances, np.float32).reshape(-1, 3, 3)
    array[array[..., 2] == 0] = 0
    return array


def mirror_boxes(found: np.ndarray) -> np.ndarray:
    mirrored = found.copy()
    mirrored[:, [0, 2]] = WIDTH - found[:, [2, 0]]
    return mirrored


def mirror_points(found: np.ndarray) -> np.ndarray:
    mirrored = found[:, [0, 2, 1]].copy()  # the eyes are swapped
    mirrored[..., 0] = np.where(mirrored[..., 2] > 0, WIDTH - mirrored[..., 0], 0)
    return mirrored


def whole_image(images: Any, row: int) -> np.ndarray:
    return images[row].numpy().mean(axis=(0, 1)).round(-1)  # the level of each column, to the nearest ten


def image_levels(number: int) -> np.ndarray:
    return pixels(number)[0, :, 0].astype(np.float32)


def mask(number: int) -> np.ndarray:
    numbers = np.full((HEIGHT, WIDTH), number, np.uint8)
    numbers[:, : WIDTH // 4] = 9
    return numbers


def depth(number: int) -> np.ndarray:
    distances = np.full((HEIGHT, WIDTH), 300 + number, np.uint16)
    distances[:, : WIDTH // 4] = 65_535
    return distances


LISTED = [2, 0, 1, 3, 0, 1, 2]  # pictures in the list of each sample


def frames(number: int) -> np.ndarray:
    masks = [mask(number + at) for at in range(LISTED[number])]
    return np.array(masks, np.uint8).reshape(-1, HEIGHT, WIDTH)


def flip_columns(value: np.ndarray) -> np.ndarray:
    return value[..., ::-1]


def number_of(output: Any, row: int) -> Any:
    return output[row].tolist()


image = Example(
    lambda number: {"image": encode(Image.fromarray(pixels(number)), quality=98)},
    whole_image,
    image_levels,
    flip_columns,
)

EXAMPLES = {
    "image": image,
    "raw": Example(
        lambda number: {"image": pixels(number)}, whole_image, image_levels, flip_columns, settings=(("encode", "raw"),)
    ),
    "class": Example(lambda n: {"label": n % 3}, number_of, lambda n: n % 3, cell=lambda n: n % 3),
    "labels": Example(
        lambda n: {"labels": ["abc"[at] for at in range(n % 4)] if n else ["a", "b", "c"]},
        number_of,
        lambda n: [float(at < n % 4 or not n) for at in range(3)],
        cell=lambda n: ["abc"[at] for at in range(n % 4)] if n else ["a", "b", "c"],
    ),
    "target": Example(lambda n: {"angle": n / 4 - 1}, number_of, lambda n: n / 4 - 1, cell=lambda n: n / 4 - 1),
    "integers": Example(
        lambda n: {"number": 16_777_217 + 10**9 * n - 3}, number_of, lambda n: 16_777_217 + 10**9 * n - 3,
        cell=lambda n: 16_777_217 + 10**9 * n - 3,
    ),
    "caption": Example(
        lambda n: {"caption": f"photo {n}, größer"}, lambda out, row: out[row], lambda n: f"photo {n}, größer",
        cell=lambda n: f"photo {n}, größer",
    ),
    "json": Example(lambda n: {"about": {"n": [n]}}, lambda out, row: out[row], lambda n: {"n": [n]}),
    "array": Example(lambda n: {"features": np.arange(6.0).reshape(2, 3) + n}, number_of,
                     lambda n: (np.arange(6.0).reshape(2, 3) + n).tolist()),
    "boxes": Example(
        lambda n: {"boxes": boxes(n), "boxes_class": ["dog", "cat"][: n % 3]},
        lambda out, row: out.boxes[row][: out.counts[row]].numpy(),
        lambda n: np.array(boxes(n), np.float32).reshape(-1, 4),
        mirror_boxes,
        lambda value: value / 2,
        lambda n: json.dumps([[*box, name] for box, name in zip(boxes(n), ("dog", "cat"), strict=False)]),
    ),
    "instances": Example(
        lambda n: {
            "boxes": boxes(n), "boxes_class": ["dog", "cat"][: n % 3], "boxes_area": [20.0, 30.0][: n % 3],
            "boxes_crowd": [0] * (n % 3), "boxes_masks": [[[x0, y0, x1, y0, x1, y1, x0, y1]] for x0, y0, x1, y1 in boxes(n)],
        },
        lambda out, row: out.boxes[row][: out.counts[row]].numpy(),
        lambda n: np.array(boxes(n), np.float32).reshape(-1, 4),
        mirror_boxes,
        lambda value: value / 2,
    ),
    "keypoints": Example(
        lambda n: {"keypoints": points(n)},
        lambda out, row: out.keypoints[row][: out.counts[row]].numpy(),
        points,
        mirror_points,
        lambda value: value * np.array([0.5, 0.5, 1], np.float32),
        lambda n: points(n).tolist(),
    ),
    "mask": Example(
        lambda n: {"mask": mask(n)}, lambda out, row: out[row].numpy(), mask, flip_columns,
        lambda value: value[::2, ::2], lambda n: f"masks/{n}.png",
    ),
    "picture": Example(
        lambda n: {"depth": Image.fromarray(depth(n))}, lambda out, row: out[row, 0].numpy(), depth, flip_columns,
        lambda value: value[::2, ::2],
    ),
    "pictures": Example(
        lambda n: {"frames": [Image.fromarray(mask(n + at)) for at in range(LISTED[n])]},
        lambda out, row: out.split()[row].numpy()[:, 0], frames, flip_columns,
        lambda value: value[:, ::2, ::2],
    ),
}  # fmt: skip


def field_name(kind: str) -> str:
    return next(iter(EXAMPLES[kind].give(0)))


def spec_of(kind: str) -> Any:
    """How to request the field: by its name, but keypoints by a spec, since points packed from dicts have no names, and
    pictures, since nothing else says what their numbers mean."""
    specs = {"keypoints": gpuload.Keypoints(flip_pairs=((1, 2),)), "picture": gpuload.Depth()}
    return specs.get(kind, field_name(kind))


def samples_of(kind: str) -> list[dict[str, Any]]:
    return [{**image.give(number), "name": f"{number:02d}", **EXAMPLES[kind].give(number)} for number in range(SAMPLES)]


def pack(folder: Path, kind: str, first: int = 0, **settings: Any) -> gpuload.Dataset:
    given = {"workers": 1, "maxcount": 3, "shuffle": False, **dict(EXAMPLES[kind].settings), **settings}
    gpuload.pack(samples_of(kind)[first:], folder, **given)
    return gpuload.Dataset(folder / "train")


@pytest.fixture(scope="module", params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def packed(kind: str, tmp_path_factory: pytest.TempPathFactory) -> gpuload.Dataset:
    return pack(tmp_path_factory.mktemp(kind) / "out", kind)


def loader(data: Any, kind: str, batch_size: int = 3, **options: Any) -> gpuload.DaliIterator:
    size = options.pop("size", (HEIGHT, WIDTH))
    augment = gpuload.Augment(size, crop="none", dtype="uint8", flip=options.pop("flip", 0.0))
    usual = {"shuffle": False, "device": "cpu", "decoder": "native", "num_threads": 1, "drop_last": False}
    fields = [*options.pop("fields", [spec_of(kind)]), "index", "dataset"]
    return gpuload.DaliIterator(data, batch_size, augment=augment, fields=fields, **{**usual, **options})


def drain(batches: Any, kind: str, second: int = 0) -> list[tuple[int, Any]]:
    """(sample number, value) in the order of the batches. second: the number of the second set's first sample."""
    return [
        (int(number), EXAMPLES[kind].show(output, row))
        for output, indices, sets in batches
        for row, number in enumerate(indices + second * sets)
    ]


def check(
    kind: str, found: list[tuple[int, Any]], numbers: Any, change: Callable[[Any], Any] = lambda value: value
) -> None:
    assert [number for number, _ in found] == list(numbers)
    for number, value in found:
        wanted = change(EXAMPLES[kind].expect(number))
        if isinstance(wanted, np.ndarray):
            np.testing.assert_allclose(value, wanted, atol=1e-4)
        else:
            assert value == wanted


@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_values_survive_packing_and_move_with_a_flip(kind: str, packed: gpuload.Dataset, flip: float) -> None:
    assert packed.fields[field_name(kind)].kind == kind
    with loader(packed, kind, flip=flip) as batches:
        check(kind, drain(batches, kind), range(SAMPLES), EXAMPLES[kind].mirror if flip else lambda value: value)


def test_values_move_with_resizing_by_the_packer(kind: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"size": (WIDTH // 2, HEIGHT // 2), "fit": "stretch"}
    settings["encode"] = "raw" if kind == "raw" else "jpeg"
    if kind in ("picture", "pictures"):
        name = field_name(kind)
        with pytest.raises(gpuload.ArgumentError, match=f"--size resizes images, and '{name}' holds .* numbers"):
            pack(tmp_path / "out", kind, **settings)
        settings["resize"] = {name: "nearest"}
    data = pack(tmp_path / "out", kind, **settings, quality=98)
    size = (HEIGHT, WIDTH) if kind in ("image", "raw") else (HEIGHT // 2, WIDTH // 2)
    with loader(data, kind, size=size) as batches:
        found = drain(batches, kind)
    if kind in ("image", "raw"):  # resized twice, so only the middle of each half has its exact level
        keep = [WIDTH // 4, 3 * WIDTH // 4]
        assert [value[keep].tolist() for _, value in found] == [image_levels(n)[keep].tolist() for n in range(SAMPLES)]
    else:
        check(kind, found, range(SAMPLES), EXAMPLES[kind].half)


def test_samples_keep_their_values_in_a_mixture(kind: str, packed: gpuload.Dataset, tmp_path: Path) -> None:
    both = gpuload.mix([(packed.subset([0, 1, 2]), 0.5), (pack(tmp_path, kind, 3), 0.5)])
    with loader(both, kind, 2, shuffle=True, steps_per_epoch=9, drop_last=True) as batches:
        found = drain(batches, kind, 3)
    check(kind, found, [number for number, _ in found])
    assert {number for number, _ in found} == set(range(SAMPLES))


def other(value: Any) -> Any:
    """A different value of the same type; None for an empty list."""
    if isinstance(value, bytes):
        return value + b"x"
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, list):
        return [*value[:-1], other(value[-1])] if value else None
    return not value if isinstance(value, bool) else value + 1


def test_verify_notices_every_changed_value(kind: str, packed: gpuload.Dataset, tmp_path: Path) -> None:
    data = gpuload.Dataset(shutil.copytree(Path(packed.folder).parent, tmp_path / "out") / "train")
    field = data.fields[field_name(kind)]
    assert verify(tmp_path / "out") == []
    columns = [*kind_of(field).columns(field), field.offset_column, field.bytes_column]
    if kind in ("image", "raw", "mask"):
        columns += ["width", "height"]
    intact = (data.folder / "index.arrow").read_bytes()
    rows = pa.ipc.open_file(intact).read_all().to_pylist()
    for column in columns:
        number = next(number for number, row in enumerate(rows) if other(row[column]) is not None)
        write_value(data.folder, intact, column, number, other(rows[number][column]))
        faults = verify(tmp_path / "out")
        assert any(repr(rows[number]["key"]) in one and field.name in one for one in faults), (column, faults)


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    """As JSON lines, Parquet, or CSV or TSV, whose lists are JSON."""
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            lines = [[json.dumps(cell) if isinstance(cell, list) else cell for cell in row.values()] for row in rows]
            csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows([list(rows[0]), *lines])


@pytest.mark.parametrize(("form", "usual"), [("jsonl", False), ("parquet", True), ("csv", False), ("tsv", True)])
def test_values_from_a_table_are_the_same(tmp_path: Path, form: str, usual: bool) -> None:
    """usual: columns have the names that tell their kinds, where there are such."""
    kinds = {name: KINDS[name].role or name for name, example in EXAMPLES.items() if example.cell is not None}
    assert set(EXAMPLES) == set(KINDS) and set(kinds) == {name for name, kind in KINDS.items() if kind.in_tables}
    names = {kind: f"a {kind}" for kind in kinds}
    names |= {kind: KINDS[kind].usual_names[0] for kind in kinds if usual and KINDS[kind].usual_names}
    (tmp_path / "photos" / "masks").mkdir(parents=True)
    rows: list[dict[str, Any]] = []
    for number in range(SAMPLES):
        (tmp_path / "photos" / f"{number}.jpg").write_bytes(image.give(number)["image"])
        (tmp_path / "photos" / "masks" / f"{number}.png").write_bytes(encode(Image.fromarray(mask(number)), "PNG"))
        cells = {names[kind]: EXAMPLES[kind].cell(number) for kind in kinds}  # type: ignore[misc]
        rows.append({"path": f"{number}.jpg", **cells})
    write_table(table := tmp_path / f"table.{form}", rows)
    columns = [f"--column={kinds[kind]}={name}" for kind, name in names.items() if name.startswith("a ")]
    arguments = [str(tmp_path / "photos"), str(tmp_path / "out"), "--labels", str(table), "--no-shuffle", *columns]
    assert main(["pack", *arguments, "--workers", "1"]) == 0
    assert verify(tmp_path / "out") == []
    data = gpuload.Dataset(tmp_path / "out" / "train")
    assert data.fields["boxes"].classes == ("cat", "dog")
    assert {field.kind for field in data.manifest.fields[1:]} == set(kinds)
    for field in data.manifest.fields[1:]:
        spec: Any = gpuload.Keypoints(flip_pairs=()) if field.kind == "keypoints" else field.name
        with loader(data, field.kind, 4, fields=[spec]) as batches:
            check(field.kind, drain(batches, field.kind), range(SAMPLES))
