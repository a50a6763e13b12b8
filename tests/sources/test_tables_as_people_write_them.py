"""Tables as people and competitions write them: ids without an extension, other names of columns, and mistakes."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from images import Folder, encode, photo
from sources_read import listed, names_of, reasons_of

from gpuload import SourceError
from gpuload.sources import open_source


def of_table(root: Path, text: str, columns: dict[str, tuple[str, ...]] | None = None) -> Any:
    table = root.with_suffix(".t.csv")
    table.write_text(text)
    return listed(root, table, columns)


@pytest.mark.parametrize(
    "column",
    ["image_path", "img", "id", "Image_ID", "file", "filename", "name", "img_path", "image_name", "img_name", "image"],
)
def test_ids_without_an_extension(make_folder: Folder, column: str) -> None:
    files = {"x/1.jpg": b"1", "x/2.PNG": b"22", "x/0.3.jpeg": b"333"}
    root = make_folder(files)
    listing = of_table(root, f"{column},label\nx/2,0\nx/1,1\nx/0.3,1\n")
    assert names_of(listing) == ["x/2.PNG", "x/1.jpg", "x/0.3.jpeg"]
    assert listing.samples.column("bytes").to_pylist() == [2, 1, 3]


def test_a_table_without_a_header_loses_no_image(make_folder: Folder) -> None:
    root = make_folder({"1.jpg": b"1", "2.jpg": b"22", "3.jpg": b"333"})
    with pytest.raises(
        SourceError, match=r"its first line is '1.jpg', 'cat', which names an image.*such as path,label"
    ):
        of_table(root, "1.jpg,cat\n2.jpg,dog\n3.jpg,cat\n")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_rows_of_boxes_are_known_whatever_ends_their_lines(make_folder: Folder, tmp_path: Path, end: str) -> None:
    root = make_folder({"1.jpg": encode(photo(1)), "2.jpg": encode(photo(2))})
    lines = ["filename,class,xmin,ymin,xmax,ymax", "1.jpg,ant,1,2,9,8", "2.jpg,bee,3,4,7,6", "1.jpg,bee,0,1,5,9", ""]
    (tmp_path / "boxes.csv").write_bytes(end.join(lines).encode())
    listing = listed(root, tmp_path / "boxes.csv")
    found = dict(zip(names_of(listing), listing.samples.column("boxes").to_pylist(), strict=True))
    assert found == {"1.jpg": [[1, 2, 9, 8], [0, 1, 5, 9]], "2.jpg": [[3, 4, 7, 6]]}


LEFT = "left out {} that {} does not name"


@pytest.mark.parametrize(
    ("files", "text", "columns", "found", "notes"),
    [
        ("1.jpg m/1.png", "id,mask\n1,m/1\n", None, ["1.jpg"], []),
        ("0.jpg 1.jpg 2.jpg x/5.jpg notes.txt", "path,label\n1.jpg,0\n./2.jpg,0\n", None, ["1.jpg", "./2.jpg"], [LEFT.format("1 image", "{}")]),
        ("0.jpg 1.jpg 2.jpg m/1.png", "path,mask\n1.jpg,m/1.png\n0.jpg,2.jpg\n", None, ["1.jpg", "0.jpg"], []),
        ("1.jpg 2.jpg", "path,label,fold\n1.jpg,0,0\n2.jpg,0,1\n", None, ["1.jpg", "2.jpg"], ["columns of {} that are not packed: 'fold'; --column ROLE=NAME packs them"]),
        ("1.jpg 2.jpg", "path,label,fold\n1.jpg,5,0\n2.jpg,5,1\n", {"target": ("label", "fold")}, ["1.jpg", "2.jpg"], []),
        ("1.jpg", "photo,path,label\n1.jpg,2.jpg,0\n", {"image": ("photo",)}, ["1.jpg"], ["columns of {} that are not packed: 'path'; --column ROLE=NAME packs them"]),
    ],
)  # fmt: skip
def test_what_is_told_of_tables(
    make_folder: Folder, files: str, text: str, columns: Any, found: list[str], notes: list[str]
) -> None:
    root = make_folder(dict.fromkeys(files.split(), b""))
    listing = of_table(root, text, columns)
    assert names_of(listing) == found
    assert list(listing.notes) == [note.format(root.with_suffix(".t.csv")) for note in notes]
    if "target" in listing.samples.column_names:
        assert listing.samples.column("target").to_pylist() == [[5, 0], [5, 1]]
    if "mask" in listing.samples.column_names:
        assert set(listing.samples.column("mask").to_pylist()) <= set(files.split())


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
    listing = listed(root)
    assert listing.classes == ("a", "b", "empty")
    assert names_of(listing) == ["a/ü n.d.webp", "b/10.jpeg", "b/2.JPG", "b/deep/er/x.PnG"]
    assert listing.samples.column("bytes").to_pylist() == [3, 1, 5, 2]
    assert listing.samples.column("label").to_pylist() == [0, 1, 1, 1]
    assert reasons_of(listing) == [("lone.jpg", "lies in no class folder")]
    assert listing.notes == (
        "class folders without an image, which keep their class numbers: 'empty'",
        "1 folder lies below those of classes: the class of images in 'b/deep/er' is 'b'",
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
    listing = listed(root)
    assert names_of(listing) == ["a/1.jpg", "a/b/2.jpg", "b/2.jpg", "b/a/1.jpg", "c/3.jpg", "c/4.jpg"]
    assert reasons_of(listing) == [("c/5.jpg", "cannot be read: No such file or directory")]
    assert [note for note in listing.notes if "'a/up', a link to a folder that it lies in" in note]


def test_names_that_are_not_utf8(make_folder: Folder) -> None:
    root = make_folder({"a/1.jpg": b"1"})
    Path(os.fsdecode(os.fsencode(root) + b"/a/\xff.jpg")).write_bytes(b"1")
    listing = listed(root)
    assert names_of(listing) == ["a/1.jpg"]
    assert reasons_of(listing) == [("a/\ufffd.jpg", "its name is not UTF-8")]
    os.mkdir(os.fsencode(root) + b"/\xff")
    with pytest.raises(SourceError, match=r"class folder '\ufffd' has a name that is not UTF-8. Rename it"):
        listed(root)


@pytest.mark.parametrize(
    ("table", "expected_labels", "classes"),
    [
        ("path,label\nx/1.jpg,dog\n2.png,cat\n", [1, 0], ("cat", "dog")),
        ("Filename,other,Class\nx/1.jpg,?,10\n2.png,?,2\n", [10, 2], None),
        ("target\timage\n 7 \tx/1.jpg\n7\t2.png\n", [7, 7], None),
        ("path;label\nx/1.jpg;1a\n2.png;2\n", [0, 1], ("1a", "2")),
        ('\ufeff"path","label"\n"x/1.jpg","a, b"\n2.png,a\n', [1, 0], ("a", "a, b")),
        ('\ufeff"path"\t"label"\n"x/1.jpg"\t1\n2.png\t0\n', [1, 0], None),
    ],
)
def test_table(make_folder: Folder, table: str, expected_labels: list[int], classes: tuple[str, ...] | None) -> None:
    root = make_folder({"x/1.jpg": b"123", "2.png": b"4", "t.csv": table.encode()})
    source = open_source(root, root / "t.csv")
    listing = source.list_samples()
    assert names_of(listing) == ["x/1.jpg", "2.png"]
    assert listing.samples.column("bytes").to_pylist() == [3, 1]
    assert (listing.samples.column("label").to_pylist(), listing.classes) == (expected_labels, classes)
    assert source.read("x/1.jpg") == b"123"


IDS = ("0a1b", "1c2d", "2e3f", "3g4h")
TRAINED = {f"train/{name}.jpg": b"x" for name in IDS}
OF_COMPETITIONS = {  # as they lie on disk: the table in the folder of all, the images below it
    "ids and a class": (TRAINED, "id,breed\n{0},pug\n{1},boxer\n{2},pug\n{3},beagle\n", "label", [2, 1, 2, 0]),
    "two columns that name images": (TRAINED, "Image,Id\n{0}.jpg,w_1\n{1}.jpg,new\n{2}.jpg,w_1\n{3}.jpg,new\n", "label", [1, 0, 1, 0]),
    "ids in a column of another name": (TRAINED, "id_code,diagnosis\n{0},2\n{1},4\n{2},0\n{3},0\n", "label", [2, 4, 0, 0]),
    "several classes as numbers": (TRAINED, "id,attribute_ids\n{0},16 0\n{1},3\n{2},7 1 2\n{3},0\n", "labels", [[16, 0], [3], [7, 1, 2], [0]]),
    "a number": (TRAINED, "image,steering\n{0},0.5\n{1},-0.25\n{2},0\n{3},1\n", "target", [0.5, -0.25, 0, 1]),
    "columns of 0 and 1": (TRAINED, "image_id,healthy,rust\n{0},0,1\n{1},1,0\n{2},1,0\n{3},0,1\n", "label", [1, 0, 0, 1]),
    "columns of -1 and 1": (TRAINED, "image_id,Bald,Young\n{0},-1,1\n{1},1,1\n{2},-1,-1\n{3},1,-1\n", "labels", [[1], [0, 1], [], [0]]),
    "paths of another machine": (TRAINED, "filepath,label\n" + "".join(f"/home/a/data/train/{{{n}}}.jpg,{n}\n" for n in range(4)), "label", [0, 1, 2, 3]),
    "paths of Windows": (TRAINED, "filepath,label\n" + "".join(f"C:\\data\\{{{n}}}.jpg,{n}\n" for n in range(4)), "label", [0, 1, 2, 3]),
    "ids in folders by their letters": (
        {f"train/{name[0]}/{name[1]}/{name}.jpg": b"x" for name in IDS}, "id,landmark_id\n{0},7\n{1},7\n{2},9\n{3},0\n", "label", [7, 7, 9, 0]),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_COMPETITIONS)
def test_tables_of_competitions(make_folder: Folder, name: str) -> None:
    files, text, field, values = OF_COMPETITIONS[name]
    root = make_folder({**files, "train.csv": text.format(*IDS).encode(), "test/zz.jpg": b"x"})
    listing = listed(root, root / "train.csv")
    assert names_of(listing) == list(files)
    assert listing.samples.column(field).to_pylist() == values
    assert any("found by the ends of their paths" in note for note in listing.notes)


@pytest.mark.parametrize(
    ("files", "text", "word"),
    [
        ("a/1.jpg b/1.jpg", "id,label\n1,0\n", "'1' may be each of 'a/1.jpg', 'b/1.jpg'. Give the folder of one of them as SOURCE"),
        ("a/1.jpg", "path,label\nb/1.jpg,0\n", "names 1 of 1 files that are not in"),  # of another folder
        ("a/1.jpg a/2.jpg", "path,label\n/x/a/1.jpg,0\n/y/b/2.jpg,0\n", "names 2 of 2 files that are not in"),
        ("a/1.jpg", "image,species,individual\n1,x,y\n", "'image' names the images; what do 'species', 'individual' hold.* --column label=NAME"),
        ("a/1.jpg", "id,labels\n1,U+306F 1 2 13 5 U+304C 40 10 9 8\n", "its labels are boxes with their classes"),
    ],
)  # fmt: skip
def test_questions_about_tables_of_competitions(make_folder: Folder, files: str, text: str, word: str) -> None:
    root = make_folder(dict.fromkeys(files.split(), b"x"))
    with pytest.raises(SourceError, match=word):
        of_table(root, text)
