"""Where images come from. Each source lists its samples and reads one; none knows of shards.

A new kind of source is a file here with a subclass of `Source`, whose `rows` is a generator of dicts, and a row in
`registry.FORMATS`. A `FilesSource` reads its images from any container in `files`.
"""

from gpuload.sources.folder import FolderSource
from gpuload.sources.listing import Listing, Rejection
from gpuload.sources.registry import open_source
from gpuload.sources.rows import Source

__all__ = ["FolderSource", "Listing", "Rejection", "Source", "open_source"]
