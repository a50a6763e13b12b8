"""Where images come from. Each source lists its samples and reads one; none knows of shards.

A new source is a file here with a class that fits `Source`, and a line in `open_source`.
"""

from pathlib import Path

from gpuload.errors import ArgumentError
from gpuload.sources.folder import FolderSource
from gpuload.sources.listing import Listing, Rejection, Source
from gpuload.sources.table import TableSource

__all__ = ["FolderSource", "Listing", "Rejection", "Source", "TableSource", "open_source"]


def open_source(
    root: str | Path, labels: str | Path | None = None, path_column: str | None = None, label_column: str | None = None
) -> Source:
    """The source for what the user named: a table with `labels`, else a folder of class folders.

    Raises:
        ArgumentError: columns are named but there is no table.
    """
    if labels is not None:
        return TableSource(root, labels, path_column, label_column)
    if path_column is not None or label_column is not None:
        raise ArgumentError("--path-column and --label-column name columns of a table: give it with --labels table.csv")
    return FolderSource(root)
