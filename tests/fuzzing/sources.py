"""Sources of the packer: archives, tables, annotations and files that hold samples; everything up to the images."""

import io
import os
import shutil
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import numpy as np
from PIL import Image

from fuzzing.members import OfTars, mutate_npy
from fuzzing.pictures import encoded
from fuzzing.target import Target, scratch_folder
from gpuload.sources import Source, open_source
from gpuload.sources.listing import addresses

NAMES = [f"{name}.jpg" for name in ("a", "b", "sub/c")]
NESTED = (b"[" * 5000, b'{"a":' * 5000)


class SourceTarget(Target):
    """A file that is packed, or that says what is packed; the images are read and not decoded.

    file: its name. beside: whether it belongs to a folder of images, as `labels`.
    """

    file = ""
    beside = False

    def __init__(self) -> None:
        self.folder = scratch_folder()
        self.images = self.folder / "images"
        for name in NAMES:
            path = self.images / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encoded(Image.new("RGB", (9, 8)), "JPEG"))
        self.before = self._outside()

    def open(self, path: Path) -> Source:
        return open_source(self.images, path) if self.beside else open_source(path)

    def run(self, data: bytes) -> None:
        self.path = path = self.folder / self.file
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        scratch = self.folder / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)  # left by a process that died
        scratch.mkdir()
        try:
            self.use(self.open(path), scratch)
        finally:
            shutil.rmtree(scratch)
            assert self._outside() == self.before, "it wrote outside of its folder"

    def use(self, source: Source, scratch: Path) -> None:
        source.prepare(scratch)
        listing = source.list_samples()
        table = listing.samples.slice(0, 20)
        columns = [table.column(field.name).to_pylist() for field in listing.fields if field.kind in ("mask", "array")]
        for of_sample in zip(addresses(table).to_pylist(), *columns, strict=True):
            with suppress(OSError):  # which the packer reports for the sample
                for address in of_sample:
                    source.read(address)

    def _outside(self) -> list[str]:
        return sorted(name for name in os.listdir(self.folder.parent) if name in ("x", "passwd"))


class ZipTarget(SourceTarget):
    """`.zip` archives: the directory and its names, and each member."""

    name = "zip"
    file = "photos.zip"
    tokens = (
        *(signature.encode("latin-1") for signature in ("PK\3\4", "PK\1\2", "PK\5\6", "PK\6\6", "PK\6\7")),
        *(
            name.encode()
            for name in (
                "../x",
                "/etc/passwd",
                "C:\\x",
                "..\\x",
                "\0",
                "a/" * 100,
                "x" * 300,
            )
        ),
        b"\xff\xff\xff\xff",
        b"\1\0\x08\0",
    )

    def seeds(self) -> list[bytes]:
        jpg = encoded(Image.new("RGB", (9, 8)), "JPEG")
        inputs = []
        for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            for names in (
                ["ant/1.jpg", "bee/2.jpg"],
                ["top/ant/1.jpg", "top/ant/2.jpg", "top/bee/é.jpg"],
            ):
                file = io.BytesIO()
                with zipfile.ZipFile(file, "w", method) as archive:
                    for name in names:
                        archive.writestr(name, jpg)
                    archive.writestr("note.txt", b"text")
                inputs.append(file.getvalue())
        return inputs


class TarSourceTarget(OfTars, SourceTarget):
    """Tars that are packed again."""

    name = "tar-source"
    file = "shard.tar"


class NpySourceTarget(SourceTarget):
    """`.npy` files of images."""

    name = "npy-source"
    file = "images.npy"
    memory = 512 << 20

    def seeds(self) -> list[bytes]:
        inputs = []
        for array in (
            np.zeros((3, 5, 4, 3), np.uint8),
            np.zeros((3, 5, 4)),
            np.zeros((2, 3, 4, 5), np.float32),
        ):
            file = io.BytesIO()
            np.save(file, array)
            inputs.append(file.getvalue())
        return inputs

    def mutate(self, rng: Random, data: bytes, seeds: Sequence[bytes]) -> bytes:
        return mutate_npy(rng, data, seeds)


class NpzTarget(SourceTarget):
    """`.npz` archives of arrays."""

    name = "npz"
    file = "images.npz"
    tokens = ZipTarget.tokens
    memory = 512 << 20

    def seeds(self) -> list[bytes]:
        inputs = []
        for save in (np.savez, np.savez_compressed):
            file = io.BytesIO()
            save(
                file,
                images=np.zeros((3, 5, 4, 3), np.uint8),
                labels=np.arange(3),
                names=np.array(["a", "b", "c"]),
            )
            inputs.append(file.getvalue())
        return inputs
