"""Images that a table calls by paths that begin elsewhere: by ids alone, by paths of another machine, or from a folder
above or below the one that the user gave."""

import posixpath
import re
from collections.abc import Sequence

from gpuload.errors import SourceError, some_of
from gpuload.sources.files import Files, Findings, Ref, is_image
from gpuload.sources.named_images import NamedImages

_DRIVE = re.compile(r"[A-Za-z]:")


class RelocatedImages:
    """The images of a container, found by the ends of their paths.

    Args:
        files: The container.
        title: Of the table, for messages.
        root: What messages call the container.
    """

    def __init__(self, files: Files, title: str, root: object) -> None:
        self._title = title
        self._root = str(root)
        self._images = NamedImages(files, Findings())

    def find_all(self, names: Sequence[str]) -> list[Ref]:
        """The image of each name; [] unless each is the end of the path of one.

        Of all names the same folders may be left out at the front: any of absolute paths, else those around the
        container.

        Raises:
            SourceError: several images have an end that a name is.
        """
        paths = [name.replace("\\", "/") for name in names]
        parts_of = [path.split("/") for path in paths]
        for left_out in self._left_out(paths, parts_of):
            ends = ["/".join(parts[left_out:]) for parts in parts_of]
            found = [self._ending(end) for end in ends]
            if not all(found):
                continue
            for name, images in zip(names, found, strict=True):
                if len(images) > 1:
                    raise SourceError(
                        f"{self._title}: {name!r} may be each of {some_of(images)}. Give the folder of one of them as "
                        "SOURCE"
                    )
            return [self._images.refs[image] for (image,) in found]
        return []

    def _left_out(
        self, paths: Sequence[str], parts_of: Sequence[Sequence[str]]
    ) -> list[int]:
        """How many parts may be left out at the front of all paths, the fewest first."""
        first = parts_of[0]
        depth = min(len(parts) for parts in parts_of) - 1
        shared = next(
            (
                place
                for place in range(depth)
                if any(parts[place] != first[place] for parts in parts_of)
            ),
            depth,
        )
        if all(path.startswith("/") or _DRIVE.match(path) for path in paths):
            return list(range(1, shared + 1))
        around = self._root.rstrip("/").split("/")[-1:]
        return [0, *(end for end in range(1, shared + 1) if first[end - 1] in around)]

    def _ending(self, end: str) -> list[str]:
        """The images whose path has this end, perhaps but for the extension."""
        images = []
        for name in self._images.called(end):
            path = name if is_image(end) else posixpath.splitext(name)[0]
            if path == end or path.endswith(f"/{end}"):
                images.append(name)
        return images
