"""Packs a source into shards: lists and plans the samples, has workers pack them, then describes each split."""

import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from gpuload.checks import FLAG, Rule, as_items, as_text, check, nearest
from gpuload.counted import progress_bar
from gpuload.disk import Manifest
from gpuload.disk.places import FILE_NAME
from gpuload.errors import ArgumentError, OutputError, RemoteError, SourceError
from gpuload.machine.fork_server import sigint_deferred
from gpuload.packing.following import with_mode
from gpuload.packing.image import KEPT, MISSING
from gpuload.packing.options import AUTO, PackOptions
from gpuload.packing.output import Output, cannot_write
from gpuload.packing.own_files import REJECTED_NAME
from gpuload.packing.plan import (
    OWN_SPLITS,
    RunState,
    check_packages,
    plan_run,
    read_manifests,
    recorded_settings,
    refuse_change,
    settings_of,
)
from gpuload.packing.run import PackingRun, PackProgress, PackReport, Watch
from gpuload.packing.shard import ShardJob, ShardReport, pack_shard
from gpuload.packing.workers import Workers, prepare_source, start_server
from gpuload.sources.beside import PicturesBeside
from gpuload.sources.columns import IterableSource
from gpuload.sources.listing import Rejection
from gpuload.sources.matched import are_patterns
from gpuload.sources.matched_files import open_matched
from gpuload.sources.registry import open_source
from gpuload.sources.source import Source
from gpuload.store.url import LOCATION, URL

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from gpuload.packing.settings import PackSettings


def pack(
    samples: Iterable[Any] | Source | str | Path | URL,
    out: str | Path | URL,
    *,
    from_: str | None = None,
    labels: str | Path | None = None,
    columns: Mapping[str, str | Sequence[str]] | None = None,
    no_labels: bool = False,
    source_options: Mapping[str, Any] | None = None,
    watch: Watch = lambda progress: None,
    progress: bool = True,
    own_splits: bool = True,
    pictures: Sequence[str] | Mapping[str, str | Path | URL] = (),
    **settings: "Unpack[PackSettings]",
) -> PackReport:
    """Packs samples given as dicts, one per sample, or the files at a path, as `python -m gpuload pack` does.

    It starts processes: call it under `if __name__ == "__main__"`.

    Args:
        samples: Dicts such as {"image": bytes, "label": "cat"}; `gpuload.Source` says what they may hold. They are
            iterated once, in order. Or a data set of Hugging Face, a table of pandas, Polars or Arrow, a dict with one
            of these for each split, a source; or a path or URL.
        out: An empty or new folder, or a URL such as "s3://bucket/set"; it gets train/, and val/ or test/ where there
            are such splits.
        from_: For a path, the name of its source, as `--from` on the command line; None: recognised.
        labels: For a path, a table or COCO's JSON.
        columns: For a path, the names of columns by what they hold, such as {"label": "species"}.
        no_labels: For a path, whether images are packed alone.
        source_options: For a path, other options of the source by name.
        watch: Called a few times a second with the progress.
        progress: Whether a bar is shown on stderr, where that is a terminal; elsewhere nothing is printed in any case.
        own_splits: Whether the splits that the samples themselves have ("split": "train", or a source's folders) are
            kept.
        pictures: Names of entries that are further pictures although their values do not tell, such as arrays of depth.
            Paths (`pathlib.Path`), PIL images and the bytes of images are such by themselves. For a path, a dict of
            folders with further pictures by their names, whose files are called as the images are; `samples` may be
            such a dict of folders, too, of which the first has the images. Or patterns of files below the path, the
            first of the images: {"left": "image_2/*_10.png", "right": "image_3/*_10.png"}, see docs/pictures.md.
        **settings: Those of `PackOptions`, by name: val=0.1, maxsize="1GB", encode="raw", size=64.

    Raises:
        SourceError: no image of a split can be read, or more than `max_rejected` of all images are rejected.
        OutputError: `out` is in use or cannot be written. If no shard was finished, nothing is left in it; else a run
            with `resume` continues.
        RemoteError: `out` is a URL that cannot be read or written; the same holds for finished shards.
        ArgumentError: a setting is unknown or invalid, a split would have no sample, or a run is resumed with different
            settings.
        MissingPackageError: a package that the settings ask for cannot be used.
    """
    started = time.monotonic()
    _check_setting_names(settings)
    progress = check("pack", "progress", progress, FLAG)
    own_splits = check("pack", "own_splits", own_splits, FLAG)
    # Its rules read more types than it holds.
    options = PackOptions(**cast("dict[str, Any]", settings))
    path_options = {
        "from_": from_,
        "labels": labels,
        "columns": columns,
        "no_labels": no_labels,
        "source_options": source_options,
    }
    source = _source_of(samples, out, pictures, path_options)
    out, options = _whole_set(out, options)
    source = source.with_options(
        own_splits=own_splits and source.options.own_splits,
        as_stored=options.keeps_arrays,
        conversion=options.conversion,
        follows=options.mode == AUTO,
    )
    check_packages(options)
    with progress_bar("packing", "images", progress) as bar, ExitStack() as stack:

        def show(now: PackProgress) -> None:
            bar(now.images, now.total_images, now.bytes)
            watch(now)

        output = _open_output(out, source, options, stack)
        if output.finished:
            return _report_finished(output, source, options, started)
        source.leave_out(output.final)
        run = _run(source, options, output, show)
        manifests = run.all_manifests()
    return run.report(manifests, output.notes, time.monotonic() - started)


