"""Lance data sets, by the package pylance."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuload.sources.columns import Table
from gpuload.sources.files import Files, Findings
from gpuload.sources.source import Row
from gpuload.sources.stores.store import StoreSource

_BATCH_ROWS = 64


class LanceSource(StoreSource):
    """A folder that `lance.write_dataset` wrote, at its newest version. Bytes of images stay as they are stored, also
    where they are blobs."""

    form = "a Lance data set"
    needs = ("lance",)
    faults = (RuntimeError,)

    @classmethod
    def is_folder(cls, files: Files, name: str) -> bool:
        return {"_versions", "data"} <= set(files.folders(name))

    def table(self, path: Path, findings: Findings) -> Table:
        import lance

        with _panics_as_errors():
            dataset = lance.dataset(str(path))
            return Table.of_arrow(dataset.schema, _rows(dataset))


@contextmanager
def _panics_as_errors() -> Iterator[None]:
    """Turns a panic of Lance's Rust code, which PyO3 raises as no Exception, into a ValueError."""
    try:
        yield
    except BaseException as error:  # such a panic is no Exception
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"it is damaged: {error}") from None


def _rows(dataset: Any) -> Iterator[Row]:
    with _panics_as_errors():
        yield from _read_rows(dataset)


def _read_rows(dataset: Any) -> Iterator[Row]:
    blobs = [field.name for field in dataset.schema if _is_blob(field)]
    batches = dataset.to_batches(
        with_row_id=True, batch_size=_BATCH_ROWS, scan_in_order=True
    )
    for batch in batches:
        rows = batch.to_pylist()
        ids = [row.pop("_rowid") for row in rows]
        for name in blobs:
            if any(row[name] and row[name].get("blob_uri") for row in rows):
                raise ValueError(f"column {name!r} holds places of other files")
            for row, blob in zip(rows, dataset.take_blobs(name, ids=ids), strict=True):
                with blob:
                    row[name] = blob.readall()
        yield from rows


def _is_blob(field: Any) -> bool:
    """Whether values of a column lie apart, as blobs: of either version."""
    is_first = (field.metadata or {}).get(b"lance-encoding:blob") == b"true"
    return is_first or getattr(field.type, "extension_name", "").startswith(
        "lance.blob"
    )
