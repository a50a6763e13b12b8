"""Damage is an error that names the byte, or, by `verify`, is read on behind; never an end without a word. `verify` finds the
samples that end a decoder, and an index that is not the manifest's."""

import hashlib
import importlib
import json
import os
import struct
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from damaged import change_manifest, damage
from images import Folder, encode, photo, write_files
from loaders import load
from reading import files_of, rejected_of, rows_of
from stand_ins import verify_all_but_one, verify_by_width
from store.servers import file_server, running
from tars import sealed, tar_bytes, write_tar

import gpuload
from gpuload import ShardError
from gpuload.cli import main
from gpuload.disk.tar import read_members
from gpuload.packing.verify import verify

COUNT = 6


FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


IMAGES = [encode(photo(number, 24, 16)) for number in range(COUNT)]


def make_tar(format: str, members: dict[str, bytes] | None = None) -> bytes:
    """Samples of an image and a class. In the formats that can, half of the names are too long for a header."""
    if members is None:
        members = {}
        for number, image in enumerate(IMAGES):
            folder = "" if format == "ustar" or number % 2 else "ä" * 60 + "/"
            members |= {f"{folder}{number}.jpg": image, f"{folder}{number}.cls": b"%d" % number}
    return tar_bytes(members, FORMATS[format])


def headers_of(data: bytes) -> list[int]:
    """Where a header block begins, of members and of what extends the next header."""
    return [at for at in range(0, len(data), 512) if data[at + 257 : at + 262] == b"ustar"]


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


DAMAGE: dict[str, Callable[[bytes, int], bytes]] = {
    "bit flipped in the name": lambda data, at: flipped(data, at + 3),
    "bit flipped in the size": lambda data, at: flipped(data, at + 130),
    "bit flipped in the checksum": lambda data, at: flipped(data, at + 150),
    "zeroed": lambda data, at: data[:at] + bytes(512) + data[at + 512 :],
    "garbage": lambda data, at: data[:at] + bytes(range(1, 256)) * 2 + b"ab" + data[at + 512 :],
    "cut at": lambda data, at: data[:at],
    "cut in": lambda data, at: data[: at + 200],
    "a huge size": lambda data, at: sealed(data, at, {124: b"77777777777\0"}),
    "a negative size": lambda data, at: sealed(data, at, {124: b"\xff" * 12}),
    "a size beyond all numbers": lambda data, at: sealed(data, at, {124: b"\x80" + b"\x3f" * 11}),
    "a size in words": lambda data, at: sealed(data, at, {124: b"many\0"}),
}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_at_every_header(tmp_path: Path, format: str, kind: str) -> None:
    """It is an error; read on behind it, what is given is what was there, and all but two members are."""
    data = make_tar(format)
    path = tmp_path / "x.tar"
    path.write_bytes(data)
    whole = [(member.name, member.offset, member.size) for member in read_members(path)]
    assert len(whole) == 2 * COUNT
    headers = headers_of(data)
    assert len(headers) == {"ustar": 12, "gnu": 18, "pax": 18}[format]
    for at in headers:
        path.write_bytes(DAMAGE[kind](data, at))
        with pytest.raises(ShardError, match=r"x.tar: not a complete, uncompressed tar archive \(.* at byte [0-9,]+\)"):
            list(read_members(path))
        if not kind.startswith("cut") or whole[0][1] < at:  # something is left
            damage = []
            found = [(member.name, member.offset, member.size) for member in read_members(path, damage=damage)]
            assert set(found) <= set(whole)
            assert found == sorted(found, key=lambda member: member[1])
            lost = len(whole) - len(found)
            behind = sum(offset + size > at for _, offset, size in whole)
            assert lost == behind if kind.startswith("cut") else 1 <= lost <= 2
            assert len(damage) >= 1
            assert damage[0].start <= at < max(damage[0].end, at + 1)