def _check_setting_names(settings: Mapping[str, Any]) -> None:
    """Raises ArgumentError if one is not a setting of `PackOptions`."""
    names = {field.name for field in fields(PackOptions)}
    unknown = sorted(set(settings) - names)
    if not unknown:
        return
    similar = nearest(unknown[0], names)
    advice = f"Its settings are {', '.join(sorted(names))}"
    if similar:
        advice = f"Did you mean {similar}?"
    raise ArgumentError(f"pack() has no setting {unknown[0]!r}. {advice}")


def _source_of(
    samples: Any,
    out: str | Path | URL,
    pictures: Sequence[str] | Mapping[str, str | Path | URL],
    path_options: Mapping[str, Any],
) -> Source:
    """The source that the arguments of `pack` describe.

    Args:
        samples: As `pack` takes them.
        out: The folder or URL to pack to.
        pictures: As `pack` takes them.
        path_options: The arguments of `pack` that say what lies at a path.

    Raises:
        ArgumentError: there are such arguments, and the samples are no path; or no source fits.
    """
    image = "image"
    if _is_of_folders(samples):
        folders_of_pictures = dict(samples)
        image = next(iter(folders_of_pictures))
        samples = folders_of_pictures.pop(image)
        pictures = folders_of_pictures
    if isinstance(samples, str | Path | URL):
        if not pictures:
            return _open_path(samples, out, path_options)
        places = check("pack", "pictures", pictures, FOLDERS)
        if are_patterns(places):
            others = {
                f"pack({name}=…)": value
                for name, value in path_options.items()
                if name not in ("labels", "columns")
            }
            return open_matched(
                samples,
                places,
                others,
                labels=path_options["labels"],
                columns=_columns_by_role(path_options["columns"]),
            )
        source = _open_path(samples, out, path_options)
        return PicturesBeside(source, places, image)
    unused = [name for name, option in path_options.items() if option]
    if unused:
        raise ArgumentError(
            f"pack({unused[0]}=…) says what the files at a path are, and the samples are a {type(samples).__name__}. "
            "Leave it out"
        )
    if isinstance(samples, Source):
        return samples
    further = check("pack", "pictures", pictures, PICTURES)
    return IterableSource(samples, further)


