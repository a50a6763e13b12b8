"""Contract suites for plug-ins, run by pytest.

A package that adds a source tests it so:

    class TestRig(gpuload.testing.SourceTests):
        kind, samples = RigSource, 3

        def make(self, folder):
            ...  # writes three samples into the folder, and returns the path that is packed

and one that adds a codec by a subclass of `CodecTests`, a kind of field by one of `KindTests`, or a scheme of URLs by
one of `SchemeTests`.
"""

import copy
import dataclasses
import io
import itertools
import pickle
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from PIL import Image

from gpuload.augment import Augment
from gpuload.disk.dataset import Dataset
from gpuload.errors import ArgumentError, DecodeError, SourceError
from gpuload.fields.kind import Kind
from gpuload.fields.registry import all_kinds
from gpuload.formats import Codec, Conversion, codecs, image_extensions, open_file
from gpuload.loader.iterator import DaliIterator
from gpuload.packing.options import Encoding
from gpuload.packing.packer import pack
from gpuload.packing.verify import verify
from gpuload.sources import FilesSource, Listing, Source, open_source, sources
from gpuload.sources.files import OneFile
from gpuload.sources.listing import addresses
from gpuload.sources.source import open_files
from gpuload.store.network import background
from gpuload.store.objects import NoSuchObjectError, Objects
from gpuload.store.schemes import Scheme, scheme_called
from gpuload.store.url import URL, as_location
from gpuload.types import Array


class SourceTests:
    """What gpuload relies on in a source. A subclass names the source and makes a place for it to read.

    Attributes:
        kind: The class.
        samples: The number of samples in the place that `make` makes.
        options: The source's own, by name.
        recognised: Whether it recognises that place by itself; else it is named with `--from`.
    """

    kind: ClassVar[type[Source]]
    samples: ClassVar[int]
    options: ClassVar[dict[str, Any]] = {}
    recognised: ClassVar[bool] = True

    def make(self, folder: Path) -> Path:
        """Writes `samples` samples into an empty folder.

        Args:
            folder: An empty folder.

        Returns:
            The path that is packed: the folder, or something in it.
        """
        raise NotImplementedError

    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        folder = tmp_path / "place"
        folder.mkdir()
        return self.make(folder)

    @pytest.fixture
    def source(self, place: Path) -> Source:
        return self.kind(place, **self.options)

    def test_it_recognises_its_place_and_no_other(
        self, place: Path, tmp_path: Path
    ) -> None:
        files = OneFile(place) if place.is_file() else open_files(place)
        sight = self.kind.recognise(files)
        assert (sight is not None) == self.recognised
        if sight is not None:
            assert 0 < sight.confidence <= 1
            assert sight.reason
            assert type(open_source(place, options=self.options)) is self.kind
        empty = tmp_path / "empty"
        empty.mkdir()
        assert self.kind.recognise(open_files(empty)) is None

    def test_it_is_installed_under_a_name(self) -> None:
        named = [
            plugin.name
            for plugin in sources().values()
            if plugin.entry.value == f"{self.kind.__module__}:{self.kind.__name__}"
        ]
        assert len(named) == 1, "declare it in the entry points of its package"

    def test_it_lists_its_samples_the_same_each_time(
        self, source: Source, tmp_path: Path
    ) -> None:
        first = _listed(source, tmp_path / "first")
        assert len(first) == self.samples
        again = _listed(source, tmp_path / "again")
        assert first.samples.equals(again.samples)
        assert (first.fields, first.classes) == (again.fields, again.classes)

    def test_a_worker_reads_every_sample(self, source: Source, tmp_path: Path) -> None:
        places = addresses(_listed(source, tmp_path / "scratch").samples).to_pylist()
        worker = pickle.loads(pickle.dumps(source))
        worker.expect(places)
        for address in places:
            worker.wait(address)
            image: bytes | Array = worker.read(address)
            assert len(image) > 0

    def test_its_options_do_not_change(self, source: Source) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            source.options.own_splits = False  # type: ignore[misc]  # it must raise
        one_set = source.with_options(own_splits=False)
        assert (source.options.own_splits, one_set.options.own_splits) == (True, False)
        assert type(one_set) is type(source)
        with pytest.raises(ArgumentError, match="has no option 'colour_of_the_sky'"):
            self.kind(source.path, colour_of_the_sky="blue")

    def test_without_splits_it_is_one_set(self, source: Source, tmp_path: Path) -> None:
        one_set = source.with_options(own_splits=False)
        assert _listed(one_set, tmp_path / "scratch").splits is None

    def test_it_holds_its_images_alone(self, source: Source, tmp_path: Path) -> None:
        if isinstance(source, FilesSource):
            pytest.skip("--no-labels packs the images of a container without it")
        alone = source.with_options(images_alone=True)
        assert _listed(alone, tmp_path / "scratch").fields == ()

    def test_it_packs_the_same_with_any_number_of_workers(
        self, source: Source, tmp_path: Path
    ) -> None:
        reports = [
            pack(source, tmp_path / f"{workers}", workers=workers, progress=False)
            for workers in (1, 2)
        ]
        first = reports[0].manifests
        second = reports[1].manifests
        assert (
            sum(len(Dataset(tmp_path / "1" / split)) for split in first)
            + len(reports[0].rejected)
            == self.samples
        )
        assert verify(tmp_path / "1", workers=1) == []
        assert {name: split.fingerprint for name, split in first.items()} == {
            name: split.fingerprint for name, split in second.items()
        }


