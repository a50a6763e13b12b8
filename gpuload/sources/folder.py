"""Class folders: `root/<class>/**/<image>`."""

from collections import Counter
from collections.abc import Iterator

from gpuload.errors import SourceError
from gpuload.fields.field import LABEL
from gpuload.sources.files import IMAGE_EXTENSIONS, Found, PassedOver, printable
from gpuload.sources.files.source import FilesSource, stream_table
from gpuload.sources.listing import Listing, Rejection, some_of


class FolderSource(FilesSource):
    """Images in a folder, or an archive, of class folders.

    Classes are the sorted names of the folders at the first level, as torchvision's ImageFolder numbers them; a class
    folder without an image keeps its number (ImageFolder stops there, or keeps it with `allow_empty`). Folders below a
    class are searched too. Hidden files and folders are passed over. An image is known by its extension in any case.
    Samples are in the order of their paths, folder by folder.
    """

    def list_samples(self) -> Listing:
        """All images below the class folders.

        Raises:
            SourceError: no such folder or archive, no class folders in it, or no image in those.
        """
        self.check_root("Give a folder of class folders, as in photos/cat/1.jpg")
        classes = self.files.folders()
        for name in classes:
            if printable(name) != name:
                raise SourceError(
                    f"{self.root}: the class folder {printable(name)!r} has a name that is not UTF-8. Rename it"
                )
        passed = PassedOver()
        counts: Counter[str] = Counter()
        samples = stream_table(self._labelled(classes, passed, counts), (LABEL,))
        if not classes:
            notes = "".join(f"; {note}" for note in passed.notes)
            raise SourceError(
                f"{self.root}: holds no class folders ({len(passed.rejected):,} images lie in it directly{notes}). "
                "Put each image into a folder named after its class, or give --labels table.csv, or --no-labels"
            )
        if not samples.num_rows:
            others = f", found: {passed.by_extension()}" if passed.others else ""
            raise SourceError(
                f"{self.root}: no image in its {len(classes):,} class folders ({some_of(classes)}). "
                f"Images are known by their extension, such as .jpg, .png or .webp{others}"
            )
        empty = [name for name in classes if not counts[name]]
        if empty:
            passed.notes.append(
                f"{len(empty):,} class folders hold no image and keep their class number: {some_of(empty)}"
            )
        return Listing(samples, (LABEL,), tuple(classes), passed.sorted_rejections(), passed.all_notes())

    def _labelled(self, classes: list[str], passed: PassedOver, counts: "Counter[str]") -> Iterator[tuple[Found, int]]:
        """Each image in a class folder with its class; `counts` gets the images of each class."""
        numbers = {name: number for number, name in enumerate(classes)}
        for found in self.files.walk(IMAGE_EXTENSIONS, passed):
            top, slash, _ = found.name.partition("/")
            if slash:
                counts[top] += 1
                yield found, numbers[top]
            else:
                passed.rejected.append(Rejection(found.name, "lies in no class folder"))
