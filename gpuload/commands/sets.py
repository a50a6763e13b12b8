"""Commands for packed sets: `index`, `fetch`, `verify`, `info`, `show`, `report`; and for a machine: `doctor`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.filesize import decimal

from gpuload.checks import COUNT, POSITIVE, check_option, number, whole
from gpuload.commands import DONE, FAULTY, REJECTED
from gpuload.commands.options import given, place
from gpuload.commands.terminal import (
    OutputFile,
    listed,
    save_picture,
    say,
    say_json,
    say_table,
)
from gpuload.counted import counted, progress_bar
from gpuload.disk.places import FILE_NAME, packed_folders, packed_locations
from gpuload.errors import ArgumentError, OutputError
from gpuload.machine.installed import require
from gpuload.store.url import as_location, scheme_of

_VALUE = 200  # characters of a value that are shown


@dataclass(frozen=True)
class IndexShards:
    """Indexes WebDataset shards in place, local or at URLs such as hf://datasets/OWNER/NAME/*.tar, without
    repacking: members jpg/jpeg/png, cls, txt, json, and further pictures. With --points, also packed sets."""

    epilog = (
        "Exit codes: 0 indexed; 3 indexed, but some samples were skipped (see rejected.jsonl); "
        "2 nothing done (reason on stderr); 130 stopped by Ctrl-C."
    )

    shards: list[str] = place(
        "tars, or their URLs; braces ({000..127}) and wildcards are expanded",
        "SHARDS",
        nargs="+",
    )
    out: str | None = given(
        None,
        "folder for the index (default: next to the shards; required for URLs)",
        "DIR",
    )
    classes: str | None = given(None, "text file with one class name per line", "FILE")
    missing: Literal["fail", "skip"] = given(
        "fail",
        "if samples lack a .cls, .txt or .json that others have, or a number in a list of pictures: fail, or skip "
        "these samples; with --join, if they lack a row: fail, or give them empty values (%(default)s)",
        "HOW",
    )
    overwrite: bool = given(False, "replace an existing index")
    points: bool = given(
        False,
        "add seek points of large images, for cheap crops; SHARDS may be one packed folder, or a folder of several",
    )
    join: str | None = given(
        None,
        "add the columns of a table (Parquet, Arrow, CSV, JSONL) to one packed folder, by the keys of its samples or "
        "the names of their files; shards are not touched",
        "TABLE",
    )
    column: tuple[str, ...] = given(
        (),
        "with --join: what columns hold: key=NAME, label=NAME",
        "ROLE=NAME",
        action="append",
    )
    replace: bool = given(
        False, "with --join: replace fields of the set with the names of columns"
    )
    duplicates: Literal["fail", "first"] = given(
        "fail",
        "with --join: if several rows have one key: fail, or take the first (%(default)s)",
        "HOW",
    )

    def run(self) -> int:
        if self.join is not None:
            return self._join(self.join)
        if self.points and len(self.shards) == 1:
            folders = _local_sets(self.shards[0])
            for folder in folders:
                self._add_points(folder)
            if folders:
                return DONE
        return self._index()

    def _index(self) -> int:
        from gpuload.packing.index import index_shards
        from gpuload.packing.own_files import REJECTED_NAME
        from gpuload.sources.listing import named_splits

        with progress_bar("indexing", "shards") as bar:
            folder, manifest = index_shards(
                self.shards,
                self.out,
                self.classes,
                self.overwrite,
                bar,
                missing=self.missing,
            )
        fields = [f"{field.name} (.{field.member})" for field in manifest.fields]
        say(f"{folder}: {size_of(manifest)}; fields: {', '.join(fields)}")
        rejected = manifest.packing.get("rejected", 0)
        if rejected:
            say(f"left out: {counted(rejected, 'sample')}")
            say(f"  named in {folder / REJECTED_NAME}")
        passed_over = manifest.packing.get("passed_over")
        if passed_over:
            say(
                f"note: members that are not indexed: {_times(passed_over)}; `python -m gpuload pack --from tar` takes "
                "more kinds"
            )
        without_end = manifest.packing.get("without_end", 0)
        if without_end:
            say(
                f"note: {counted(without_end, 'JPEG')} cut short, without an end marker; `python -m gpuload verify` "
                "names the images that do not decode, and `pack` leaves them out"
            )
        for note in manifest.packing.get("notes", ()):
            say(f"note: {note}")
        splits = named_splits([shard.name for shard in manifest.shards])
        if len(splits) > 1:
            say(
                f"note: shards of {' and '.join(splits)} are indexed as one set; index each with --out"
            )
        if self.points:
            self._add_points(folder)
        return REJECTED if rejected else DONE

    def _join(self, table: str) -> int:
        from gpuload.packing.join import join

        if len(self.shards) != 1 or self.points or self.out or self.classes:
            raise ArgumentError(
                "--join adds columns to one packed folder, such as shards/train. Give it alone"
            )
        columns = dict(entry.partition("=")[::2] for entry in self.column)
        report = join(
            self.shards[0],
            table,
            columns={role: (name,) for role, name in columns.items()},
            replace_fields=self.replace,
            missing=self.missing,
            duplicates=self.duplicates,
        )
        fields = ", ".join(f"{field.name} ({field.kind})" for field in report.fields)
        say(f"{self.shards[0]}: {size_of(report.manifest)}; joined: {fields}")
        counts = {
            "samples without a row, which got empty values": report.missing,
            "rows that no sample has": report.unused,
            "rows whose key another one before had": report.duplicates,
        }
        for subject, count in counts.items():
            if count:
                say(f"note: {count:,} {subject}")
        return DONE

    def _add_points(self, folder: Path) -> int:
        from gpuload.packing.add_points import add_points

        with progress_bar("reading JPEGs", "shards") as bar:
            manifest, images = add_points(folder, bar)
        say(
            f"{folder}: {images:,} of {counted(manifest.samples, 'image')} with seek points"
        )
        return DONE


def _local_sets(text: str) -> list[Path]:
    """The packed folders that a path means; none where it means shards."""
    folders = [] if scheme_of(text) else packed_folders(Path(text))
    return [folder for folder in folders if (folder / FILE_NAME).exists()]


@dataclass(frozen=True)
class Fetch:
    """Copies a packed set from a URL into a local folder and checks its SHA-256s. Run it again after an interruption:
    it checks and keeps existing files."""

    epilog = "Exit codes: 0 the copy is complete; 2 it is not (reason on stderr); 130 stopped by Ctrl-C."

    url: str = place("of a packed folder, such as s3://bucket/set/train", "URL")
    folder: str = place("empty or new folder, or one with an interrupted copy", "DIR")

    def run(self) -> int:
        from gpuload.disk.fetch import fetch

        with progress_bar("fetching", "shards") as bar:
            manifest = fetch(self.url, self.folder, bar)
        say(f"{self.folder}: {size_of(manifest)}")
        return DONE


@dataclass(frozen=True)
class Verify:
    """Rereads everything: sizes, SHA-256, index against tar, and every image. Images are decoded in subprocesses, so an
    image that crashes its decoder is listed, too."""

    epilog = "Exit codes: 0 no faults; 1 faults, one per line on stdout; 2 not a packed folder."

    folder: str = place("a packed folder or its URL, or a folder of several", "DIR")
    workers: int | None = given(
        None, "worker processes (default: one per core)", "N", type=int
    )
    quarantine: str | None = given(
        None,
        "write the faulty samples to FILE, for gpuload.Dataset(exclude=FILE)",
        "FILE",
    )

    def run(self) -> int:
        from gpuload.packing.verify import verify

        if self.quarantine is not None:
            OutputFile(Path(self.quarantine), "--quarantine", b'{"key": ')
        with progress_bar("verifying", "shards") as bar:
            faults = verify(self.folder, self.workers, bar, quarantine=self.quarantine)
        say(*map(str, faults))
        say(
            f"{self.folder}: {counted(len(faults), 'fault')}"
            if faults
            else f"{self.folder}: all is well"
        )
        return FAULTY if faults else DONE


def _range_of_values(percentiles: Mapping[str, Sequence[float]]) -> str:
    """The smallest and the largest value, with and without 2 % at each end, in words."""
    low = min(percentiles["0"])
    high = max(percentiles["100"])
    dark = min(percentiles["2"])
    bright = max(percentiles["98"])
    return f"{low:g} to {high:g}, but for 2 % at each end {dark:g} to {bright:g}, over all channels"


@dataclass(frozen=True)
class Info:
    """Describes a packed folder, or each of several, and how well a window of shards mixes it."""

    epilog = "Exit codes: 0 done; 2 the folder cannot be read."

    folder: str = place(
        "a packed folder, such as shards/train, or its URL, or a folder of several",
        "DIR",
    )
    window: int = given(8, "shards mixed at a time (%(default)s)", "N", rule=COUNT)
    lanes: int = given(1, "lanes of the order (%(default)s)", "N")
    batch_size: int = given(256, "samples in a batch (%(default)s)", "N", rule=COUNT)

    def run(self) -> int:
        from gpuload.disk.dataset import Dataset

        first, *others = packed_locations(self.folder)
        self._describe(Dataset(first))
        for location in others:
            say("")
            self._describe(Dataset(location))
        return DONE

    def _describe(self, dataset: Any) -> None:
        from gpuload.disk.index import class_numbers, notes_on_numbers
        from gpuload.order.epoch import measure_mixing, smallest_good_window

        check_option("--lanes", self.lanes, whole(1, max(1, len(dataset.shard_paths))))
        mixing = measure_mixing(dataset, self.window, self.batch_size, lanes=self.lanes)
        numbers = class_numbers(
            dataset.manifest.all_fields, (rows for _, rows in dataset.all_rows())
        )
        say_table(
            [*self._contents(dataset, numbers), *self._order(dataset, mixing)], left=2
        )
        notes = notes_on_numbers(
            numbers, dataset.manifest.all_fields, dataset.manifest.classes
        )
        say(*(f"Note: {note}." for note in notes))
        if mixing.is_poor:
            window = smallest_good_window(dataset, self.batch_size)
            remedy = (
                f"use gpuload.Shuffle(window={window}), or pack again"
                if window
                else "pack again"
            )
            say(
                f"Warning: the shards are sorted. To fix this, {remedy} without --no-shuffle."
            )

    def _contents(
        self, dataset: Any, numbers: dict[str, set[int]]
    ) -> list[tuple[str, str]]:
        """Rows on what a set holds.

        Args:
            numbers: The class numbers of fields.
        """
        manifest = dataset.manifest
        ranges = {
            name: f" from {min(classes):,} to {max(classes):,}"
            for name, classes in numbers.items()
            if classes
        }
        fields = [
            f"{field.name} ({field.kind}{ranges.get(field.name, '')})"
            for field in manifest.all_fields
        ]
        rows = [
            ("folder", str(dataset.folder)),
            (
                "samples",
                f"{len(dataset):,} in {counted(len(manifest.shards), 'shard')}, {decimal(manifest.bytes)}",
            ),
            ("fields", ", ".join(fields)),
            ("mode", f"{manifest.pixels.mode}: {manifest.pixels.in_words}"),
            (
                "largest",
                f"{manifest.width} × {manifest.height} pixels, {decimal(manifest.image_bytes)}",
            ),
            ("fingerprint", dataset.fingerprint),
        ]
        if dataset.classes is not None:
            rows.append(("classes", listed(dataset.classes)))
        if manifest.mean is not None and manifest.std is not None:
            form = ".3f" if manifest.pixels.dtype == "uint8" else ".4g"
            mean = ", ".join(f"{level:{form}}" for level in manifest.mean)
            std = ", ".join(f"{level:{form}}" for level in manifest.std)
            images = counted(manifest.pixels_from, "image")
            rows.append(("mean, std", f"({mean}), ({std}), from {images}"))
        if manifest.percentiles:
            rows.append(("values", _range_of_values(manifest.percentiles)))
        return rows

    def _order(self, dataset: Any, mixing: Any) -> list[tuple[str, str]]:
        """Rows on how epochs are mixed."""
        shards = len(dataset.shard_paths)
        batches, left_out = divmod(len(dataset), self.batch_size)
        each = f", in each of {self.lanes} lanes" if self.lanes > 1 else ""
        rows = [
            (
                "window",
                f"{min(mixing.window, shards)} of {counted(shards, 'shard')} mixed at a time{each}",
            )
        ]
        if left_out:
            each = f"shuffled: {counted(batches, 'batch', 'batches')} of {self.batch_size:,} on one rank"
            rows.append(
                (
                    "epoch",
                    f"{each}, {counted(left_out, 'sample')} left out (drop_last=False keeps them)",
                )
            )
        rows.append(
            (
                "distance",
                f"{mixing.distance:.3f} from a full shuffle (0: fully mixed, 1: not at all)",
            )
        )
        if mixing.classes is not None:
            full = f"{mixing.expected_classes:.1f} by a full shuffle"
            rows.append(
                (
                    "classes",
                    f"{mixing.classes:.1f} in a batch of {mixing.batch_size}, {full}",
                )
            )
        return rows


def _times(counts: Mapping[str, int]) -> str:
    """How often each comes, such as "3 × .xml, 1 × .bin"."""
    return ", ".join(f"{count:,} × {name}" for name, count in counts.items())


def size_of(manifest: Any) -> str:
    """Such as "97 samples in 10 shards, 123 kB"."""
    samples = counted(manifest.samples, "sample")
    shards = counted(len(manifest.shards), "shard")
    return f"{samples} in {shards}, {decimal(manifest.bytes)}"


@dataclass(frozen=True)
class Show:
    """Prints the fields of samples and writes a PNG of each, with its boxes, masks and keypoints."""

    epilog = "Exit codes: 0; 2 where there is no such sample, or it cannot be decoded."

    folder: str = place(
        "a packed folder, such as shards/train, or its URL, or a folder of several",
        "SHARDS",
    )
    keys: list[str] = place(
        "a key, the name of the packed file, or a number from 0", "KEY", nargs="+"
    )
    output: str = given(
        ".", "folder for the PNGs (the current one)", "DIR", "-o", "--output"
    )

    def run(self) -> int:
        from gpuload.disk.dataset import Dataset
        from gpuload.pictures import STRETCH

        out = Path(self.output)
        if not out.is_dir():
            raise OutputError(f"{out}: no such folder. Make it, or give another -o")
        datasets = list(map(Dataset, packed_locations(self.folder)))
        stems = set[str]()
        for key in self.keys:
            dataset, sample = _find(datasets, key)
            say(
                f"{sample['key']}:", *(f"  {line}" for line in _values(dataset, sample))
            )
            if dataset.manifest.pixels.dtype != "uint8":
                say(f"  shown: {STRETCH}")
            stem = re.sub(r"[^\w.-]+", "_", sample["key"])[:100].lstrip(".") or "sample"
            if stem in stems:
                stem = f"{stem}-{sample['index']}"
            stems.add(stem)
            picture = _sheet_of(dataset, sample)
            save_picture(picture, out / f"{stem}.png", "gpuload show", "-o")
        return DONE


def _sheet_of(dataset: Any, sample: dict[str, Any]) -> Any:
    """The image with what is drawn on it, beside the further pictures of the sample."""
    from gpuload.fields.picture_lists import PicturesKind
    from gpuload.fields.pictures import PictureKind
    from gpuload.fields.registry import draw_fields
    from gpuload.pictures import Cell, as_picture, draw_sheet, for_eyes

    fields = dataset.fields.values()
    name = dataset.manifest.image.name
    cells = list[Cell]()
    if sample[name] is not None:
        image = draw_fields(for_eyes(sample[name]), fields, lambda _: sample)
        cells.append(Cell(image, name))
    for field in fields:
        value = sample[field.name]
        if field.kind == PictureKind.name:
            cells.append(Cell(as_picture(value), field.name))
        elif field.kind == PicturesKind.name:
            for number, picture in enumerate(value):
                cells.append(Cell(as_picture(picture), f"{field.name} {number}"))
    return cells[0].picture if len(cells) == 1 else draw_sheet(cells)


def _find(datasets: Sequence[Any], key: str) -> tuple[Any, dict[str, Any]]:
    """The sample with this key or source, and its data set; else that of this number, of a single data set.

    Raises:
        ArgumentError: there is none, or there are several.
    """
    from gpuload.disk.finding import find_named, samples_in_words

    columns: tuple[Literal["key", "source"], ...] = ("key", "source")
    for column in columns:
        named = [(dataset, find_named(dataset, key, column)) for dataset in datasets]
        having = [(dataset, numbers) for dataset, numbers in named if len(numbers)]
        if len(having) > 1:
            places = ", ".join(
                f"{dataset.folder} {samples_in_words(dataset, numbers)}"
                for dataset, numbers in having
            )
            raise ArgumentError(
                f"{key}: samples of several sets have this {column}: {places}. Give one of the sets"
            )
        if having:
            return having[0][0], dict(having[0][0][key])
    first = datasets[0]
    is_number = re.fullmatch(r"-?[0-9]{1,18}", key) is not None
    if len(datasets) > 1:
        folders = " and ".join(str(dataset.folder) for dataset in datasets)
        if is_number:
            raise ArgumentError(
                f"{key}: is a number, which counts within one set. Give it with one of {folders}"
            )
        raise ArgumentError(
            f"{key}: is no key or source of a sample in {folders}. Give the name of a packed file"
        )
    return first, dict(first[int(key) if is_number else key])


def _values(dataset: Any, sample: dict[str, Any]) -> list[str]:
    """The fields, one a line."""
    from gpuload.fields.registry import kind_of

    texts = {name: str(sample[name]) for name in ("index", "source")}
    for field in dataset.fields.values():
        kind = kind_of(field)
        texts |= kind.texts(
            field, sample, kind.class_names(field, dataset.manifest.classes)
        )
    return [
        f"{name}: {text[:_VALUE]}{'…' if len(text) > _VALUE else ''}"
        for name, text in texts.items()
    ]


@dataclass(frozen=True)
class WriteReport:
    """Writes an HTML page about packed sets: classes, sizes, odd images, duplicates within and between splits, rejected
    images, batches as training sees them, and mixing. It opens from disk, without a server or a network. The same facts
    are written as JSON."""

    epilog = "Exit codes: 0 written; 2 nothing done (reason on stderr); 130 stopped by Ctrl-C."

    folders: list[str] = place(
        "packed folders, their URLs, or folders of several", "SHARDS", nargs="+"
    )
    output: str = given(
        "report.html", "the page (%(default)s)", "FILE", "-o", "--output"
    )
    json: str | None = given(
        None, "the facts (default: next to the page, as .json)", "FILE"
    )
    title: str | None = given(
        None, "title of the page (default: the arguments)", "TEXT"
    )
    images: int = given(
        100_000, "maximum images to decode (%(default)s)", "N", rule=COUNT
    )
    size: int = given(
        224, "side of the training crops (%(default)s)", "PX", rule=whole(1, 4096)
    )

    def run(self) -> int:
        require("report", "jinja2")
        from gpuload.augment import Augment
        from gpuload.report.build import (
            FACTS_MARK,
            PAGE_MARK,
            build,
            facts_as_json,
            render,
        )
        from gpuload.report.samples import open_splits

        page = OutputFile(Path(self.output), "-o", PAGE_MARK)
        facts_output = OutputFile(
            Path(self.json or page.path.with_suffix(".json")), "--json", FACTS_MARK
        )
        if facts_output.path.absolute() == page.path.absolute():
            raise OutputError(
                f"{page.path}: is named for the page and for the facts. Give two names"
            )
        splits = open_splits(self.folders)
        with progress_bar("looking at images", "images") as bar:
            facts, thumbnails = build(splits, self.images, Augment(self.size), bar)
        text = render(facts, thumbnails, self.title or ", ".join(self.folders))
        facts_output.write(facts_as_json(facts).encode(errors="surrogateescape"))
        page.write(text.encode(errors="surrogateescape"))
        for finding in facts["findings"]:
            if finding["level"] != "good":
                say(
                    f"{'problem' if finding['level'] == 'bad' else 'look'}: {finding['text']}"
                )
        seen = counted(facts["looked_at"]["images"], "image")
        say(
            f"{page.path}: {len(text) / 1e6:.1f} MB, looked at {seen}; the facts are in {facts_output.path}"
        )
        return DONE


@dataclass(frozen=True)
class Doctor:
    """Checks driver, packages, cores and disk, and loads a few images with each decoder on each device. With a
    packed folder, it measures reading and decoding, and names the bottleneck. It changes nothing, but asks the
    kernel to drop up to 256 MB of the shards from its page cache. Of a set at a URL, it downloads some shards into the
    cache."""

    epilog = "Exit codes: 0 nothing needs attention; 1 something does or is broken; 2 the set cannot be opened."

    folder: str | None = given(
        None,
        "a packed folder, its URL, or one of several",
        "SHARDS",
        "folder",
        nargs="?",
    )
    seconds: float = given(
        3.0, "seconds to measure each decoder (%(default)g)", "S",
        rule=number(POSITIVE, 3600, "seconds, above 0 and up to 3600"),
    )  # fmt: skip
    json: bool = given(False, "print all findings as one JSON object")

    def run(self) -> int:
        from gpuload.doctor import conclude
        from gpuload.doctor.checks import examine

        where = None if self.folder is None else as_location(self.folder)
        findings = []
        for finding in examine(
            Path(where) if isinstance(where, str) else where, self.seconds
        ):
            findings.append(finding)
            if not self.json:
                grade = "" if finding.grade == "ok" else finding.grade
                rows = [(f"{grade:<9}", f"{finding.name:<14}", finding.said)]
                if finding.remedy:
                    rows.append((f"{'':<9}", f"{'':<14}", f"→ {finding.remedy}"))
                say_table(rows, left=3)
        verdict = conclude(findings)
        is_well = all(finding.is_well for finding in findings)
        if self.json:
            say_json(
                {
                    "well": is_well,
                    "verdict": verdict,
                    "findings": [asdict(finding) for finding in findings],
                }
            )
        else:
            say("", *verdict)
        return DONE if is_well else FAULTY
