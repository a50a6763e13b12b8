"""Prepares a source, in a process that may die where the source calls for one."""

from pathlib import Path

from gpuload.errors import SourceError
from gpuload.packing.run.workers import Workers
from gpuload.sources.listing import Source

_Task = tuple[Source, Path]


def prepare_source(source: Source, scratch: Path) -> Source:
    """The source after `Source.prepare`.

    HDF5, LMDB and Parquet are read by C libraries, which a damaged file may crash: LMDB's trusts every page. A crash
    would look like a fault of the packer, and could leave half a run behind.

    Raises:
        SourceError: as `Source.prepare`, or the process died.
    """
    if not source.needs_process:
        source.prepare(scratch)
        return source
    prepared: list[Source] = []

    def died(task: _Task, code: int) -> _Task:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise SourceError(
            f"{getattr(source, 'title', source.identity)}: reading it ended the process that read it ({how}). It is "
            "damaged, or memory ran out: copy or write it again"
        )

    with Workers[_Task, Source](1, _prepare, type(source).__module__ == "__main__") as workers:
        workers.run([(source, scratch)], lambda task, result: prepared.append(result), died, lambda tasks: None)
    return prepared[0]


def _prepare(task: _Task) -> Source:
    source, scratch = task
    source.prepare(scratch)
    return source
