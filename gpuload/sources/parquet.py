"""Parquet files that hold the images themselves, as Hugging Face writes data sets."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuload.counted import counted
from gpuload.errors import GpuloadError, SourceError, some_of
from gpuload.headers.json_text import parse_json
from gpuload.sources.columns import USUAL, find_column
from gpuload.sources.copies import fits
from gpuload.sources.files import Files, Folder
from gpuload.sources.files.base import ReadAhead
from gpuload.sources.samples import FileSource
from gpuload.sources.splits import SPLIT, files_of_splits, splits_of_files
from gpuload.sources.spool import Sample

_BATCH_ROWS = 64


class ParquetSource(FileSource):
    """One file, or all `*.parquet` of a folder in sorted order: those in it, or else in its folder `data`, in folders
    that are called as splits are (see `splits`), or in such folders of `data`.

    Files of several splits, by their names or those of their folders, are the splits of the set, and so is a column of
    these. The image is a struct of `bytes` and `path`, or bytes. Class names come from the schema's metadata. Other
    columns are fields by their type. columns: as in a table, where names are not the usual.
    """

    suffixes = (".parquet",)

    @staticmethod
    def fits(files: Files) -> bool:
        """Whether a container is a folder of such files."""
        if isinstance(files, ReadAhead):
            return fits(files.all_names(), (".parquet",))
        return isinstance(files, Folder) and bool(files_of_splits(files.path, "*.parquet"))

    def _paths(self) -> list[Path]:
        """The files, in sorted order.

        Raises:
            SourceError: there is none.
        """
        found = files_of_splits(self.path, "*.parquet") if self.path.is_dir() else [self.path]
        if not found:
            raise SourceError(f"{self.path}: holds no .parquet. Give a file, or the folder that holds some")
        return found

    def _splits(self, paths: list[Path]) -> list[str]:
        """The split of each file; [] where the files are of one."""
        if not self.own_splits or not self.path.is_dir():
            return []
        found = splits_of_files(self.title, [path.relative_to(self.path).as_posix() for path in paths])
        return [] if set(found) <= {"train"} else found

    def origin_of_splits(self) -> str:
        return "by the names of its files or their folders" if self._splits(self._paths()) else ""

    def class_names(self, column: str) -> tuple[str, ...] | None:
        from pyarrow import parquet

        schema = parquet.read_schema(self._paths()[0])
        wanted = next((name for name, role in self._roles(schema.names).items() if role == column), column)
        try:
            feature = parse_json(schema.metadata[b"huggingface"])["info"]["features"][wanted]
            names = feature.get("feature", feature)["names"]
        except (ValueError, LookupError, TypeError, AttributeError):  # no metadata, or another's
            return None
        return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else None

    def _roles(self, names: list[str]) -> dict[str, str]:
        """What each column holds.

        Raises:
            SourceError: one that the user named is not there, or several are named for what takes one.
        """
        for role in self.columns:
            if len(find_column(self.title, names, role, self.columns)) > 1 and role != "target":
                raise SourceError(
                    f"{self.title}: --column {role}={','.join(self.columns[role])} names several columns, but takes "
                    "one. Several are for target="
                )
        roles = {column: role for role, columns in self.columns.items() for column in columns}
        for role in ("image", "label", "caption", "labels", "boxes", "mask"):
            if role in self.columns:
                continue
            for usual in USUAL[role]:
                if usual in names and usual not in roles and role not in roles.values():
                    roles[usual] = role
        return roles

    def samples(self) -> Iterator[Sample]:
        from pyarrow import parquet

        paths = self._paths()
        splits = self._splits(paths)
        places = sorted(
            {path.parent.relative_to(self.path).as_posix() for path in paths} if self.path.is_dir() else "."
        )
        self._notes = [f"packed: {counted(len(paths), 'file')} in {some_of(places)}"] if places != ["."] else []
        for number, path in enumerate(paths):
            try:
                file = parquet.ParquetFile(path)
                with file:
                    roles = self._roles(file.schema_arrow.names)
                    for batch in file.iter_batches(_BATCH_ROWS):
                        for row in batch.to_pylist():
                            sample = self._sample(path, row, roles)
                            yield {**sample, SPLIT: splits[number]} if splits else sample
            except GpuloadError:
                raise
            except Exception as error:  # Arrow's, and of texts that are not UTF-8 and times that Python does not have
                reason = " ".join(str(error).splitlines()[:1])
                raise SourceError(
                    f"{path}: cannot be read as Parquet ({type(error).__name__}: {reason}). Copy or write it again"
                ) from None

    def _sample(self, path: Path, row: dict[str, Any], roles: dict[str, str]) -> Sample:
        sample: dict[str, Any] = {}
        for column, value in row.items():
            role = roles.get(column, column)
            if role == "image" or role == "mask":
                if isinstance(value, dict) and value.get("path") and role == "image":
                    sample["name"] = str(value["path"])
                value = value.get("bytes") if isinstance(value, dict) else value
                if not isinstance(value, bytes):
                    raise SourceError(
                        f"{path}: column {column!r} holds no image bytes. If it holds paths, give --labels {path.name} "
                        "and the folder of the images as SOURCE"
                    )
            sample[role] = value
        if several := [row[column] for column in self.columns.get("target", ())][1:]:
            sample["target"] = [row[self.columns["target"][0]], *several]
        if "image" not in sample:
            raise SourceError(f"{path}: its columns are {sorted(row)}; which holds the image? Give --column image=NAME")
        return sample
