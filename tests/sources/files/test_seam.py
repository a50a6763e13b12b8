"""The seam between containers and sources: any class that fits `Files` works with every source whose images are files."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from images import Folder as MakeFolder
from zips import write_zip

from gpuload import SourceError
from gpuload.fields.registry import kind_of
from gpuload.sources import FolderSource, TableSource
from gpuload.sources.at_path import FilesSource, open_files
from gpuload.sources.coco import CocoSource
from gpuload.sources.files import Files, Names, Ref
from gpuload.sources.folder import SidecarSource, UnlabeledSource
from gpuload.sources.local_folder import Folder
from gpuload.sources.voc import VocSource

XML = b"<annotation><object><name>x</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>3</xmax><ymax>4</ymax></bndbox></object></annotation>"
FILES = {
    "Annotations/a/1.xml": XML,
    "Annotations/a/2.xml": b"<annotation/>",
    "Data/a/1.jpg": b"first",
    "Data/a/2.jpg": b"second",
    "Data/a/1.txt": b"one\r\n",
    "Data/a/2.txt": b" two",
    "Data/a/1.png": b"mask 1",
    "Data/a/2.png": b"mask 2",
}
# As VOC has them; an XML among the images and an image among the annotations are no part of a pair.
PAIRS = {name: data for name, data in FILES.items() if not name.endswith((".png", ".txt"))}
PAIRS |= {"Data/a/3.xml": b"", "Annotations/a/4.jpg": b""}


class Memory(Files):
    """A container that is a dict."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = files
        self._names = Names(files)

    def __str__(self) -> str:
        return "memory"

    def scan(self, folder: str) -> tuple[dict[str, str], list[str]]:
        return self._names.scan(folder)

    def find(self, name: str) -> Ref:
        if name not in self.files:
            raise FileNotFoundError(name)
        return Ref(name, len(self.files[name]), name)

    def read(self, address: str) -> bytes:
        return self.files[address]


@pytest.fixture(params=["folder", "class folders", "sidecar", "voc", "table", "coco"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def source_of(kind: str, files: Files | Path, folder: Path) -> FilesSource:
    if kind == "table":
        (folder / "t.csv").write_text("path,label,mask\nData/a/1.jpg,0,Data/a/1.png\nData/a/2.jpg,1,Data/a/2.png\n")
        return TableSource(files, folder / "t.csv")
    if kind == "coco":
        images = [{"id": n, "file_name": f"Data/a/{n}.jpg"} for n in (2, 1)]
        captions = [{"id": n, "image_id": n, "caption": f"c{n}"} for n in (1, 2)]
        (folder / "c.json").write_text(json.dumps({"images": images, "annotations": captions}))
        return CocoSource(files, folder / "c.json")
    classes = {"folder": UnlabeledSource, "class folders": FolderSource, "sidecar": SidecarSource, "voc": VocSource}
    return classes[kind](files)


def test_every_source_lists_and_reads_the_same_from_any_container(
    make_folder: MakeFolder, tmp_path: Path, kind: str
) -> None:
    files = PAIRS if kind == "voc" else FILES
    folder = make_folder(files)
    archive = write_zip(tmp_path / "a.zip", dict(reversed(files.items())))
    expected = source_of(kind, folder, tmp_path)
    listing = expected.list_samples()
    assert len(listing) >= 2
    containers: list[Files | Path] = [Memory(files), Folder(folder), archive]
    for container in containers:
        source = source_of(kind, container, tmp_path)
        other = source.list_samples()
        masks = [field.name for field in listing.fields if kind_of(field).stays_in_shard]
        assert (other.fields, other.classes, other.rejected) == (listing.fields, listing.classes, listing.rejected)
        assert other.samples.drop_columns([*masks, *(["where"] if container is archive else [])]) == (
            listing.samples.drop_columns(masks)
        )
        for sample, same in zip(other.samples.to_pylist(), listing.samples.to_pylist(), strict=True):
            assert source.read(sample.get("where", sample["name"])) == files[same["name"]]
            for name in masks:
                assert source.read(sample[name]) == files[same[name]]


def test_texts_are_read_as_text_files_are(make_folder: MakeFolder, tmp_path: Path) -> None:
    files = {"1.jpg": b"", "1.txt": "ü\r\nb\rc\n".encode()}
    for root in (make_folder(files), write_zip(tmp_path / "a.zip", files)):
        assert SidecarSource(root).list_samples().samples.column("caption").to_pylist() == ["ü\nb\nc"]
    with pytest.raises(SourceError, match=r"a\.zip/1\.txt: cannot be read as UTF-8 text"):
        SidecarSource(write_zip(tmp_path / "a.zip", {"1.jpg": b"", "1.txt": b"\xff"})).list_samples()


def test_the_identity_of_a_source_names_its_container(make_folder: MakeFolder, tmp_path: Path) -> None:
    """As it has been before there were containers, so that a run begun then can be resumed."""
    root = make_folder({})
    assert FolderSource(root).identity == f"FolderSource(root={root})"
    assert FolderSource(Memory({})).identity == "FolderSource(root=memory)"
    assert TableSource("a.zip", "t.csv").identity == "TableSource(columns={}, root=a.zip, table=t.csv)"


def test_a_folder_may_have_an_archives_name(tmp_path: Path) -> None:
    (tmp_path / "a.zip").mkdir()
    assert isinstance(open_files(tmp_path / "a.zip"), Folder)
