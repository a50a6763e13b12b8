"""Where images come from. Each source lists its samples and reads one; none knows of shards.

A new source is a file here with a class that fits `Source`, and a line in `open_source`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from gpuload.errors import ArgumentError, SourceError
from gpuload.sources.folder import FolderSource
from gpuload.sources.listing import Listing, Rejection, Source
from gpuload.sources.samples import IterableSource
from gpuload.sources.table import TableSource

__all__ = ["FolderSource", "Format", "IterableSource", "Listing", "Rejection", "Source", "TableSource", "open_source"]

Format = Literal["folder", "sidecar", "voc", "hdf5", "lmdb", "npy", "parquet", "tar"]

_SUFFIXES: dict[str, Format] = {
    ".h5": "hdf5", ".hdf5": "hdf5", ".hdf": "hdf5", ".mdb": "lmdb", ".lmdb": "lmdb", ".npy": "npy", ".npz": "npy",
    ".parquet": "parquet", ".tar": "tar",
}  # fmt: skip


def open_source(
    root: str | Path,
    labels: str | Path | None = None,
    columns: Mapping[str, tuple[str, ...]] | None = None,
    form: Format | None = None,
) -> Source:
    """The source for what the user named: `form` where it is said, else by what lies there.

    labels: a table of paths, COCO's JSON, or for an `.npy` of images one of labels.
    columns: names of columns, arrays or keys by what they hold.

    Raises:
        ArgumentError: columns are named where nothing has a name, or `form` is none of those there are.
    """
    path = Path(root)
    if form is not None and form not in get_args(Format):
        raise ArgumentError(f"--from is one of {', '.join(get_args(Format))}; got {form!r}")
    form = form or _form(path)
    if form == "npy":
        from gpuload.sources.arrays import ArraysSource

        return ArraysSource(path, labels, columns)
    if labels is not None:
        if Path(labels).suffix.lower() == ".json":
            from gpuload.sources.coco import CocoSource

            return CocoSource(root, labels)
        return TableSource(root, labels, columns)
    if form == "hdf5":
        from gpuload.sources.hdf5 import Hdf5Source

        return Hdf5Source(path, columns)
    if form == "lmdb":
        from gpuload.sources.lmdb_store import LmdbSource

        return LmdbSource(path, columns)
    if form == "parquet":
        from gpuload.sources.parquet import ParquetSource

        return ParquetSource(path, columns)
    if columns:
        raise ArgumentError(
            "--path-column, --label-column and --column name columns of a table: give it with --labels table.csv"
        )
    if form == "sidecar":
        from gpuload.sources.sidecar import SidecarSource

        return SidecarSource(root)
    if form == "voc":
        from gpuload.sources.voc import VocSource

        return VocSource(root)
    if form == "tar":
        from gpuload.sources.tars import TarsSource

        return TarsSource([root])
    return FolderSource(root)


def _form(path: Path) -> Format:
    if path.suffix.lower() in _SUFFIXES:
        return _SUFFIXES[path.suffix.lower()]
    if path.is_file():
        raise SourceError(f"{path}: is a file of a kind that is not known. Say with --from what it is")
    if not path.is_dir():
        return "folder"
    if (path / "data.mdb").exists():
        return "lmdb"
    if (path / "Annotations").is_dir() and any((path / name).is_dir() for name in ("Data", "JPEGImages")):
        return "voc"
    for suffix, form in ((".tar", "tar"), (".parquet", "parquet")):
        if next(path.glob(f"*{suffix}"), None) is not None:
            return form  # type: ignore[return-value]
    return "folder"
