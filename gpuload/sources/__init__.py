"""Where images come from. Each source lists its samples and reads one; none knows of shards.

A new kind of source is a file here with a subclass of `Source`, and a row in `registry`. A source whose images are
files reads them from any container in `files`: a folder or an archive.
"""

from gpuload.sources.folder import FolderSource
from gpuload.sources.listing import Listing, Rejection, Source
from gpuload.sources.registry import open_source
from gpuload.sources.samples import IterableSource
from gpuload.sources.table import TableSource

__all__ = ["FolderSource", "IterableSource", "Listing", "Rejection", "Source", "TableSource", "open_source"]
