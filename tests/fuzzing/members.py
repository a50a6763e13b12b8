"""Tars and `.npy` members."""

import io
import shutil
import struct
import tarfile
from collections.abc import Sequence
from functools import cache
from random import Random

import numpy as np
from PIL import Image

import gpuload
from fuzzing.mutate import mutate_bytes
from fuzzing.pictures import encoded
from fuzzing.target import Target, scratch_folder
from gpuload.disk.tar import Damage, group_members, read_members
from gpuload.fields.field import Field
from gpuload.fields.numbers import ArrayKind, array_fault
from gpuload.packing.index import index_shards


@cache
def small_tars() -> tuple[bytes, ...]:
    """Of each format that tar has, with long names, links and a sparse file's header."""
    jpg = encoded(Image.new("RGB", (9, 8)), "JPEG")
    inputs = []
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=form) as archive:
            for number in range(2):
                folder = "d" * (90 if number else 1)
                for extension, data in (
                    ("jpg", jpg),
                    ("cls", b"3"),
                    ("txt", b"text"),
                    ("json", b'{"a": 1}'),
                ):
                    info = tarfile.TarInfo(f"{folder}/{folder}{number}.{extension}")
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
            link = tarfile.TarInfo("link.jpg")
            link.type = tarfile.SYMTYPE
            link.linkname = "../../etc/passwd"
            archive.addfile(link)
        inputs.append(file.getvalue())
    return tuple(inputs)


_TAR_TOKENS = (
    *b"0 1 2 3 5 7 g x L K S V path=../x size=-1 GNU.sparse.map=0,9 GNU.sparse.size=9".split(),
    b"30 path=../../../../../tmp/x\n",
    b"20 size=99999999999\n",
    b"77777777777\0",
    b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xff" * 12,
    b"ustar\0" + b"00",
)


