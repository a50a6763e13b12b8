"""Files at a URL that can only be read as a whole, or at random: copied into the scratch folder of a run."""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from gpuload.errors import OutputError, SourceError
from gpuload.sources.splits import split_called
from gpuload.store.url import URL

_AT_A_TIME = 4  # files, each in ranges
_ALSO = "manifest.json"  # beside tars that gpuload packed: their fields and classes


class Copies:
    """The files that a URL means: one file, those that fit its wildcards, or those of a folder, as `files_of_splits`.

    suffixes: of their names. What a run copied is kept for the one that resumes it.

    Raises:
        SourceError: there is none. ArgumentError, RemoteError: it cannot be listed.
    """

    def __init__(self, url: URL, suffixes: Sequence[str]) -> None:
        from gpuload.store.background import background
        from gpuload.store.hub import pinned
        from gpuload.store.listing import Listed, expand_url

        self.given, self.url = url, pinned(url)
        self.is_folder = False
        if "*" in url.text or "[" in url.text:
            found = expand_url(self.url)
            self.root = URL(self.url.text.partition("*")[0].partition("[")[0].rpartition("/")[0])
            self.names = [one.text.removeprefix(f"{self.root}/") for one in found]
        elif url.suffix.lower() in suffixes:
            self.root, self.names = URL(self.url.text.rpartition("/")[0]), [url.name]
        else:
            self.root, self.is_folder = self.url, True
            listed = background().wait(Listed(self.url).list())
            self.names = _of_folder([name for name in listed if PurePosixPath(name).suffix.lower() in suffixes])
            folders = {str(PurePosixPath(name).parent / _ALSO) for name in self.names}
            self.beside = sorted(folders & set(listed))
        if not self.names:
            raise SourceError(f"{url}: holds no {suffixes[0]}. Give a file, or the folder that holds some")

    def __str__(self) -> str:
        return f"{self.url}: {', '.join(self.names)}"

    def fetch(self, scratch: Path) -> Path:
        """The copies: their folder, or of one file, its path.

        Raises:
            RemoteError: one cannot be read. OutputError: one cannot be written.
        """
        import asyncio

        from gpuload.disk.fetch import fetch_file
        from gpuload.store.background import background
        from gpuload.store.objects import Objects

        folder, objects = scratch / "copies", Objects(self.root)

        async def one(name: str, limit: asyncio.Semaphore) -> None:
            path = folder / name
            async with limit:
                if not path.exists():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    await fetch_file(objects, name, path)

        async def all_of_them() -> None:
            limit = asyncio.Semaphore(_AT_A_TIME)
            names = [*self.names, *(self.beside if self.is_folder else ())]
            await asyncio.gather(*(one(name, limit) for name in names))

        try:
            background().wait(all_of_them())
        except OSError as error:
            raise OutputError(
                f"{folder}: cannot be written ({error.strerror}), and what is read from {self.given} is copied there. "
                "Free some space, or copy it to a disk yourself"
            ) from None
        return folder if self.is_folder or len(self.names) > 1 else folder / self.names[0]


def _of_folder(names: Sequence[str]) -> list[str]:
    """As `files_of_splits`: those in the folder, or in folders of splits, or in `data` likewise."""
    for place in ("", "data/"):
        below = [name.removeprefix(place) for name in sorted(names) if name.startswith(place)]
        if found := [name for name in below if "/" not in name]:
            return [place + name for name in found]
        if found := [name for name in below if name.count("/") == 1 and split_called(name.partition("/")[0])]:
            return [place + name for name in found]
    return []


def fits(names: Sequence[str], suffixes: Sequence[str]) -> bool:
    """Whether a folder, of which these files are known, is one of such files."""
    return bool(_of_folder([name for name in names if PurePosixPath(name).suffix.lower() in suffixes]))
