"""Tar headers, compared with tarfile's."""

import io
import tarfile

import pytest

from gpuload.disk.tar import BLOCK_BYTES, RECORD_BYTES, TarWriter, ustar_header


@pytest.mark.parametrize(("name", "size"), [("a.jpg", 0), ("00000001-x.cls", 1), ("n" * 100, 8**11 - 1)])
def test_header_matches_tarfile(name: str, size: int) -> None:
    header = ustar_header(name, size)
    assert len(header) == BLOCK_BYTES
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
    assert len(data) % RECORD_BYTES == 0
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        found = [(info.name, info.offset_data, info.size) for info in archive]
    assert found == [tuple(member) for member in members]
    assert [data[m.offset : m.offset + m.size] for m in members] == [bytes([m.size % 256]) * m.size for m in members]