def mutate_tar(rng: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    """A tar with changed headers, most of them with the right checksum."""
    if rng.random() < 0.2:
        return mutate_bytes(rng, data, seeds, _TAR_TOKENS)
    blocks = bytearray(data)
    heads = [offset for offset in range(0, len(data), 512) if data[offset + 257 : offset + 262] == b"ustar"]
    for at in rng.sample(heads, min(len(heads), rng.choice((1, 1, 2)))):
        # What follows: the records of an extended header, or a member.
        if rng.random() < 0.3:
            block = mutate_bytes(rng, bytes(blocks[at + 512 : at + 1024]), seeds, _TAR_TOKENS)
            blocks[at + 512 : at + 1024] = block[:512].ljust(512, b"\0")
        head = mutate_bytes(rng, bytes(blocks[at : at + 512]), seeds, _TAR_TOKENS)[:512].ljust(512, b"\0")
        if rng.random() < 0.9:
            total = sum(head[:148]) + sum(head[156:]) + 8 * 32
            head = head[:148] + b"%06o\0 " % total + head[156:]
        blocks[at : at + 512] = head
    return bytes(blocks)


class OfTars(Target):
    """Small tars, whose headers change."""

    def seeds(self) -> list[bytes]:
        return list(small_tars())

    def mutate(self, rng: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
        return mutate_tar(rng, data, seeds)


class TarTarget(OfTars):
    """Shards that others packed: tar headers of any format, then what `index` reads of the members."""

    name = "tar"

    def __init__(self) -> None:
        self._folder = scratch_folder()

    def run(self, data: bytes) -> None:
        path = self._folder / "shard.tar"
        path.write_bytes(data)
        out = self._folder / "out"
        try:
            for _, members in group_members(read_members(path)):
                for member in members:
                    assert member.offset >= 0 and member.size >= 0 and member.offset + member.size <= len(data)
            index_shards([str(path)], out=out)
            gpuload.Dataset(out)
        finally:
            shutil.rmtree(out, ignore_errors=True)


class TarHeaderTarget(OfTars):
    """Tars damaged at any header: an error or all members; and no others where what is damaged is left out."""

    name = "tar-headers"

    def __init__(self) -> None:
        self._path = scratch_folder() / "shard.tar"
        self._whole = []
        for data in small_tars():
            self._path.write_bytes(data)
            self._whole.append([(m.name, data[m.offset : m.offset + m.size]) for m in read_members(self._path)])

    def mutate(self, rng: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
        heads = [offset for offset in range(0, len(data), 512) if data[offset + 257 : offset + 262] == b"ustar"]
        for head in rng.sample(heads, rng.choice((1, 1, 2))):
            block = bytearray(data[head : head + 512])
            how = rng.choice(("flip", "flip", "zero", "garbage", "cut", "join"))
            if how == "flip":
                block[rng.randrange(512)] ^= 1 << rng.randrange(8)
            elif how == "cut":
                return data[: head + rng.choice((0, rng.randrange(512)))]
            elif how == "join":
                return data + rng.choice(seeds)
            else:
                block = bytearray(512 if how == "zero" else rng.randbytes(512))
            data = data[:head] + bytes(block) + data[head + 512 :]
        return data

    def run(self, data: bytes) -> None:
        self._path.write_bytes(data)
        damage: list[Damage] = []
        shortened = [(m.name, data[m.offset : m.offset + m.size]) for m in read_members(self._path, damage=damage)]
        assert set(shortened) <= {member for members in self._whole for member in members}
        if not damage:
            assert shortened in self._whole
        list(read_members(self._path))
        assert not damage


def small_npys() -> list[bytes]:
    arrays = [np.arange(6, dtype=kind).reshape(2, 3) for kind in ("u1", "<f4", ">i8", "<c16")]
    arrays += [
        np.array(["a", "bc"]),
        np.zeros((0, 3)),
        np.float64(3),
        np.zeros(3, [("a", "<i4"), ("b", "u1")]),
    ]
    inputs = []
    for array in arrays:
        file = io.BytesIO()
        np.save(file, array)
        inputs.append(file.getvalue())
    file = io.BytesIO()
    np.save(file, np.array([{}, None], object), allow_pickle=True)
    return [*inputs, file.getvalue()]


_NPY_TOKENS = tuple(
    text.encode()
    for text in (
        "'|O'",
        "'O'",
        "'<U99999999'",
        "'V0'",
        "[('a', 'O')]",
        "('<i4', (99999, 99999, 99999))",
        "(99999999999, 3)",
        "(-1,)",
        "(-3, -2)",
        "(2.0, 3)",
        "(True, 3)",
        "(1,)*99",
        "1" * 5000,
        "(" * 300,
        "'M8[D]'",
        "{'a': 1}",
        "'descr'",
        "None",
        "\\x00",
        "__import__('os')",
    )
)


def mutate_npy(rng: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
    """An `.npy` with a changed header, the length of which is mostly right."""
    head = 10 + struct.unpack("<H", data[8:10])[0]
    changed = mutate_bytes(rng, data[10:head], seeds, _NPY_TOKENS)
    length = len(changed) if rng.random() < 0.8 else rng.randrange(1 << 16)
    if rng.random() < 0.2:
        return mutate_bytes(rng, data, seeds, _NPY_TOKENS)
    version = data[:8] if rng.random() < 0.8 else data[:6] + bytes([rng.randrange(5), 0])
    size = struct.pack("<H" if version[6] == 1 else "<I", length % (1 << 16))
    return version + size + changed + data[head:]


class NpyTarget(Target):
    """Headers of `.npy` members: arrays of shards, images in tars, and `.npy` sources."""

    name = "npy"
    tokens = _NPY_TOKENS
    refusals = (gpuload.GpuloadError, ValueError)
    memory = 256 << 20

    def seeds(self) -> list[bytes]:
        return small_npys()

    def mutate(self, rng: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
        return mutate_npy(rng, data, seeds)

    def run(self, data: bytes) -> None:
        field = Field("a", "array", "a.npy", dtype="|u1")
        shapes = ArrayKind().load(field, data)["a_shape"]
        assert all(type(side) is int and side >= 0 for side in shapes)
        guessed = ArrayKind().guess("a.npy", lambda: data)
        assert guessed is not None and not np.dtype(guessed.dtype).hasobject
        array_fault(data, len(data) % 80, tuple(shapes), "|u1")
