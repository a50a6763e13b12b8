"""Class folders: `root/<class>/**/<image>`, or `root/<split>/<class>/**/<image>`."""

from collections import Counter
from collections.abc import Iterator

from gpuload.counted import counted
from gpuload.errors import SourceError
from gpuload.fields.field import LABEL
from gpuload.sources.files import IMAGE_EXTENSIONS, Found, PassedOver, printable
from gpuload.sources.files.source import FilesSource, stream_table
from gpuload.sources.layout import labels_advice, names_alike, no_class
from gpuload.sources.listing import Listing, Rejection, some_of
from gpuload.sources.splits import SourceSplits, ambiguous, by_folders, splits_called


class FolderSource(FilesSource):
    """Images in a folder, or an archive, of class folders.

    Classes are the sorted names of the folders at the first level, as torchvision's ImageFolder numbers them; a class
    folder without an image keeps its number (ImageFolder stops there, or keeps it with `allow_empty`). Folders below a
    class are searched too. Hidden files and folders are passed over. An image is known by its extension in any case.
    Samples are in the order of their paths, folder by folder.

    Where the folders at the first level are called as splits are (see `splits`), the class folders are those in them,
    and all splits have one list of classes. Where instead all images lie in such folders below their class folders,
    these are the splits.

    sure: whether class folders are what the user said, so that no name is too unlikely for a class.
    """

    sure: bool = False

    def list_samples(self) -> Listing:
        """All images below the class folders.

        Raises:
            SourceError: no such folder or archive, no class folders in it, or no image in those; or its folders can be
                understood in two ways.
        """
        self.check_root("Give a folder of class folders, as in photos/cat/1.jpg")
        folders = self.files.folders()
        splits = splits_called(str(self.root), "its folders", folders) if self.own_splits else {}
        classes = sorted({name for place in splits or ("",) for name in self.files.folders(place)})
        for name in classes:
            if printable(name) != name:
                raise SourceError(
                    f"{self.root}: the class folder {printable(name)!r} has a name that is not UTF-8. Rename it"
                )
        passed = PassedOver()
        seen = _Seen(splits)
        numbers = {name: number for number, name in enumerate(classes)}
        wanted = IMAGE_EXTENSIONS | {"npy"} if self.as_stored else IMAGE_EXTENSIONS
        samples = stream_table(seen.labelled(self.files.walk(wanted, passed), numbers, passed), (LABEL,))
        self._check(seen, classes, passed)
        if not samples.num_rows:
            others = f", found: {passed.by_extension()}" if passed.others else ""
            raise SourceError(
                f"{self.root}: no image in its {counted(len(classes), 'class folder')} ({some_of(classes)}). "
                f"Images are known by their extension, such as .jpg, .png or .webp{others}"
            )
        passed.notes += self._notes(seen, classes, [name for name in folders if name not in splits])
        own = self._splits(seen, passed) if self.own_splits else None
        return Listing(samples, (LABEL,), tuple(classes), passed.sorted_rejections(), passed.all_notes(), own)

    def _splits(self, seen: "_Seen", passed: PassedOver) -> SourceSplits | None:
        """The split of each sample; a note where only some lie in folders below classes that are called so."""
        if seen.splits:
            used = set(seen.folder_of)
            return SourceSplits.of([seen.splits[folder] for folder in seen.folder_of], by_folders(used))
        names = [name for name in dict.fromkeys(seen.folder_of) if name]
        splits = splits_called(str(self.root), "the folders in its class folders", names)
        if splits and (others := sum(folder not in splits for folder in seen.folder_of)):
            passed.notes.append(
                f"folders in class folders are called as splits are ({some_of(sorted(splits))}), but "
                f"{counted(others, 'image lies', 'images lie')} in none of them: no splits are made of these"
            )
        elif splits:
            where = f"by the folders {some_of(sorted(splits))} in its class folders"
            return SourceSplits.of([splits[folder] for folder in seen.folder_of], where)
        return None

    def _check(self, seen: "_Seen", classes: list[str], passed: PassedOver) -> None:
        """Raises SourceError where the folders are no class folders, or may be understood in two ways."""
        if seen.others:
            raise SourceError(ambiguous(str(self.root), list(seen.splits), some_of(sorted(seen.others))))
        flat = sorted(split for split in seen.splits if seen.flat[split] and not seen.images_of(split))
        if flat:
            which = "Give the others alone" if len(flat) < len(seen.splits) else f"Give {labels_advice(self.files)}"
            raise SourceError(
                f"{self.root}: the images in {some_of(flat)} lie in no class folder, so they have no class. "
                f"{which}, or --no-labels for the images of all, or --no-splits if {some_of(sorted(seen.splits))} are "
                "classes"
            )
        if not classes:
            notes = "".join(f"; {note}" for note in passed.notes)
            beside = ", or --from sidecar for the .txt or .json beside them" if passed.others & _BESIDE else ""
            raise SourceError(
                f"{self.root}: holds no class folders ({counted(len(passed.rejected), 'image lies', 'images lie')} "
                f"in it directly{notes}). "
                f"Put each image into a folder named after its class, or give {labels_advice(self.files)}, or "
                f"--no-labels{beside}"
            )
        name = no_class(name for name in classes if seen.images_in(name))
        if name and not self.sure:
            place = next((f"{split}/{name}" for split in sorted(seen.splits) if seen.counts[split, name]), name)
            inside = f"{self.root}/{place} if its folders are the classes, " if self.files.folders(place) else ""
            found = f" (also found: {passed.by_extension()})" if passed.others else ""
            raise SourceError(
                f"{self.root}: the folder {place!r} is hardly a class{found}. Give {inside}"
                f"{labels_advice(self.files)}, --no-labels for the images alone, or --from folder if it is one"
            )

    def _notes(self, seen: "_Seen", classes: list[str], others: list[str]) -> list[str]:
        """What users should know of folders that hold images, but perhaps not as they think."""
        notes = []
        full = [name for name in classes if seen.images_in(name)]
        empty = [name for name in classes if not seen.images_in(name)]
        if empty:
            hold = counted(len(empty), "class folder holds", "class folders hold")
            notes.append(
                f"{hold} no image and {'keeps its' if len(empty) == 1 else 'keep their'} class number: {some_of(empty)}"
            )
        if seen.splits and others:
            notes.append(f"passed over {some_of(others)} beside the splits: no images in there")
        used = [split for split in seen.splits if seen.images_of(split)]
        if lacking := sorted(set(seen.splits) - set(used)):
            notes.append(f"no image in {some_of(lacking)}, so there is no such split")
        if [seen.splits[split] for split in used] == ["train"]:
            notes.append(f"{some_of(used)} is taken as a split and not as a class; --no-splits takes it as a class")
        train = next((split for split in used if seen.splits[split] == "train"), None)
        if train and (unseen := [name for name in full if not seen.counts[train, name]]):
            notes.append(f"classes without an image in {train!r}: {some_of(unseen)}")
        if alike := names_alike(classes):
            notes.append(f"class folders that differ only in case are different classes: {some_of(alike)}")
        if len(full) == 1:
            place = f"{used[0]}/{full[0]}" if used else full[0]
            inside = self.files.folders(place)
            more = f". If its folders ({some_of(inside)}) are the classes, give {self.root}/{place}" if inside else ""
            notes.append(f"all images are of one class, {full[0]!r}{more}")
        elif seen.example and not seen.direct:
            notes.append(
                f"no image lies directly in a class folder, but in folders below, such as {seen.example!r}; the "
                f"classes are {some_of(full)}"
            )
        return notes


