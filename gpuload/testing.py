"""Contract suites for plug-ins, run by pytest.

A package that adds a source tests it so:

    class TestRig(gpuload.testing.SourceTests):
        kind, samples = RigSource, 3

        def make(self, folder):
            ...  # writes three samples into the folder, and returns the path that is packed
"""

import dataclasses
import pickle
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gpuload.disk.dataset import Dataset
from gpuload.errors import ArgumentError
from gpuload.packing.packer import pack
from gpuload.packing.verify import verify
from gpuload.sources import FilesSource, Listing, Source, open_source, sources
from gpuload.sources.files import OneFile
from gpuload.sources.listing import addresses
from gpuload.sources.source import open_files
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
            folder: an empty folder.

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
            source.options.own_splits = False  # type: ignore[misc]
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
        first, second = (report.manifests for report in reports)
        assert (
            sum(len(Dataset(tmp_path / "1" / split)) for split in first)
            + len(reports[0].rejected)
            == self.samples
        )
        assert verify(tmp_path / "1", workers=1) == []
        assert {name: split.fingerprint for name, split in first.items()} == {
            name: split.fingerprint for name, split in second.items()
        }


def _listed(source: Source, scratch: Path) -> Listing:
    scratch.mkdir()
    source.prepare(scratch)
    return source.list_samples()