def _open_path(
    path: str | Path | URL, out: str | Path | URL, path_options: Mapping[str, Any]
) -> Source:
    """The source at a path.

    Args:
        path_options: The arguments of `pack` that say what it is.
    """
    columns = _columns_by_role(path_options["columns"])
    where = check("pack", "out", out, LOCATION)
    return open_source(
        path,
        path_options["labels"],
        columns,
        path_options["from_"],
        path_options["no_labels"],
        out=None if isinstance(where, URL) else where,
        options=path_options["source_options"],
    )


def _columns_by_role(
    columns: Mapping[str, str | Sequence[str]] | None,
) -> dict[str, tuple[str, ...]]:
    """The names of columns by what they hold, each as a tuple."""
    return {
        role: (names,) if isinstance(names, str) else tuple(names)
        for role, names in (columns or {}).items()
    }


def _whole_set(
    out: str | Path | URL, options: PackOptions
) -> tuple[str | Path | URL, PackOptions]:
    """Where and how to pack. OUT may be a split of a set, such as shards/train, to which --append adds all samples.

    Raises:
        ArgumentError: splits are to be drawn of what goes into one.
    """
    where = check("pack", "out", out, LOCATION)
    if (
        not options.append
        or isinstance(where, URL)
        or not (Path(where) / FILE_NAME).exists()
    ):
        return out, options
    split = Path(where) if Path(where).name not in ("", "..") else Path(where).resolve()
    if options.val or options.splits:
        drawn = "--val" if options.val else "--splits"
        raise ArgumentError(
            f"{drawn} draws splits, but OUT {where} is one. Give the folder above it, {split.parent}"
        )
    return split.parent, replace(options, splits=((split.name, 1.0),))


def _open_output(
    out: str | Path | URL, source: Source, options: PackOptions, stack: ExitStack
) -> Output:
    """The output, entered: leaving `stack` leaves it, also where Ctrl-C comes meanwhile."""
    where = check("pack", "out", out, LOCATION)
    if isinstance(where, URL):
        from gpuload.packing.remote_output import RemoteOutput  # asyncio and obstore

        return stack.enter_context(RemoteOutput(where, options))

    def settings(mode: str) -> Mapping[str, Any]:
        return settings_of(source, with_mode(options, mode))

    with sigint_deferred():
        return stack.enter_context(Output(Path(where), options, settings=settings))


def _engine(
    source: Source, options: PackOptions
) -> Any:  # `Workers`, or its equivalent on a cluster
    need_main = type(source).__module__ == "__main__"
    if options.engine == "ray":
        if need_main:
            raise ArgumentError(
                f"--engine ray: {type(source).__name__} is a class of the script that runs, which other machines "
                "cannot import. Move it into a module that is installed on all of them"
            )
        from gpuload.packing.ray_engine import RayWorkers

        return RayWorkers(options.workers, options.address)
    start_server()  # it imports the workers' modules while this process lists the samples
    return Workers[ShardJob, ShardReport](options.worker_count, pack_shard, need_main)


def _run(
    source: Source, options: PackOptions, output: Output, watch: Watch
) -> "PackingRun":
    """Packs all samples and describes the splits. An error says whether what is finished is kept."""
    try:
        with (
            cannot_write("Free some space, or choose another folder", output.path),
            _engine(source, options) as engine,
        ):
            run = _begin(source, options, output, watch)
            run.pack_shards(engine)
            run.check_rejected()
            run.check_masks()
            run.describe_splits()
    except (OutputError, RemoteError, KeyboardInterrupt) as error:
        sentences = [str(error)] if str(error) else []
        if output.keep:
            sentences.append("finished shards are kept: continue with --resume")
        raise type(error)("; ".join(sentences)) from None
    return run


