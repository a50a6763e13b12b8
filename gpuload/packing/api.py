"""`gpuload.pack`: the packer for programs that produce their own samples."""

from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from gpuload.checks import FLAG, check
from gpuload.counted import progress_bar
from gpuload.errors import ArgumentError
from gpuload.packing.options import Encoding, PackOptions
from gpuload.packing.run import packer
from gpuload.sources.columns import IterableSource
from gpuload.sources.rows import Source


def pack(
    samples: Iterable[Any] | Source,
    out: str | Path,
    *,
    watch: Callable[[packer.Progress], None] = lambda progress: None,
    progress: bool = True,
    own_splits: bool = True,
    **settings: Any,
) -> packer.PackReport:
    """Packs samples given as dicts, one per sample, as `python -m gpuload pack` packs files.

    samples: dicts such as {"image": bytes, "label": "cat"}; `sources.rows.Source` says what they may hold.
        They are iterated once, in order. Or a data set of Hugging Face, a table of pandas, Polars or Arrow, a dict
        with one of these for each split, or a source.
    out: an empty or new folder, or a URL such as "s3://bucket/set"; it gets train/, and val/ or test/ where there are
        such splits.
    own_splits: whether the splits that the samples themselves have ("split": "train", or a source's folders) are kept.
    watch: called a few times a second with the progress.
    progress: whether a bar is shown on stderr, where that is a terminal; elsewhere nothing is printed in any case.
    settings: those of `PackOptions` and `Encoding`, by name: val=0.1, maxsize="1GB", encode="raw", size=64.

    It starts processes: call it under `if __name__ == "__main__"`.

    Raises:
        SourceError, OutputError, RemoteError: as `packer.pack`.
        ArgumentError: a setting is unknown or invalid.
    """
    encoding = {field.name for field in fields(Encoding)}
    known = {field.name for field in fields(PackOptions)} - {"encoding"} | encoding
    unknown = sorted(set(settings) - known)
    if unknown:
        raise ArgumentError(f"pack() has no setting {unknown[0]!r}; its settings are {', '.join(sorted(known))}")
    progress = check("pack", "progress", progress, FLAG)
    own_splits = check("pack", "own_splits", own_splits, FLAG)
    images = Encoding(**{name: value for name, value in settings.items() if name in encoding})
    rest = {name: value for name, value in settings.items() if name not in encoding}
    if isinstance(samples, str | Path):
        raise ArgumentError(
            f"pack(samples={str(samples)!r}): expected dicts, one per sample, or a source. Files are packed by "
            f"`python -m gpuload pack {samples} {out}`, or give gpuload.sources.open_source({str(samples)!r})"
        )
    source = samples if isinstance(samples, Source) else IterableSource(samples)
    if not own_splits:
        source.own_splits = False
    options = PackOptions(**rest, encoding=images)
    with progress_bar("packing", "images", progress) as bar:

        def show(found: packer.Progress) -> None:
            bar(found.images, found.total_images, found.bytes)
            watch(found)

        return packer.pack(source, out, options, show)