def test_both_doors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`pack --from tar` and `index` refuse it by byte, and `verify` lists it where it came later."""
    data = make_tar("ustar")
    at, end = headers_of(data)[6:8]
    shard = write_tar(tmp_path / "in" / "x.tar", {})
    shard.write_bytes(data)
    index = ["index", str(shard), "--out", str(tmp_path / "index")]
    assert main(index) == 0
    shard.write_bytes(flipped(data, at))
    for command in (["pack", str(shard), str(tmp_path / "out")], [*index, "--overwrite"]):
        assert main(command) == 2
        assert (
            f"{shard}: not a complete, uncompressed tar archive (a damaged header at byte {at:,}). Copy it again, or "
            "unpack what can be read of it (`tar -xk --ignore-zeros`), make a tar of that (`tar -c --sort=name`), and "
            "use this one"
        ) in capsys.readouterr().err
    assert any(
        line.endswith(f"x.tar: bytes {at:,} to {end:,} are damaged: a damaged header at byte {at:,}")
        for line in verify(tmp_path / "index")
    )


@pytest.mark.parametrize("fault", ["joined", "damaged"])
def test_what_can_be_unpacked_is_packed(tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str) -> None:
    """With its fields. Tars as `cat` joins them: the second one begins behind the zeros that end the first. And a lost
    header, of an image."""
    one = make_tar("pax", {"1.jpg": IMAGES[0], "1.cls": b"1", "3.jpg": IMAGES[2], "3.cls": b"3"})
    two = make_tar("pax", {"2.jpg": IMAGES[1], "2.cls": b"2"})
    message = f"with data from byte {len(one):,} on, as where tars are joined by cat, at"
    if fault == "damaged":
        one, two = flipped(one, headers_of(one)[2]), b""
        message = "a damaged header at byte"
    shard, folder = tmp_path / "x.tar", tmp_path / "unpacked"
    shard.write_bytes(one + two)
    assert main(["pack", str(shard), str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    folder.mkdir()
    subprocess.run(["tar", "-xk", "--ignore-zeros", "-f", shard], cwd=folder, stderr=subprocess.DEVNULL)
    subprocess.run(["tar", "-c", "--sort=name", "-f", shard, "."], cwd=folder, check=True)
    assert main(["pack", str(shard), str(tmp_path / "out"), "--no-shuffle"]) == (0 if two else 3)
    rows, samples = rows_of(tmp_path / "out" / "train"), [(n, IMAGES[n - 1]) for n in ((1, 2, 3) if two else (1,))]
    assert [(row["label"], row["image"]) for row in rows] == samples


@pytest.mark.parametrize(
    ("kind", "records", "fault"),
    [
        (b"x", b"19 size=9999999999\n", "'0.jpg' of 9,999,999,999 bytes, which are more than the file has,"),
        (b"x", b"11 size=12\n", "headers with two sizes, 12 and "),
        (b"x", b"12 size=-12\n", "a damaged extended header"),
        (b"x", b"99 path=a.jpg\n", "a damaged extended header"),
        (b"x", b"5 path=a.jpg\n", "a damaged extended header"),
        (b"x", b"path=a.jpg\n", "a damaged extended header"),
        (b"x", b"14 path=a.jpg\n\xff", "a damaged extended header"),
        (b"g", b"14 path=a.jpg\n", "a header for all members that sets their name or size at byte 0"),
    ],
)
def test_extended_headers_that_lie(tmp_path: Path, kind: bytes, records: bytes, fault: str) -> None:
    data = make_tar("ustar")
    head = sealed(make_tar("ustar", {"PaxHeader": b""})[:512], 0, {124: b"%011o\0" % len(records), 156: kind})
    (tmp_path / "x.tar").write_bytes(head + records.ljust(512, b"\0") + data)
    with pytest.raises(ShardError) as caught:
        list(read_members(tmp_path / "x.tar"))
    assert fault in str(caught.value)
    damage = []
    found = [member.name for member in read_members(tmp_path / "x.tar", damage=damage)]
    assert found == [name for number in range(COUNT) for name in (f"{number}.jpg", f"{number}.cls")][1:]
    assert [part.start for part in damage] == [0]


def test_what_is_said_of_all_members_is_passed_over(tmp_path: Path) -> None:
    """As `git archive` names its commit before the first of them."""
    records = b"20 comment=a commit\n"
    head = sealed(make_tar("ustar", {"PaxHeader": b""})[:512], 0, {124: b"%011o\0" % len(records), 156: b"g"})
    (tmp_path / "x.tar").write_bytes(head + records.ljust(512, b"\0") + make_tar("ustar", {"1.jpg": IMAGES[0]}))
    assert list(read_members(tmp_path / "x.tar")) == [("1.jpg", 1536, len(IMAGES[0]))]


def test_sizes_in_base_256(tmp_path: Path) -> None:
    data = make_tar("ustar")
    at = headers_of(data)[0]
    size = b"\x80" + bytes(3) + struct.pack(">Q", len(IMAGES[0]))
    (tmp_path / "x.tar").write_bytes(sealed(data, at, {124: size}))
    assert next(read_members(tmp_path / "x.tar")).size == len(IMAGES[0])
    for size, fault in ((b"\xff" * 12, "a negative size at byte 0"), (b"many\0", "a size that is no number at byte 0")):
        (tmp_path / "x.tar").write_bytes(sealed(data, at, {124: size}))
        with pytest.raises(ShardError, match=fault):
            next(read_members(tmp_path / "x.tar"))


def test_a_tar_of_gnu_tar_with_all_that_it_can_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Long names, links, sparse files and pipes; the times that incremental archives have in place of a prefix."""
    source = tmp_path / "in"
    files = dict.fromkeys(("1.jpg", "ä" * 60 + ".jpg", "x/" * 60 + "3.jpg"), IMAGES[0])
    write_files(source, files)
    os.link(source / "1.jpg", source / "hard.jpg")
    (source / "soft.jpg").symlink_to("1.jpg")
    with (source / "sparse.jpg").open("wb") as file:
        file.truncate(1 << 20)
        file.seek(0, os.SEEK_END)
        file.write(b"x" * 5000)
    os.mkfifo(source / "pipe.jpg")
    for form in ("gnu", "oldgnu", "pax"):
        for options in ([], ["--sparse"], [f"--listed-incremental={tmp_path / form}"]):
            path = tmp_path / f"{form}{len(options)}.tar"
            command = ["tar", "--sort=name", f"--format={form}", *options, "-cf", path, "."]
            subprocess.run(command, cwd=source, check=True)
            others: list[tuple[str, str]] = []
            names = {member.name.removeprefix("./") for member in read_members(path, others)}
            kinds = {"hard.jpg": "link", "soft.jpg": "link", "pipe.jpg": "pipe"}
            kinds |= {"sparse.jpg": "sparse file"} if "--sparse" in options else {}
            assert {name.rpartition("/")[2]: kind for name, kind in others} == kinds
            assert names == {*files, "sparse.jpg"} - {*kinds}
    (source / "sparse.jpg").unlink()
    subprocess.run(["tar", "--sort=name", "-cf", tmp_path / "x.tar", "."], cwd=source, check=True)
    assert main(["pack", str(tmp_path / "x.tar"), str(tmp_path / "out"), "--from", "tar"]) == 3
    assert rejected_of(tmp_path / "out" / "train") == {
        "x.tar/./hard.jpg": "is a link, not a regular file",
        "x.tar/./soft.jpg": "is a link, not a regular file",
        "x.tar/./pipe.jpg": "is a pipe, not a regular file",
    }


