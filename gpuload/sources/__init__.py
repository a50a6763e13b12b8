"""Where images come from. Each source lists its samples and reads one; none knows of shards.

A new kind of source is a subclass of `Source` or `FilesSource`, whose `rows` is a generator of dicts: here with a row
in `registry.BUILT_IN`, or in a package of its own with an entry point in the group `gpuload.sources`.
"""

from gpuload.sources.files import Files, Findings, Ref
from gpuload.sources.folder import FolderSource
from gpuload.sources.listing import Listing, Rejection
from gpuload.sources.registry import open_source, sources
from gpuload.sources.source import (
    CERTAIN,
    CONTENT,
    FALLBACK,
    LAYOUT,
    ColumnOptions,
    FilesSource,
    Sight,
    Source,
    SourceOptions,
)

__all__ = [
    "CERTAIN",
    "CONTENT",
    "FALLBACK",
    "LAYOUT",
    "ColumnOptions",
    "Files",
    "FilesSource",
    "Findings",
    "FolderSource",
    "Listing",
    "Ref",
    "Rejection",
    "Sight",
    "Source",
    "SourceOptions",
    "open_source",
    "sources",
]
