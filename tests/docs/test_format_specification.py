"""docs/format.md: a set written by hand from the specification, with every kind of field, is verified and loaded."""

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from images import encode, photo
from loaders import load
from PIL import Image
from snippets import ROOT
from tars import write_tar

import gpuload
from gpuload.fields.registry import KINDS
from gpuload.packing.verify import verify

WIDTH, HEIGHT, SAMPLES = 40, 30, 6
F4, LONG, TEXT = pa.float32(), pa.int64(), pa.large_string()


def npy(array: np.ndarray) -> tuple[bytes, int]:
    """The file, and where its elements begin."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue(), len(file.getvalue()) - array.nbytes


class Written(NamedTuple):
    """A field of a sample: its entry in the manifest, the member's content, where its data begins, its columns. The
    content of a list is that of each picture; of an image that a sample lacks there is none."""

    entry: dict[str, Any]
    content: bytes | list[bytes] | None
    begin: int
    columns: dict[str, tuple[pa.DataType, Any]]


def fields_of(number: int, kind: str) -> list[Written]:
    """kind: "image", "raw", or "pictures": version 3, whose image is the left one of several pictures; or "missing":
    version 4, in which every other sample has no picture, and nothing that is drawn on one."""
    found = []

    def field(name: str, kind: str, member: str, content: Any, /, begin: int = 0, more: Any = None, **columns: Any):
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        found.append(Written({"name": name, "kind": kind, "member": member, **(more or {})}, data, begin, columns))

    box, points, triangle = [1.0, 2.5, 20.0, 22.0], [1.0, 2.0, 2.0, 3.5, 4.0, 1.0], [1.0, 2.5, 20.0, 2.5, 20.0, 22.0]
    boxes, longs = pa.list_(pa.list_(F4, 4)), pa.list_(LONG)
    if kind == "raw":
        field("image", "raw", "npy", *npy(np.full((HEIGHT, WIDTH, 3), 40 * number, np.uint8)))
    elif kind == "image":
        field("image", "image", "jpg", encode(photo(number, WIDTH, HEIGHT)))
    elif kind == "missing":
        entry = {"name": "image", "kind": "image", "member": "images.0.png", "counts": [0, 1]}
        pictures = [encode(photo(number, 9, 6), "PNG")] * 2 * (number % 2)
        found.append(Written(entry, pictures[0] if pictures else None, 0, {}))
        entry = {"name": "images", "kind": "pictures", "member": "images.*.png", "counts": [0, 2]}
        found.append(Written(entry, pictures, 0, {}))
    else:
        field("left", "image", "left.jpg", encode(photo(number, WIDTH, HEIGHT)))
        size = {"{}_width": (pa.int32(), 7), "{}_height": (pa.int32(), 5), "{}_points": (pa.large_binary(), b"")}
        png = encode(Image.fromarray(np.full((5, 7), 300 + number, np.uint16)), "PNG")
        depth = {name.format("depth"): value for name, value in size.items()}
        field("depth", "picture", "depth.png", png, more={"size": 1, "dtype": "<u2"}, **depth)
        flow = {name.format("flow"): value for name, value in size.items()}
        pixels = npy(np.full((5, 7, 2), number, np.float32))
        field("flow", "picture", "flow.npy", *pixels, {"size": 2, "dtype": "<f4"}, **flow)
        frames = [encode(photo(at, 9, 6), "PNG") for at in range(number % 3)]
        entry = {"name": "frames", "kind": "pictures", "member": "frames.*.png", "counts": [0, 2]}
        found.append(Written(entry, frames, 0, {}))
    field("label", "class", "cls", b"1", label=(LONG, 1))
    field("caption", "caption", "txt", "ö".encode(), caption=(TEXT, "ö"))
    field("meta", "json", "meta.json", b'{"a": 1}', meta=(TEXT, '{"a": 1}'))
    field("angle", "target", "angle.json", b"0.5", angle=(F4, 0.5))
    field("xy", "target", "xy.json", b"[0.5, 2]", more={"size": 2}, xy=(pa.list_(F4, 2), [0.5, 2.0]))
    field("id", "integers", "id.json", b"123456789", id=(LONG, 123_456_789))
    field("labels", "labels", "labels.json", [0, 1], more={"classes": ["p", "q"]}, labels=(longs, [0, 1]))
    columns: dict[str, Any] = {"tokens_shape": (pa.list_(pa.int32()), [number + 1])}
    field("tokens", "array", "tokens.npy", *npy(np.arange(number + 1, dtype=np.int64)), {"dtype": "<i8"}, **columns)
    if kind == "missing":
        return found
    content = {"boxes": [box], "classes": [0]}
    columns = {"boxes": (boxes, [box]), "boxes_class": (longs, [0])}
    field("boxes", "boxes", "boxes.json", content, more={"classes": ["x"]}, **columns)
    content = {**content, "areas": [40.5], "crowds": [0], "masks": [[triangle]]}
    columns = {"things": (boxes, [box]), "things_class": (longs, [0]), "things_area": (pa.list_(pa.float64()), [40.5])}
    columns |= {"things_crowd": (longs, [0]), "things_masks": (TEXT, json.dumps([[triangle]]))}
    field("things", "instances", "things.json", content, more={"classes": ["x"]}, **columns)
    columns = {"keypoints": (pa.list_(pa.list_(F4, 6)), [points])}
    field("keypoints", "keypoints", "keypoints.json", [points], more={"size": 2}, **columns)
    field("mask", "mask", "mask.png", encode(Image.fromarray(np.eye(HEIGHT, WIDTH, dtype=np.uint8)), "PNG"))
    return found


def members_of(key: str, written: Written) -> list[tuple[str, bytes]]:
    """The members of a field, of a list one for each picture."""
    member = written.entry["member"]
    if written.content is None:
        return []
    if isinstance(written.content, bytes):
        return [(f"{key}.{member}", written.content)]
    return [(f"{key}.{member.replace('*', str(number))}", data) for number, data in enumerate(written.content)]


def list_columns(key: str, written: Written, places: Any, somewhere: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The columns of a list of pictures, and their types. somewhere: an offset in the shard."""
    name = written.entry["name"]
    spans = [places[member] for member, _ in members_of(key, written)]
    first = min((offset for offset, _ in spans), default=somewhere)
    count = len(spans)
    lists = {
        "offsets": (pa.list_(LONG), [offset for offset, _ in spans]),
        "sizes": (pa.list_(LONG), [size for _, size in spans]),
        "widths": (pa.list_(pa.int32()), [9] * count),
        "heights": (pa.list_(pa.int32()), [6] * count),
        "points": (pa.list_(pa.large_binary()), [b""] * count),
    }
    row = {f"{name}_offset": first, f"{name}_bytes": max((sum(span) for span in spans), default=first) - first}
    types = {f"{name}_offset": LONG, f"{name}_bytes": LONG}
    for column, (type_, values) in lists.items():
        row[f"{name}_{column}"] = values
        types[f"{name}_{column}"] = type_
    return row, types


