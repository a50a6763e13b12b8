"""What is one sample of a tar: dots in the names of files, and members that do not lie together."""

import gzip
from pathlib import Path

import pytest
from images import encode, photo
from reading import files_of, rows_of
from sources_read import listed, names_of, packed, reasons_of
from tars import Members, tar_bytes, write_tar

import gpuload
from gpuload import ShardError, SourceError
from gpuload.packing.index import index_shards

PNGS = [encode(photo(number), "PNG") for number in range(8)]
HALVES = [(f"{n // 2}.{n % 2 * 5}", n) for n in range(8)]  # 0.0, 0.5, 1.0 …
DECIMALS = {
    f"{name}.{end}": PNGS[n] if end == "png" else b"%d" % (n % 3) for name, n in HALVES for end in ("cls", "png")
}
VERSIONS = {f"a{n}.v{n}.{end}": PNGS[n] if end == "png" else b"1" for n in range(4) for end in ("png", "cls")}
MASKS = {f"{n}.5.{end}": PNGS[n] for n in range(4) for end in ("png", "seg.png")}
STEREO = {
    f"{n}.{end}": PNGS[n] if end.endswith("png") else b"{}" if end.endswith("json") else b"1"
    for n in range(4)
    for end in ("left.png", "left.json", "right.png", "right.json", "cls")
}
SOME = {f"{n}.{end}": PNGS[n] if end == "png" else b"1" for n in range(4) for end in ("cls", "png")}
COPIES = {**SOME, "3.copy.cls": b"2", "3.copy.png": PNGS[7]}  # behind 3.cls and 3.png, so of one sample


@pytest.mark.parametrize(
    "members", [DECIMALS, VERSIONS, MASKS, COPIES], ids=["decimals", "versions", "masks", "copies"]
)
def test_dots_in_names_of_files_are_a_question(tmp_path: Path, members: Members) -> None:
    """By WebDataset's rule each of these loses labels, masks or images."""
    message = r"t\.tar(\.gz)?: '.*' belongs to '.*\.png' by its name, but a key ends at the first dot.*key_dot=last"
    shard = write_tar(tmp_path / "t.tar", members)
    compressed = tmp_path / "t.tar.gz"
    compressed.write_bytes(gzip.compress(tar_bytes(members)))
    for source in (shard, compressed):
        with pytest.raises(ShardError, match=message):
            listed(source)
        with pytest.raises(ShardError, match=message):
            listed(source, no_labels=True)
    with pytest.raises(ShardError, match=message):
        index_shards(str(shard))
    assert not (tmp_path / "index.arrow").exists()


def test_keys_end_at_the_dot_that_the_option_names(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "t.tar", DECIMALS)
    packed(shard, tmp_path / "last", "--option", "key_dot=last", "--no-shuffle")
    rows = rows_of(tmp_path / "last" / "train")
    assert [row["source"] for row in rows] == [f"t.tar/{name}.png" for name, _ in HALVES]
    assert [row["label"] for row in rows] == [n % 3 for _, n in HALVES]
    first = listed(shard, options={"key_dot": "first"})
    assert len(first) == 4
    assert [field.name for field in first.fields] == ["images"]
    masks = listed(write_tar(tmp_path / "m.tar", MASKS), options={"key_dot": "last"})
    assert names_of(masks) == [f"m.tar/{n}.5.png" for n in range(4)]
    assert [field.name for field in masks.fields] == ["mask"]
    with pytest.raises(SourceError, match="key_dot=second: expected first or last"):
        listed(shard, options={"key_dot": "second"})


def test_pictures_that_most_samples_have_are_no_dotted_names(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "t.tar", STEREO)
    assert [field.name for field in listed(shard).fields] == ["right", "label"]
    _, index = index_shards(str(shard))
    assert {field.name for field in index.fields} == {"image", "right", "label"}


def test_members_that_do_not_lie_together(tmp_path: Path) -> None:
    """As `tar -cf x.tar *.png *.cls` writes them. `pack`, also to append, and `index` give the same reason."""
    apart = sorted(SOME.items(), key=lambda member: member[0].rpartition(".")[2])
    shard = write_tar(tmp_path / "t.tar", apart)
    message = "t.tar: key '0' comes again after other samples. Members of a sample must lie together"
    packed(write_tar(tmp_path / "good.tar", SOME), tmp_path / "out")
    before = files_of(tmp_path / "out")
    with pytest.raises(ShardError, match=message):
        gpuload.pack(shard, tmp_path / "out", append=True)
    assert files_of(tmp_path / "out") == before
    with pytest.raises(ShardError, match=message):
        index_shards(str(shard))


def test_a_key_that_comes_twice_is_two_samples(tmp_path: Path) -> None:
    """Where each has an image of its own."""
    names = ["a.png", "a.cls", "b.png", "b.cls", "a.png", "a.cls"]
    members = [(name, PNGS[n] if name.endswith("png") else b"1") for n, name in enumerate(names)]
    samples = listed(write_tar(tmp_path / "t.tar", members))
    assert names_of(samples) == ["t.tar/a.png", "t.tar/b.png", "t.tar/a.png"]
    assert reasons_of(samples) == []


@pytest.mark.parametrize("name", ["IMG.{n}", "IMG.copy{n}"])
def test_dots_in_names_inside_of_class_folders(tmp_path: Path, name: str) -> None:
    """The images of a folder share a key, as the frames of a clip do: a question with both answers."""
    members = {f"photos/{group}/{name.format(n=n)}.png": PNGS[n] for group in ("ant", "bee") for n in range(3)}
    plain = write_tar(tmp_path / "t.tar", members)
    with pytest.raises(SourceError, match="their names have dots, as 'photos/ant/IMG.*--from folder .*--from tar"):
        listed(plain)
    folders = listed(plain, form="folder")
    assert (len(folders), folders.classes) == (6, ("ant", "bee"))
    assert len(listed(plain, form="tar")) == 2


def test_dots_in_names_that_no_images_share(tmp_path: Path) -> None:
    members = {f"photos/{group}/{n}.v{n}.png": PNGS[n] for group in ("ant", "bee") for n in range(3)}
    folders = listed(write_tar(tmp_path / "t.tar", members))
    assert (len(folders), folders.classes) == (6, ("ant", "bee"))


def test_extensions_in_capitals_are_those_of_the_same_fields(tmp_path: Path) -> None:
    """As WebDataset and `index` have it: labels in `.CLS` were left out."""
    shard = write_tar(
        tmp_path / "t.tar", {name.replace("cls", "CLS").replace("png", "PNG"): data for name, data in SOME.items()}
    )
    samples = listed(shard)
    assert [field.name for field in samples.fields] == ["label"]
    assert samples.samples.column("label").to_pylist() == [1] * 4
