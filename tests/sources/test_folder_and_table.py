"""Listings: sorted whatever the file system says, complete, and clear about what is wrong."""

import os
import pickle
from pathlib import Path

import pytest
from images import Folder

from gpuload import SourceError
from gpuload.sources import open_source


def names(listing) -> list[str]:
    return listing.samples.column("name").to_pylist()


def labels(listing) -> list[int]:
    return listing.samples.column("label").to_pylist()


def rejected(listing) -> list[tuple[str, str]]:
    return [(rejection.source, rejection.reason) for rejection in listing.rejected]


def test_folder(make_folder: Folder) -> None:
    root = make_folder(
        {
            "b/2.JPG": b"12345",
            "b/10.jpeg": b"1",
            "b/deep/er/x.PnG": b"22",
            "a/ü n.d.webp": b"333",
            "a/.hidden.jpg": b"no",
            ".cache/x.jpg": b"no",
            "a/notes.txt": b"no",
            "a/README": b"no",
            "lone.jpg": b"no",
        }
    )
    (root / "empty").mkdir()
    listing = open_source(root).list_samples()
    assert listing.classes == ("a", "b", "empty")
    assert names(listing) == ["a/ü n.d.webp", "b/10.jpeg", "b/2.JPG", "b/deep/er/x.PnG"]
    assert listing.samples.column("bytes").to_pylist() == [3, 1, 5, 2]
    assert labels(listing) == [0, 1, 1, 1]
    assert rejected(listing) == [("lone.jpg", "lies in no class folder")]
    assert listing.notes == (
        "class folders without an image, which keep their class numbers: 'empty'",
        "passed over, by extension: 1 × .txt, 1 × no extension",
    )
    source = pickle.loads(pickle.dumps(open_source(root)))
    assert source.read("b/2.JPG") == b"12345"


def test_links_are_followed_but_not_in_circles(make_folder: Folder) -> None:
    root = make_folder({"a/1.jpg": b"1", "b/2.jpg": b"2"})
    elsewhere = make_folder({"3.jpg": b"3"})
    (root / "a" / "up").symlink_to(root)
    (root / "a" / "b").symlink_to(root / "b")
    (root / "b" / "a").symlink_to(root / "a")
    (root / "c").symlink_to(elsewhere)
    (root / "c" / "4.jpg").symlink_to(root / "a" / "1.jpg")
    (root / "c" / "5.jpg").symlink_to("nowhere")
    listing = open_source(root).list_samples()
    assert names(listing) == ["a/1.jpg", "a/b/2.jpg", "b/2.jpg", "b/a/1.jpg", "c/3.jpg", "c/4.jpg"]
    assert rejected(listing) == [("c/5.jpg", "cannot be read: No such file or directory")]
    assert [note for note in listing.notes if "'a/up', a link to a folder that it lies in" in note]


def test_names_that_are_not_utf8(make_folder: Folder) -> None:
    root = make_folder({"a/1.jpg": b"1"})
    Path(os.fsdecode(os.fsencode(root) + b"/a/\xff.jpg")).write_bytes(b"1")
    listing = open_source(root).list_samples()
    assert names(listing) == ["a/1.jpg"]
    assert rejected(listing) == [("a/\ufffd.jpg", "its name is not UTF-8")]
    os.mkdir(os.fsencode(root) + b"/\xff")
    with pytest.raises(SourceError, match=r"class folder '\ufffd' has a name that is not UTF-8. Rename it"):
        open_source(root).list_samples()


@pytest.mark.parametrize(
    ("table", "expected_labels", "classes"),
    [
        ("path,label\nx/1.jpg,dog\n2.png,cat\n", [1, 0], ("cat", "dog")),
        ("Filename,other,Class\nx/1.jpg,?,10\n2.png,?,2\n", [10, 2], None),
        ("target\timage\n 7 \tx/1.jpg\n7\t2.png\n", [7, 7], None),
        ("path;label\nx/1.jpg;1a\n2.png;2\n", [0, 1], ("1a", "2")),
        ('\ufeff"path","label"\n"x/1.jpg","a, b"\n2.png,a\n', [1, 0], ("a", "a, b")),
    ],
)
def test_table(make_folder: Folder, table: str, expected_labels: list[int], classes: tuple[str, ...] | None) -> None:
    root = make_folder({"x/1.jpg": b"123", "2.png": b"4", "t.csv": table.encode()})
    source = open_source(root, root / "t.csv")
    listing = source.list_samples()
    assert names(listing) == ["x/1.jpg", "2.png"]
    assert listing.samples.column("bytes").to_pylist() == [3, 1]
    assert (labels(listing), listing.classes) == (expected_labels, classes)
    assert source.read("x/1.jpg") == b"123"
