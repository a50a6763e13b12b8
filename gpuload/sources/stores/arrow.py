"""Tables of Arrow: Parquet, Arrow and Feather files, and what Hugging Face's `save_to_disk` writes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpuload.machine.untrusted import parse_json
from gpuload.sources.columns import Table, open_batches
from gpuload.sources.files import PACKED, Files, Findings
from gpuload.sources.stores.pieces import plain_name
from gpuload.sources.stores.store import StoreSource

_BATCH_ROWS = 64
_STATE = "state.json"
_INFO = "dataset_info.json"


class ArrowSource(StoreSource):
    """Files of Arrow's formats for files and streams, also as Feather and as the cache of Hugging Face."""

    form = "Arrow's IPC format"
    suffixes = (".arrow", ".feather")

    @classmethod
    def is_file(cls, files: Files, name: str) -> bool:
        if not super().is_file(files, name):
            return False
        beside = set(files.names(name.rpartition("/")[0]))
        return _STATE not in beside and not beside >= PACKED

    def table(self, path: Path, findings: Findings) -> Table:
        return _table([path])


class SavedDatasetSource(StoreSource):
    """A folder that `Dataset.save_to_disk` of Hugging Face wrote, or `DatasetDict.save_to_disk` with its splits."""

    form = "a data set of Hugging Face's save_to_disk, a folder with state.json and .arrow files"

    @classmethod
    def is_folder(cls, files: Files, name: str) -> bool:
        return {_STATE, _INFO} <= set(files.names(name))

    def table(self, path: Path, findings: Findings) -> Table:
        state = parse_json((path / _STATE).read_bytes())
        names = [plain_name(entry["filename"]) for entry in state["_data_files"]]
        if state.get("_indices_data_files"):
            raise ValueError("it selects rows of other files; save it again")
        return _table([path / name for name in names])


def _table(paths: list[Path]) -> Table:
    schema = open_batches(paths[0])[0] if paths else pa.schema([])
    return Table.of_arrow(schema, _rows(paths))


def _rows(paths: list[Path]) -> Iterator[dict[str, Any]]:
    for path in paths:
        _, batches = open_batches(path)
        for batch in batches:
            batch.validate(full=True)
            for start in range(0, len(batch), _BATCH_ROWS):
                yield from batch.slice(start, _BATCH_ROWS).to_pylist()