def size_of(kind: str, image: Written) -> tuple[int, int]:
    """(width, height) of the image of a sample; one pixel where there is none."""
    if kind != "missing":
        return WIDTH, HEIGHT
    return (1, 1) if image.content is None else (9, 6)


def write(folder: Path, kind: str) -> None:
    """One shard."""
    samples = [(f"{number:08d}", fields_of(number, kind)) for number in range(SAMPLES)]
    members = [member for key, fields in samples for written in fields for member in members_of(key, written)]
    write_tar(folder / "a.tar", dict(members))  # each once: a list may begin with the image
    with tarfile.open(folder / "a.tar") as tar:
        places = {member.name: (member.offset_data, member.size) for member in tar}
    types: dict[str, pa.DataType] = {"key": TEXT, "source": TEXT, "width": pa.int32(), "height": pa.int32()}
    rows, lines = [], [f"v1.2 {SAMPLES}"]
    for key, fields in samples:
        width, height = size_of(kind, fields[0])
        row: dict[str, Any] = {"key": key, "source": "", "width": width, "height": height}
        words = []
        for written in fields:
            names = [name for name, _ in members_of(key, written)]
            words += [f"{name.partition('.')[2]} {places[name][0]} {places[name][1]} {name}" for name in names]
            name = written.entry["name"]
            if isinstance(written.content, list):
                listed, more_types = list_columns(key, written, places, row[f"{fields[0].entry['name']}_offset"])
                row |= listed
                types |= more_types
                continue
            if written.content is None:
                row |= {f"{name}_offset": 512, f"{name}_bytes": 0}
                types |= {f"{name}_offset": LONG, f"{name}_bytes": LONG}
                continue
            entry, _, begin, columns = written
            offset, size = places[f"{key}.{entry['member']}"]
            types |= {f"{entry['name']}_offset": LONG, f"{entry['name']}_bytes": LONG}
            types |= {name: type_ for name, (type_, _) in columns.items()}
            row |= {f"{entry['name']}_offset": offset + begin, f"{entry['name']}_bytes": size - begin}
            row |= {name: value for name, (_, value) in columns.items()}
        rows.append(row)
        lines.append(" ".join(dict.fromkeys(words)))
    (folder / "a.idx").write_text("\n".join(lines) + "\n")
    schema = pa.schema(list(types.items()))
    with pa.OSFile(str(folder / "index.arrow"), "wb") as file, pa.ipc.new_file(file, schema) as index:
        index.write_batch(pa.RecordBatch.from_pylist(rows, schema))
    data = (folder / "a.tar").read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    version = {"pictures": 3, "missing": 4}.get(kind, 1)
    mode = ["RGB"] if version > 1 else []
    identity = json.dumps([version, [[SAMPLES, len(data), digest]], *mode])
    manifest = {
        "format": "gpuload",
        "version": version,
        "fingerprint": hashlib.sha256(identity.encode()).hexdigest()[:16],
        "shards": [{"name": "a.tar", "samples": SAMPLES, "bytes": len(data), "sha256": digest}],
        "fields": [entry for entry, *_ in samples[0][1]],
        "classes": ["a", "b"],
        "width": WIDTH,
        "height": HEIGHT,
        "image_bytes": 10_000,
        "mean": None,
        "std": None,
        "pixels_from": 0,
        "packing": {},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))


