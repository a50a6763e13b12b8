"""What a notebook shows of a data set: a table, and a few of its images."""

from html import escape
from typing import TYPE_CHECKING

import numpy as np

from gpuload.counted import counted
from gpuload.disk.sample import stored_picture
from gpuload.pictures.embed import jpeg_uri, thumbnail
from gpuload.pictures.marks import name_of
from gpuload.store.url import URL

if TYPE_CHECKING:
    from gpuload.disk.dataset import Dataset

_IMAGES, _SIDE_PX, _MOST_BYTES = 8, 96, 4_000_000
_MOST_NAMES = 12


def html_of(dataset: "Dataset") -> str:
    """HTML whose texts are escaped, whatever the set holds; images that do not decode are left out."""
    manifest = dataset.manifest
    whole = int(dataset.first_samples[-1])
    samples = f"{len(dataset):,}" + (f" of {whole:,}" if len(dataset) != whole else "")
    rows = [
        ("samples", f"{samples} in {counted(len(dataset.shard_paths), 'shard')}, {manifest.bytes / 1e6:,.1f} MB"),
        ("fields", ", ".join(f"{field.name} ({field.kind})" for field in manifest.fields)),
        ("largest", f"{manifest.width} × {manifest.height} pixels"),
        ("fingerprint", dataset.fingerprint),
    ]
    if dataset.classes is not None:
        names = ", ".join(dataset.classes[:_MOST_NAMES]) + (", …" if len(dataset.classes) > _MOST_NAMES else "")
        rows.insert(1, ("classes", f"{len(dataset.classes):,}: {names}"))
    cells = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(text)}</td></tr>'
        for name, text in rows
    )
    pictures = "" if isinstance(dataset.folder, URL) else _pictures(dataset)
    return f"<div><strong>Dataset</strong> {escape(str(dataset.folder))}<table>{cells}</table>{pictures}</div>"


def _pictures(dataset: "Dataset") -> str:
    """A row of images, evenly spaced over the set."""
    numbers = np.unique(np.linspace(0, len(dataset) - 1, min(_IMAGES, len(dataset))).astype(np.int64))
    figures = []
    for number in dataset.stored_samples(numbers).tolist():
        try:
            uri, text = _picture(dataset, number)
        except Exception:  # a notebook shows what there is; errors are told where samples are asked for
            continue
        figures.append(
            f'<figure style="display:inline-block;margin:4px;max-width:{_SIDE_PX}px"><img src="{uri}" alt="">'
            f'<figcaption style="font-size:11px;overflow-wrap:anywhere">{escape(text)}</figcaption></figure>'
        )
    return f"<div>{''.join(figures)}</div>"


def _picture(dataset: "Dataset", number: int) -> tuple[str, str]:
    shard = int(np.searchsorted(dataset.first_samples, number, side="right")) - 1
    row = dataset.rows(shard).slice(number - int(dataset.first_samples[shard]), 1).to_pylist()[0]
    image = stored_picture(dataset, number, None if row["image_bytes"] > _MOST_BYTES else 2 * _SIDE_PX)
    named = "label" in dataset.fields and row["label"] is not None
    text = name_of(int(row["label"]), dataset.classes) if named else row["key"]
    return jpeg_uri(thumbnail(image, _SIDE_PX, _SIDE_PX)), text
