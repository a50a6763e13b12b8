"""Files in a plain tar, such as `tar -cf photos.tar photos` makes of a folder."""

from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from gpuload.disk.tar import Member, group_members, read_members
from gpuload.errors import ShardError, naming
from gpuload.sources.archive import Archive, plain_name
from gpuload.sources.files import (
    Findings,
    Ref,
    extension_of,
    is_image,
    lies_hidden,
    read_at,
)

_LOOKED_INTO = 1024  # samples, to tell a plain tar from a shard


def is_plain_tar(path: Path) -> bool:
    """Whether a tar is a folder of images rather than a shard of WebDataset: every image lies in a folder, and nothing
    beside it has its key. The first samples decide. Damage is left to the source that reads it.
    """
    count = 0
    with suppress(ShardError):
        for key, members in islice(group_members(read_members(path)), _LOOKED_INTO):
            images = [member for member in members if is_image(member.name)]
            if images and (len(members) > 1 or "/" not in plain_name(key)):
                return False
            count += len(images)
    return count > 0


class TarArchive(Archive):
    """A plain tar. Addresses are the places of the members in it, so that workers need not read its headers."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._others = list[tuple[str, str]]()  # name and kind of what is no file

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_others": []}

    @cached_property
    def _members(self) -> dict[str, Member]:
        self._others.clear()
        with naming({self.path: self}):
            every = {
                plain_name(member.name): member
                for member in read_members(self.path, self._others)
            }
        return {name: member for name, member in every.items() if not lies_hidden(name)}

    def find(self, name: str) -> Ref:
        member: Member = self.member(name)
        return Ref(name, member.size, f"{member.offset}:{member.size}")

    def read(self, address: str) -> bytes:
        offset, size = map(int, address.split(":"))
        return read_at(self.path, offset, size)

    def walk(self, extensions: Collection[str], findings: Findings) -> Iterator[Ref]:
        yield from super().walk(extensions, findings)
        for name, kind in self._others:
            if extension_of(name) in extensions:
                inside = plain_name(name).removeprefix(self.around)
                findings.reject(inside, f"is a {kind}, not a regular file")