SPECS = {"tokens": gpuload.Tokens("tokens"), "depth": gpuload.Depth("depth"), "flow": gpuload.Flow("flow")}


def test_a_set_whose_samples_may_have_no_picture(tmp_path: Path) -> None:
    write(tmp_path / "train", "missing")
    assert verify(tmp_path / "train", 1) == []
    augment = gpuload.Augment((HEIGHT, WIDTH), crop="none", dtype="uint8")
    fields = ("images", "caption", SPECS["tokens"])
    with load(tmp_path / "train", SAMPLES, augment=augment, fields=fields, shuffle=False) as loader:
        images, captions, tokens = next(iter(loader))
    assert images.counts.tolist() == [2 * (number % 2) for number in range(SAMPLES)]
    assert images.pixels.shape == (SAMPLES, 3, HEIGHT, WIDTH)
    assert captions == ["ö"] * SAMPLES and tokens.lengths.tolist() == list(range(1, SAMPLES + 1))


@pytest.mark.parametrize("kind", ["image", "raw", "pictures"])
def test_a_set_written_by_hand(tmp_path: Path, kind: str) -> None:
    write(tmp_path / "train", kind)
    assert verify(tmp_path / "train", 1) == []
    names = [entry["name"] for entry, *_ in fields_of(0, kind)]
    asked = [SPECS.get(name, name) for name in names]
    augment = gpuload.Augment((HEIGHT, WIDTH), crop="none", dtype="uint8")
    with load(tmp_path / "train", SAMPLES, augment=augment, fields=asked, shuffle=False) as loader:
        batch: Any = next(iter(loader))._asdict()  # type: ignore[attr-defined]
    assert list(batch) == names
    if kind == "raw":
        assert batch["image"][:, 0, 0, 0].tolist() == [40 * number for number in range(SAMPLES)]
    if kind == "pictures":
        assert batch["depth"][:, 0, 0, 0].tolist() == [300 + number for number in range(SAMPLES)]
        assert batch["frames"].counts.tolist() == [number % 3 for number in range(SAMPLES)]
        assert batch["frames"].pixels.shape == (sum(batch["frames"].counts), 3, HEIGHT, WIDTH)
        assert batch["flow"].shape == (SAMPLES, 2, HEIGHT, WIDTH)
        assert batch["flow"][1, 0, 0, 0] == pytest.approx(WIDTH / 7)
    assert batch["label"].tolist() == [1] * SAMPLES and batch["caption"] == ["ö"] * SAMPLES
    assert batch["meta"] == [{"a": 1}] * SAMPLES and batch["xy"].tolist() == [[0.5, 2.0]] * SAMPLES
    assert batch["id"].tolist() == [123_456_789] * SAMPLES
    assert batch["labels"].tolist() == [[1, 1]] * SAMPLES
    assert batch["boxes"].boxes[:, 0].tolist() == [[1, 2.5, 20, 22]] * SAMPLES
    assert batch["things"].boxes.tolist() == batch["boxes"].boxes.tolist()
    assert batch["keypoints"].keypoints[0, 0].tolist() == [[1, 2, 2], [3.5, 4, 1]]
    assert batch["mask"][0].tolist() == np.eye(HEIGHT, WIDTH, dtype=np.uint8).tolist()
    assert batch["tokens"].lengths.tolist() == list(range(1, SAMPLES + 1))


WRITTEN = {entry["kind"] for kind in ("image", "raw", "pictures") for entry, *_ in fields_of(0, kind)}


def test_every_kind_is_in_the_table() -> None:
    text = (ROOT / "docs" / "format.md").read_text()
    for kind, found in KINDS.items():
        assert f"\n| `{kind}` | " in text
        assert kind in WRITTEN, "a kind that is not written"
        assert found.name == kind
