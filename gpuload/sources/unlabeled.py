"""Images alone, wherever in a folder or archive they lie: `--no-labels`."""

from collections import Counter

from gpuload.errors import SourceError
from gpuload.sources.files import IMAGE_EXTENSIONS, PassedOver
from gpuload.sources.files.source import FilesSource, stream_table
from gpuload.sources.listing import NAME, Listing
from gpuload.sources.splits import splits_of_paths

_MASKS = ("masks", "mask", "annotations", "labels", "segmentations")


class UnlabeledSource(FilesSource):
    """Every image below a folder or in an archive, without any other field.

    An image is known by its extension in any case. Hidden files and folders are passed over. Samples are in the order
    of their paths, folder by folder. Folders that are called as splits are (see `splits`) are the splits.
    """

    def list_samples(self) -> Listing:
        """All images.

        Raises:
            SourceError: no such folder or archive, or no image in it.
        """
        self.check_root("Give a folder of images")
        passed = PassedOver()
        samples = stream_table(((found,) for found in self.files.walk(IMAGE_EXTENSIONS, passed)), ())
        if not samples.num_rows:
            others = f", found: {passed.by_extension()}" if passed.others else ""
            raise SourceError(
                f"{self.root}: holds no image. Images are known by their extension, such as .jpg, .png or .webp{others}"
            )
        names = samples.column(NAME).to_pylist()
        own = splits_of_paths(str(self.root), names) if self.own_splits else None
        counts = Counter(name.partition("/")[0] for name in names if "/" in name)
        if (masks := [name for name in counts if name.lower() in _MASKS]) and len(counts) > 1:
            passed.notes.append(f"images in {masks[0]!r} are packed like all others: {counts[masks[0]]:,}")
        return Listing(samples, (), None, passed.sorted_rejections(), passed.all_notes(), own)
