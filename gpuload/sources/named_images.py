"""Images of a container, found by what tools and tables call them: paths on another machine, URLs, or names alone."""

import re
from collections import Counter
from collections.abc import Sequence
from urllib.parse import unquote

from gpuload.errors import SourceError, some_of
from gpuload.formats import image_extensions
from gpuload.sources.files import Files, Findings, Ref

_UPLOAD = re.compile(r"[0-9a-f]{8}-")  # before a name, by Label Studio


class NamedImages:
    """The images of a container, found by what tools call them. refs: by name, in the order of their paths."""

    def __init__(self, files: Files, findings: Findings) -> None:
        self.refs = {ref.name: ref for ref in files.walk(image_extensions(), findings)}
        self._by_stem: dict[str, list[str]] = {}
        for name in self.refs:
            self._by_stem.setdefault(_stem(name), []).append(name)

    def called(self, name: str) -> list[str]:
        """The names of the images that are called so, in any folder and perhaps with another extension."""
        return self._by_stem.get(_stem(name), [])

    def find_all(self, title: str, names: Sequence[str]) -> list[Ref]:
        """The image of each name.

        Raises:
            SourceError: one is not there, several fit a name, or two names mean one image.
        """
        chosen = [self.find(title, name) for name in names]
        missing = [name for name, image in zip(names, chosen, strict=True) if not image]
        if missing:
            what = f"names {len(missing):,} of {len(names):,} images that are not there: {some_of(missing)}"
            raise SourceError(f"{title}: {what}. Put them into this folder")
        counts = Counter(chosen)
        if twice := [name for name, count in counts.items() if count > 1]:
            raise SourceError(
                f"{title}: annotates images more than once: {some_of(twice)}. Remove one of both"
            )
        return [self.refs[name] for name in chosen]

    def find(self, title: str, name: str) -> str:
        """The name of the image that a tool means; "" if there is none."""
        words = unquote(name).replace("\\", "/").rpartition("?d=")[2]
        if words in self.refs:
            return words
        stem = _stem(words)
        fitting = self.called(words) or self._by_stem.get(_UPLOAD.sub("", stem), [])
        extension = words.rpartition("/")[2][len(stem) :]
        same = [one for one in fitting if one.endswith(extension)]
        ends = [_shared_end(one, words) for one in same]
        best = [one for one, end in zip(same, ends, strict=True) if end == max(ends)]
        if len(best) > 1:
            raise SourceError(
                f"{title}: {name!r} may be each of {some_of(best)}. Give a folder with one of them"
            )
        return best[0] if best else ""


def _stem(name: str) -> str:
    """The name of an image without folders and extension."""
    file = name.rpartition("/")[2]
    stem, _, extension = file.rpartition(".")
    return stem if extension.lower() in image_extensions() and stem else file


def _shared_end(one: str, other: str) -> int:
    """The number of folders before both names that are the same, from the last on."""
    count = 0
    pairs = zip(one.split("/")[-2::-1], other.split("/")[-2::-1], strict=False)
    for first, second in pairs:
        if first != second:
            break
        count += 1
    return count
