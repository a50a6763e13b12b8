"""Parquet files that hold the images themselves, as Hugging Face writes data sets."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuload.errors import SourceError
from gpuload.sources.columns import USUAL
from gpuload.sources.samples import FileSource
from gpuload.sources.spool import Sample

_BATCH_ROWS = 64


class ParquetSource(FileSource):
    """One file, or all `*.parquet` of a folder in sorted order.

    The image is a struct of `bytes` and `path`, or bytes. Class names come from the schema's metadata. Other columns
    are fields by their type. columns: as in a table, where names are not the usual.
    """

    def _paths(self) -> list[Path]:
        return sorted(self.path.glob("*.parquet")) if self.path.is_dir() else [self.path]

    def class_names(self, column: str) -> tuple[str, ...] | None:
        from pyarrow import parquet

        schema = parquet.read_schema(self._paths()[0])
        about = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = about.get("info", {}).get("features", {})
        wanted = next((name for name, role in self._roles(schema.names).items() if role == column), column)
        feature = features.get(wanted, {})
        feature = feature.get("feature", feature)
        names = feature.get("names") if isinstance(feature, dict) else None
        return tuple(names) if names else None

    def _roles(self, names: list[str]) -> dict[str, str]:
        """What each column holds."""
        roles = {column: role for role, columns in self.columns.items() for column in columns}
        for role in ("image", "label", "caption", "labels", "boxes", "mask"):
            if role in self.columns:
                continue
            for usual in USUAL[role]:
                if usual in names and usual not in roles and role not in roles.values():
                    roles[usual] = role
        return roles

    def samples(self) -> Iterator[Sample]:
        import pyarrow as pa
        from pyarrow import parquet

        for path in self._paths():
            try:
                file = parquet.ParquetFile(path)
            except (OSError, pa.ArrowInvalid) as error:
                raise SourceError(f"{path}: cannot be read as Parquet ({str(error).splitlines()[0]})") from None
            with file:
                roles = self._roles(file.schema_arrow.names)
                for batch in file.iter_batches(_BATCH_ROWS):
                    for row in batch.to_pylist():
                        yield self._sample(path, row, roles)

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
        if "image" not in sample:
            raise SourceError(f"{path}: its columns are {sorted(row)}; which holds the image? Give --column image=NAME")
        return sample
