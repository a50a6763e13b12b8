"""`python -m gpuload show SHARDS KEY…`: single samples, as pictures and text."""

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuload.commands.exit_codes import DONE

if TYPE_CHECKING:
    from PIL import Image

    from gpuload.disk.dataset import Dataset

_TEXT = 200  # characters of a value


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command to the command line."""
    show = commands.add_parser(
        "show",
        help="show single samples of a packed set",
        description="Prints the fields of samples and writes a PNG of each, with its boxes, masks and keypoints.",
        epilog="Exit codes: 0; 2 where there is no such sample, or it cannot be decoded.",
    )
    show.set_defaults(run=_show)
    show.add_argument("folder", metavar="SHARDS", help="a packed folder, such as shards/train, or its URL")
    show.add_argument("keys", metavar="KEY", nargs="+", help="a key, the name of the packed file, or a number from 0")
    show.add_argument("-o", "--output", default=".", metavar="DIR", help="folder for the PNGs (the current one)")
    show.add_argument(
        "--epochs", type=int, default=0, metavar="N", help="also a PNG of what training sees in the first N epochs"
    )
    show.add_argument("--size", type=int, default=224, metavar="PX", help="side of the training crops (%(default)s)")


def _show(args: argparse.Namespace) -> int:
    from gpuload.checks import check_option, whole
    from gpuload.disk.dataset import Dataset
    from gpuload.errors import ArgumentError, OutputError

    check_option("--epochs", args.epochs, whole(0, 1000))
    check_option("--size", args.size, whole(1, 4096))
    out = Path(args.output)
    if not out.is_dir():
        raise OutputError(f"{out}: no such folder. Make it, or give another -o")
    dataset = Dataset(args.folder)
    for key in args.keys:
        try:
            sample = dataset[key]
        except ArgumentError:
            if not re.fullmatch(r"-?[0-9]{1,18}", key):
                raise
            sample = dataset[int(key)]
        stem = re.sub(r"[^\w.-]+", "_", sample["key"])[:100].lstrip(".") or "sample"
        pictures = {out / f"{stem}.png": _drawn(dataset, sample)}
        if args.epochs:
            pictures[out / f"{stem}-epochs.png"] = _epochs(dataset, sample["index"], args.epochs, args.size)
        for line in _lines(dataset, sample):
            print(line)
        for path, picture in pictures.items():
            try:
                picture.save(path)
            except OSError as error:
                raise OutputError(f"{path}: cannot be written ({error.strerror}). Give another -o") from None
            print(f"  written: {path}")
    return DONE


def _drawn(dataset: "Dataset", sample: dict[str, Any]) -> "Image.Image":
    import numpy as np

    from gpuload.pictures.marks import draw_boxes, draw_keypoints, draw_mask

    picture: Image.Image = sample["image"]
    for name, field in dataset.fields.items():
        if field.kind == "mask" and sample[name].size == picture.size:
            picture = draw_mask(picture, np.asarray(sample[name], np.uint8))
    for name, field in dataset.fields.items():
        if field.kind == "boxes":
            draw_boxes(picture, sample[name], sample[f"{name}_class"].tolist(), field.classes)
        elif field.kind == "keypoints":
            draw_keypoints(picture, sample[name])
    return picture


def _epochs(dataset: "Dataset", number: int, epochs: int, size: int) -> "Image.Image":
    from gpuload.augment import Augment
    from gpuload.pictures.sheet import draw_sheet
    from gpuload.report.training import epoch_cells

    return draw_sheet(epoch_cells(dataset, Augment(size), number, epochs))


def _lines(dataset: "Dataset", sample: dict[str, Any]) -> list[str]:
    """The fields, one a line; control characters of what a set holds are escaped."""
    from PIL import Image

    from gpuload.counted import counted
    from gpuload.pictures.marks import name_of

    lines = [_line(f"{sample['key']}:")]
    for name, value in sample.items():
        field = dataset.fields.get(name.removesuffix("_class") if name not in dataset.fields else name)
        if name == "key":
            continue
        if isinstance(value, Image.Image):
            text = f"{value.width} × {value.height} pixels"
        elif field is not None and field.kind == "class":
            text = f"{name_of(value, dataset.classes)} ({value})"
        elif field is not None and field.kind == "labels":
            text = ", ".join(f"{name_of(number, field.classes)} ({number})" for number in value)
        elif field is not None and field.kind == "boxes" and name != field.name:
            text = ", ".join(name_of(number, field.classes) for number in value.tolist())
        elif hasattr(value, "shape"):
            text = f"{value.dtype} {value.shape}: {' '.join(str(value.tolist()).split())}"
        else:
            text = str(value)
        cut = f"{text[:_TEXT]}… ({counted(len(text), 'character')})" if len(text) > _TEXT else text
        lines.append(_line(f"  {name}: {cut}"))
    return lines


def _line(text: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