class CodecTests:
    """What gpuload relies on in a codec. A subclass names it and makes files for it to read.

    kind: the class. mode: that a set of its images is packed with, such as "F" or "uint16x4".
    """

    kind: ClassVar[type[Codec]]
    mode: ClassVar[str] = "RGB"

    def make(self) -> Sequence[tuple[bytes, Array]]:
        """A few small files and their values, each (height, width) or (height, width, bands), all of one number of
        bands."""
        raise NotImplementedError

    def test_it_is_installed_under_a_name(self) -> None:
        named = [name for name, codec in codecs().items() if type(codec) is self.kind]
        assert len(named) == 1, "declare it in the entry points of its package"

    def test_it_recognises_its_files_and_no_others(self) -> None:
        for data, _ in self.make():
            taking = [codec for codec in codecs().values() if codec.recognise(data)]
            assert type(taking[0]) is self.kind
        for data in (*_other_files(), b"", b"\0" * 4096):
            assert not self.kind.recognise(data)

    def test_folders_are_searched_for_its_suffixes(self) -> None:
        assert self.kind.suffixes
        for suffix in self.kind.suffixes:
            assert suffix.startswith(".") and suffix == suffix.lower()
            assert suffix.removeprefix(".") in image_extensions()

    def test_its_sizes_and_values_are_right(self) -> None:
        """Each time anew: the header first, then the values."""
        for data, values in (*self.make(), *self.make()):
            opened = open_file(data, _of_mode(self.mode))
            assert opened.size == (values.shape[1], values.shape[0])
            raster = opened.load()
            read = np.asarray(raster.image) if raster.values is None else raster.values
            bands = values if values.ndim == 3 else values[..., None]
            np.testing.assert_array_equal(read.reshape(bands.shape), bands)

    def test_a_damaged_file_is_refused_or_has_its_size(self) -> None:
        """Whatever is cut off, it ends in an exception, and never in an image of another size."""
        data, values = self.make()[0]
        for share in range(1, 16):
            cut = data[: len(data) * share // 16]
            if not self.kind.recognise(cut):
                continue
            try:
                raster = open_file(cut, _of_mode(self.mode)).load()
            except Exception:  # every other one is told in the message of the packer
                continue
            read = np.asarray(raster.image) if raster.values is None else raster.values
            assert read.shape[:2] == values.shape[:2]

    def test_a_page_that_is_not_there_is_refused(self) -> None:
        for data, _ in self.make():
            with pytest.raises(DecodeError, match="--page 99999 counts from 0"):
                open_file(data, _of_mode(self.mode, page=99_999)).load()

    def test_its_images_are_packed_as_they_are(self, tmp_path: Path) -> None:
        folder = tmp_path / "in" / "a"
        folder.mkdir(parents=True)
        files = self.make()
        for number, (data, _) in enumerate(files):
            (folder / f"{number}{self.kind.suffixes[0]}").write_bytes(data)
        encode: Literal["keep", "raw"] = "keep" if self.mode in ("RGB", "L") else "raw"
        report = pack(
            folder.parent,
            tmp_path / "out",
            mode=self.mode,
            encode=encode,
            lossless=encode == "keep",
            shuffle=False,
            workers=1,
            progress=False,
        )
        assert report.rejected == ()
        dataset = Dataset(tmp_path / "out" / "train")
        assert len(dataset) == len(files)
        assert verify(tmp_path / "out", workers=1) == []


class KindTests:
    """What gpuload relies on in a kind of field. A subclass names it and gives values.

    Attributes:
        kind: The class.
        key: The key of a sample's dict that the values are given under.
    """

    kind: ClassVar[type[Kind]]
    key: ClassVar[str]

    def make(self) -> Sequence[tuple[Any, Any]]:
        """A few values, each as a source gives it and as a batch holds it of a sample."""
        raise NotImplementedError

    def wrong(self) -> Sequence[Any]:
        """Values that are refused."""
        return ()

    @pytest.fixture
    def packed(self, tmp_path: Path) -> Dataset:
        given = [value for value, _ in self.make()]
        out = tmp_path / "packed"
        pack(self._samples(given), out, shuffle=False, workers=1, progress=False)
        return Dataset(out / "train")

    def _samples(self, values: Sequence[Any]) -> list[dict[str, Any]]:
        pictures = itertools.cycle(_pictures())
        return [
            {"image": next(pictures), self.key: copy.deepcopy(value)}
            for value in values
        ]

    def test_it_is_installed_under_its_name(self) -> None:
        installed = all_kinds().get(self.kind.name)
        assert type(installed) is self.kind, (
            "declare it in the entry points of its package, under its name"
        )

    def test_its_values_are_of_this_kind(self, packed: Dataset) -> None:
        assert packed.fields[self.key].kind == self.kind.name

    def test_its_values_come_in_batches(self, packed: Dataset) -> None:
        expected = [value for _, value in self.make()]
        values: list[Any] = []
        with DaliIterator(
            packed,
            2,
            augment=Augment(16),
            fields=["image", self.key],
            output="numpy",
            device="cpu",
            shuffle=False,
            drop_last=False,
        ) as loader:
            for batch in loader:
                values.extend(batch[1])
        assert len(values) == len(expected)
        for value, wanted in zip(values, expected, strict=True):
            np.testing.assert_array_equal(value, wanted)

    def test_its_values_are_sound_and_can_be_shown(self, packed: Dataset) -> None:
        assert verify(str(packed.folder), workers=1) == []
        for number in range(len(packed)):
            assert self.key in packed[number]

    def test_wrong_values_are_refused_with_the_name_of_the_sample(
        self, tmp_path: Path
    ) -> None:
        right, _ = self.make()[0]
        for number, value in enumerate(self.wrong()):
            samples = self._samples([right, value])
            with pytest.raises(SourceError, match=r"sample 1\b"):
                pack(samples, tmp_path / f"{number}", workers=1, progress=False)

    def test_it_claims_no_values_of_other_kinds(self) -> None:
        array = np.zeros((2, 3), np.float32)
        for value in (True, 3, 0.5, "a text", [1, 2], ["a"], {"a": 1}, b"bytes", array):
            assert not self.kind().claims(value), (
                f"{value!r} would be of this kind, whatever its key"
            )


def _of_mode(mode: str, page: int | None = None) -> Conversion:
    return Encoding(encode="raw", mode=mode, page=page).conversion


def _other_files() -> list[bytes]:
    """Images of formats that gpuload reads itself."""
    files = []
    for name in ("JPEG", "PNG", "TIFF", "BMP", "GIF"):
        file = io.BytesIO()
        Image.new("L", (40, 30), 7).save(file, name)
        files.append(file.getvalue())
    return files


def _listed(source: Source, scratch: Path) -> Listing:
    scratch.mkdir()
    source.prepare(scratch)
    return source.list_samples()


class SchemeTests:
    """What gpuload relies on in a scheme of URLs. A subclass names it and an empty place.

    Attributes:
        kind: The class.
    """

    kind: ClassVar[type[Scheme]]

    def make(self, folder: Path) -> str:
        """The URL of an empty place.

        Args:
            folder: An empty folder, which the place may be in.
        """
        raise NotImplementedError

    @pytest.fixture
    def files(self) -> dict[str, bytes]:
        """A packed set, and an object that is read in two ranges."""
        with tempfile.TemporaryDirectory() as folder:
            samples = [{"image": image, "label": 0} for image in _pictures()]
            pack(samples, Path(folder) / "set", workers=1, progress=False)
            paths = [path for path in Path(folder).rglob("*") if path.is_file()]
            files = {
                path.relative_to(folder).as_posix(): path.read_bytes() for path in paths
            }
        return {**files, "large.bin": bytes(range(256)) * 40_000}

    @pytest.fixture
    def url(self, tmp_path: Path, files: dict[str, bytes]) -> URL:
        """The place, with these files."""
        url = _url(self.make(tmp_path))
        store = self.kind().open(url.text)
        for name, content in files.items():
            obstore = import_module("obstore")
            obstore.put(store, name, content)
        return url

    def test_it_is_installed_under_its_name(self, tmp_path: Path) -> None:
        url = _url(self.make(tmp_path))
        assert type(scheme_called(url.scheme)) is self.kind, (
            "declare it in the entry points of its package"
        )

    def test_objects_are_listed_by_their_names_below_the_url(
        self, url: URL, files: dict[str, bytes]
    ) -> None:
        if not self.kind.lists:
            pytest.skip("it lists nothing")
        listed = background().wait(Objects(url).list())
        assert {name: stored.size for name, stored in listed.items()} == {
            name: len(content) for name, content in files.items()
        }
        inside = background().wait(Objects(url / "set").list())
        assert set(inside) == {
            name.removeprefix("set/") for name in files if name.startswith("set/")
        }

    def test_objects_are_read_whole_and_in_part(
        self, url: URL, files: dict[str, bytes]
    ) -> None:
        objects = Objects(url)
        for name, content in files.items():
            whole_object = background().wait(objects.read_whole(name))
            assert whole_object.data == content
            part = background().wait(objects.read(name, 3, 10))
            assert (bytes(part.data), part.size) == (content[3:10], len(content))

    def test_what_is_not_there_is_told(self, url: URL) -> None:
        with pytest.raises(NoSuchObjectError, match="does not exist"):
            background().wait(Objects(url).read("absent", 0, 1))

    def test_a_set_is_read_from_there(
        self, url: URL, files: dict[str, bytes], tmp_path: Path
    ) -> None:
        dataset = Dataset(f"{url}/set/train", cache=tmp_path / "cache")
        assert len(dataset) == len(_pictures())
        assert dataset[0]["label"] == 0

    def test_a_set_is_packed_there(self, tmp_path: Path) -> None:
        url = f"{self.make(tmp_path)}/out"
        if not self.kind.writes:
            with pytest.raises(ArgumentError, match="can only be read"):
                pack([{"image": _pictures()[0]}], url, workers=1)
            return
        samples = [{"image": image, "label": 0} for image in _pictures()]
        pack(samples, url, workers=1, progress=False)
        assert verify(url) == []


def _url(text: str) -> URL:
    location = as_location(text)
    assert isinstance(location, URL), f"{text} is no URL that can be read here"
    return location


def _pictures() -> list[Image.Image]:
    return [
        Image.new("RGB", (40 + number, 30), (number, 90, 60)) for number in range(5)
    ]