_BESIDE = Counter((".txt", ".json"))


class _Seen:
    """What a walk comes across.

    splits: the split of each folder at the first level, where these are splits.
    folder_of: of each sample the folder that is its split, or may be.
    counts: images by folder of the split ("" without) and class. flat: images directly in a split. others: images in
        other folders beside those of splits.
    direct, example: how many images lie directly in their class folder, and the folder of one that does not.
    """

    def __init__(self, splits: dict[str, str]) -> None:
        self.splits = splits
        self.folder_of: list[str] = []
        self.counts: Counter[tuple[str, str]] = Counter()
        self.flat: Counter[str] = Counter()
        self.others: Counter[str] = Counter()
        self.direct = 0
        self.example = ""

    def labelled(
        self, walk: Iterator[Found], numbers: dict[str, int], passed: PassedOver
    ) -> Iterator[tuple[Found, int]]:
        """Each image in a class folder with its class."""
        depth = 1 if self.splits else 0
        for found in walk:
            folders = found.name.split("/")[:-1]
            top = folders[0] if depth and folders else ""
            if top and top not in self.splits:
                self.others[top] += 1
            elif len(folders) <= depth:
                self.flat[top] += 1
                passed.rejected.append(Rejection(found.name, "lies in no class folder"))
            else:
                self.counts[top, folders[depth]] += 1
                if len(folders) == depth + 1:
                    self.direct += 1
                elif not self.example:
                    self.example = "/".join(folders)
                self.folder_of.append(top if depth else folders[1] if len(folders) > 1 else "")
                yield found, numbers[folders[depth]]

    def images_of(self, split: str) -> int:
        return sum(count for (folder, _), count in self.counts.items() if folder == split)

    def images_in(self, name: str) -> int:
        return sum(self.counts[folder, name] for folder in self.splits or ("",))