def test_names_that_are_paths_stay_texts(tmp_path: Path) -> None:
    """Absolute ones and those that climb: a key holds a part of them, and no file is written by them."""
    escape = tmp_path / "escape"
    members = {f"{escape}.jpg": IMAGES[0], "../../up.jpg": IMAGES[1], "a/../../b.jpg": IMAGES[2]}
    shard = write_tar(tmp_path / "in" / "x.tar", members)
    assert main(["pack", str(shard), str(tmp_path / "out"), "--no-shuffle", "--from", "tar"]) == 0
    keys = ["00000000-escape", "00000001-up", "00000002-b"]
    assert [row["key"] for row in rows_of(tmp_path / "out" / "train")] == keys
    assert main(["index", str(shard), "--out", str(tmp_path / "index")]) == 0
    assert [row["key"] for row in rows_of(tmp_path / "index")] == [str(escape), "../../up", "a/../../b"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "index", "out"]


@pytest.mark.parametrize("how", ["gzip", "bz2", "lzma"])
def test_compressed_tars(tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole or cut short, by their content and by their name."""
    data = importlib.import_module(how).compress(make_tar("ustar"))
    for content in (data, data[: len(data) // 2]):
        (tmp_path / "x.tar").write_bytes(content)
        assert main(["pack", str(tmp_path / "x.tar"), str(tmp_path / "out")]) == 2
        assert "x.tar: not a complete, uncompressed tar archive (a " in capsys.readouterr().err
    for content in (data, data[: len(data) // 2]):
        (tmp_path / "x.tar.gz").write_bytes(content)
        if how == "gzip" and content is data:
            assert main(["pack", str(tmp_path / "x.tar.gz"), str(tmp_path / "gz")]) == 0
            (tmp_path / "x.tar").write_bytes(make_tar("ustar"))
            assert main(["pack", str(tmp_path / "x.tar"), str(tmp_path / "tar")]) == 0
            packed = [rows_of(tmp_path / name / "train") for name in ("gz", "tar")]
            compressed, plain = (sorted((row["image"], row["label"]) for row in rows) for rows in packed)
            assert compressed == plain
        else:
            assert main(["pack", str(tmp_path / "x.tar.gz"), str(tmp_path / "out")]) == 2
            assert "x.tar.gz: cannot be read as a compressed tar (" in capsys.readouterr().err


def test_what_is_no_tar_stays_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.tar").write_bytes(b"no tar" * 1000)
    (tmp_path / "empty.tar").touch()
    (tmp_path / "zeros.tar").write_bytes(bytes(10240))
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "folder" / "pipe.tar")
    for source, fault in (
        ("text.tar", "text.tar: not a complete, uncompressed tar archive (a damaged header at byte 0)"),
        ("empty.tar", "tar archive (no zero blocks, with which a tar ends, so that it was cut"),
        ("zeros.tar", "zeros.tar: holds no sample; found: nothing. Give at least one"),
        ("folder", "folder/pipe.tar: cannot be read (is not a regular file)"),
    ):
        assert main(["pack", str(tmp_path / source), str(tmp_path / "out"), "--from", "tar"]) == 2
        assert fault in capsys.readouterr().err


BAD = (0, 15, 25, 96)


OTHER = "its SHA-256, or those of its parts, are not those in manifest.json"


@pytest.fixture(scope="module")
def bad(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return damage(packed, tmp_path_factory.mktemp("bad") / "train", BAD)


def test_a_sample_that_kills_its_decoder_is_blamed_and_no_other(
    make_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that crash are in one shard, beside sound ones."""
    source = make_folder({f"{'ab'[n % 2]}/{n:02d}.jpg": encode(photo(n, 50 + n, 30)) for n in range(20)})
    assert main(["pack", str(source), str(tmp_path / "out"), "--maxcount", "10", "--workers", "1"]) == 0
    folder, listed = tmp_path / "out" / "train", tmp_path / "list.jsonl"
    before = files_of(folder)
    monkeypatch.setattr("gpuload.packing.verify.verify_shard", verify_by_width)
    faults = verify(folder, 2, quarantine=listed)
    lines = [json.loads(line) for line in listed.read_text().splitlines()]
    reasons = {line["key"].rpartition("-")[2]: line["reason"] for line in lines}
    assert reasons == {
        "11": "the decoder crashed: SIGSEGV",
        "12": "the decoder crashed: SIGABRT",
        "13": "the decoder was killed (SIGKILL) twice; out of memory?",
        "14": "took longer than 60 s",
        "15": reasons["15"],
    }
    assert "1 x 30" in reasons["15"]
    assert len(faults) == 5 and files_of(folder) == before
    with load(gpuload.Dataset(folder, exclude=listed), shuffle=False, drop_last=False, batch_size=4) as loader:
        assert len(loader.dataset) == 15
        assert sum(len(batch[0]) for batch in loader) == 15


def test_a_shard_that_ends_its_process_is_a_fault_beside_those_of_others(
    bad: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = verify(bad, 2)
    monkeypatch.setattr("gpuload.packing.verify.verify_shard", verify_all_but_one)
    fault = f"{bad}/shard-000003.tar: its worker ended (SIGSEGV), and no sample is to blame"
    assert sorted(verify(bad, 2)) == sorted([*before, fault])


def test_the_list_holds_what_does_not_decode_and_the_loader_leaves_it_out(
    packed: Path, bad: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "list.jsonl"
    assert main(["verify", str(bad), "--workers", "1", "--quarantine", str(listed)]) == 1
    assert len(capsys.readouterr().out.splitlines()) == len(BAD) * 2 + 1  # as many shards as samples
    keys = gpuload.Dataset(packed).keys(list(BAD))
    assert [json.loads(line)["key"] for line in listed.read_text().splitlines()] == keys
    with load(gpuload.Dataset(bad, exclude=listed), shuffle=False, drop_last=False) as loader:
        seen = [n for batch in loader for n in batch[0].tolist()]
    assert seen == [n for n in range(97) if n not in BAD]
    assert verify(packed, 1, quarantine=listed) == [] and listed.read_bytes() == b""  # which excludes nothing
    assert gpuload.Dataset(packed, exclude=listed).fingerprint == gpuload.Dataset(packed).fingerprint


def test_a_list_that_cannot_be_written_is_refused_before_the_work(packed: Path, tmp_path: Path) -> None:
    with pytest.raises(gpuload.OutputError, match=r"list: cannot be written .* another file to --quarantine"):
        verify(packed, 1, quarantine=tmp_path / "no" / "list", watch=lambda *_: pytest.fail("it began"))


def change_label(folder: Path) -> None:
    with pa.ipc.open_file((folder / "index.arrow").read_bytes()) as reader:
        batches = [reader.get_batch(number) for number in range(10)]
    with pa.ipc.new_file(str(folder / "index.arrow"), reader.schema) as writer:
        for number, batch in enumerate(batches):
            rows = batch.to_pylist()
            rows[0]["label"] = (rows[0]["label"] + (number == 3)) % 3
            writer.write_batch(pa.RecordBatch.from_pylist(rows, batch.schema))


def test_a_label_that_was_changed(copy: Path) -> None:
    """Its shard holds the label, too; of a set that was indexed where it lies, only the digest tells."""
    assert verify(copy) == []
    change_label(copy)
    first, *_ = found = verify(copy)
    assert first == f"{copy}/index.arrow: {OTHER}"
    with running(file_server(copy)) as server:
        assert verify(server.url) == [line.replace(str(copy), server.url) for line in found]
    optional = ("index_sha256", "index_parts", "index_offsets")
    change_manifest(copy, lambda found: found.update(dict.fromkeys(optional)), fingerprint=False)
    assert verify(copy) == found[1:]


def test_digests_of_parts_that_are_others(copy: Path) -> None:
    """With those, a loader could not fetch the parts of a set at a URL."""
    change_manifest(copy, lambda found: found["index_parts"].reverse(), fingerprint=False)
    assert verify(copy) == [f"{copy}/index.arrow: {OTHER}"]


def test_a_sample_that_the_index_lacks(tmp_path: Path) -> None:
    """In a packed set that is a fault, whatever was rejected; `index` leaves out samples that lie in the shards."""
    train = tmp_path / "train"
    gpuload.pack([{"image": IMAGES[0]}], tmp_path, workers=1)
    shard = train / "shard-000000.tar"
    with tarfile.open(shard, "a") as archive:
        archive.addfile(tarfile.TarInfo("other.jpg"))
    now = {"bytes": shard.stat().st_size, "sha256": hashlib.sha256(shard.read_bytes()).hexdigest()}
    change_manifest(train, lambda found: found["shards"][0].update(now))
    change_manifest(train, lambda found: found["packing"].update(rejected=1))
    faults = [f"{train}/shard-000000.idx: does not describe {shard.name}"]
    faults.append(f"{shard}: its samples are not those of index.arrow")
    assert verify(train, 1) == faults
    change_manifest(train, lambda found: found["packing"].update(indexed="by hand"))
    assert verify(train, 1) == []
    change_manifest(train, lambda found: found["packing"].update(rejected=0))
    assert verify(train, 1) == faults
