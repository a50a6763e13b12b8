"""`python -m gpuload report SHARDS…`: a page that shows what packed sets hold, and the same facts as JSON."""

from dataclasses import dataclass
from pathlib import Path

from gpuload.checks import COUNT, whole
from gpuload.commands import DONE
from gpuload.commands.options import given, place
from gpuload.commands.outputs import Output
from gpuload.commands.terminal import say
from gpuload.counted import counted, progress_bar
from gpuload.errors import OutputError
from gpuload.machine.installed import require


@dataclass(frozen=True)
class Report:
    """Writes one page that shows what packed sets hold: classes, sizes, odd images, duplicates within and between
    splits, what was rejected, batches as training sees them, and how they are mixed. It opens from disk, without a
    server or a network. The same facts are written as JSON."""

    epilog = "Exit codes: 0 written; 2 nothing done, the reason is on stderr; 130 stopped by Ctrl-C."

    folders: list[str] = place("packed folders, their URLs, or folders that hold several", "SHARDS", nargs="+")
    output: str = given("report.html", "the page (%(default)s)", "FILE", "-o", "--output")
    json: str | None = given(None, "the facts (default: beside the page, as .json)", "FILE")
    title: str | None = given(None, "of the page (default: the sets, as they are given)", "TEXT")
    images: int = given(100_000, "most images whose pixels are looked at (%(default)s)", "N", rule=COUNT)
    size: int = given(224, "side of the training crops (%(default)s)", "PX", rule=whole(1, 4096))
    batch_size: int = given(64, "samples in a batch (%(default)s)", "N", rule=whole(1, 65_536))
    window: int = given(8, "shards mixed at a time (%(default)s)", "N", rule=COUNT)

    def run(self) -> int:
        require("report", "jinja2")
        from gpuload.augment import Augment
        from gpuload.report.build import Options, build
        from gpuload.report.page import FACTS_MARK, PAGE_MARK, facts_as_json, render
        from gpuload.report.samples import open_splits

        page = Output(Path(self.output), "-o", PAGE_MARK)
        facts_file = Path(self.json) if self.json else page.path.with_suffix(".json")
        if facts_file.absolute() == page.path.absolute():
            raise OutputError(f"{facts_file}: is named for the page and for the facts. Give two names")
        facts_output = Output(facts_file, "--json", FACTS_MARK)
        splits = open_splits(self.folders)
        options = Options(self.images, Augment(self.size), self.batch_size, self.window)
        with progress_bar("looking at images", "images") as bar:
            facts, thumbnails = build(splits, options, bar)
        text = render(facts, thumbnails, self.title or ", ".join(self.folders))
        facts_output.write(facts_as_json(facts).encode(errors="surrogateescape"))
        page.write(text.encode(errors="surrogateescape"))
        for finding in facts["findings"]:
            if finding["level"] != "good":
                say(f"{'problem' if finding['level'] == 'bad' else 'look'}: {finding['text']}")
        looked_at = counted(facts["looked_at"]["images"], "image")
        say(f"{page.path}: {len(text.encode()) / 1e6:.1f} MB, looked at {looked_at}; the facts are in {facts_file}")
        return DONE
