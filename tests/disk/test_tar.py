"""Tar headers, compared with tarfile's."""

import io
import tarfile

import pytest

from gpuload.disk.tar import Member, TarWriter, group_members, ustar_header


@pytest.mark.parametrize(("name", "size"), [("a.jpg", 0), ("00000001-x.cls", 1), ("n" * 100, 8**11 - 1)])
def test_header_matches_tarfile(name: str, size: int) -> None:
    header = ustar_header(name, size)
    assert len(header) == 512
    back = tarfile.TarInfo.frombuf(header, "ascii", "strict")  # checks the checksum
    assert (back.name, back.size, back.mode, back.mtime, back.type) == (name, size, 0o644, 0, tarfile.REGTYPE)
    assert (back.uid, back.gid, back.uname, back.gname, back.linkname) == (0, 0, "", "", "")


@pytest.mark.parametrize(("name", "size"), [("n" * 101, 0), ("a.jpg", 8**11)])
def test_names_and_sizes_that_do_not_fit(name: str, size: int) -> None:
    with pytest.raises(ValueError, match="does not fit a USTAR header: 100 bytes of name, 8 GiB of data"):
        ustar_header(name, size)


def test_archive_reads_back() -> None:
    file = io.BytesIO()
    writer = TarWriter(file)
    members = [writer.append(f"{size}.bin", bytes([size % 256]) * size) for size in (0, 1, 511, 512, 513)]
    writer.finish()
    data = file.getvalue()
    assert len(data) == writer.size
    assert len(data) % 10_240 == 0  # whole records
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        found = [(info.name, info.offset_data, info.size) for info in archive]
    assert found == [tuple(member) for member in members]
    assert [data[m.offset : m.offset + m.size] for m in members] == [bytes([m.size % 256]) * m.size for m in members]


def test_samples_are_neighbours_with_one_key() -> None:
    names = ["a/1.jpg", "README", "a/1.seg.png", "a/.hidden", "a/1", "b/1.jpg", ".x.jpg", "b/1.cls", "a/1.cls"]
    members = [Member(name, number, 1) for number, name in enumerate(names)]
    found = [(key, [member.name for member in sample]) for key, sample in group_members(members)]
    assert found == [("a/1", ["a/1.jpg", "a/1.seg.png"]), ("b/1", ["b/1.jpg", "b/1.cls"]), ("a/1", ["a/1.cls"])]