def _begin(
    source: Source, options: PackOptions, output: Output, watch: Watch
) -> "PackingRun":
    """The run that was interrupted, or a new one once it is planned."""
    state = RunState.read(output.scratch) if output.resumed else None
    output.keep = state is not None
    if state is None:
        output.clear_scratch()
    else:
        options = with_mode(options, state.mode)
        advice = "Give the same, or delete the folder and pack again"
        refuse_change(
            f"the interrupted run in {output.where}",
            state.settings,
            settings_of(source, options),
            advice,
        )
    try:
        source = prepare_source(_as_in_base(source, options, output), output.scratch)
        if options.engine == "ray":
            source.share(output.scratch)
        state = state or plan_run(source, options, output)
    except OSError as error:
        # What is written lies in the output.
        if error.filename is None or Path(os.fsdecode(error.filename)).is_relative_to(
            output.path
        ):
            raise
        raise SourceError(
            f"{error.filename}: cannot be read ({error.strerror}). Check the source"
        ) from None
    options = with_mode(options, state.mode)
    source = source.with_options(conversion=options.conversion, follows=False)
    return PackingRun(source, state, options, output, watch)


def _as_in_base(source: Source, options: PackOptions, output: Output) -> Source:
    """The source with what the set that is extended tells: its mode, by which loaded PIL images are refused, and the
    kinds of joined fields."""
    base = read_manifests(output)
    kinds = {
        field.name: field.kind
        for manifest in base.values()
        for file in manifest.joined
        for field in file.fields
    }
    for manifest in base.values():
        known = with_mode(options, manifest.pixels.mode)
        return source.with_options(conversion=known.conversion, kinds=kinds)
    return source


def _is_of_folders(samples: Any) -> TypeGuard[Mapping[str, str | Path | URL]]:
    """Whether samples are given by their folders, each of one picture, and not by splits or as dicts."""
    return (
        isinstance(samples, Mapping)
        and len(samples) > 0
        and all(isinstance(value, str | Path | URL) for value in samples.values())
    )


FOLDERS: Rule[dict[str, Any]] = Rule(
    "a dict of folders by the name of the picture, such as {'depth': 'depths'}",
    lambda value: {
        as_text(name): LOCATION.read(root) for name, root in dict(value).items()
    },
)
PICTURES: Rule[tuple[str, ...]] = Rule(
    "names of entries, such as ('depth', 'flow')",
    lambda value: tuple(map(as_text, as_items(value))),
)


def _report_finished(
    output: Output, source: Source, options: PackOptions, started: float
) -> PackReport:
    """The report of a run that is resumed although it was complete.

    Raises:
        ArgumentError: it was packed with other settings.
    """
    output.keep = True
    folders = output.packed_splits()
    manifests = {name: Manifest.read(folder) for name, folder in folders.items()}
    advice = "Pack it again with --overwrite, or choose another folder"
    if isinstance(output.where, URL):
        advice = "Pack to another URL"
    keeps_splits = source.options.own_splits and not (options.val or options.splits)
    kinds = Counter[str]()
    for manifest in manifests.values():
        before = manifest.packing
        now = recorded_settings(source, with_mode(options, manifest.pixels.mode))
        if keeps_splits and before.get("splits") == OWN_SPLITS:
            now["splits"] = OWN_SPLITS
        refuse_change(f"the complete set in {output.where}", before, now, advice)
        missing = before.get("without_image", 0)
        counts = {KEPT: before["kept"], MISSING: missing, **before["stored_anew"]}
        kinds += Counter(counts)
    return PackReport(
        output.where,
        manifests,
        kinds,
        rejected=tuple(_read_rejected(folders.values())),
        notes=("the set was complete already",),
        packed=0,
        elapsed_s=time.monotonic() - started,
    )


def _read_rejected(folders: Iterable[Path]) -> Iterator[Rejection]:
    """The rejected samples that these splits name."""
    for folder in folders:
        file = folder / REJECTED_NAME
        if file.exists():
            for line in file.read_bytes().splitlines():
                yield Rejection(**json.loads(line))
