"""Documents of annotation tools that describe many images each."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

from gpuload.machine.untrusted import parse_json
from gpuload.sources.drawn import FORM_ERRORS, Drawing, DrawnSource, tell
from gpuload.sources.files import Findings, Ref, readable
from gpuload.sources.source import Names


class DocumentSource(DrawnSource):
    """Documents of JSON that describe many images each."""

    form = "its tool's JSON"
    extensions: ClassVar[Names] = ("json",)

    def drawings(self, findings: Findings) -> Iterator[Drawing]:
        passed_over = Counter[str]()
        for file in self.sheets(findings, *self.extensions):
            with readable(f"{self.title}/{file.name}", self.form, *FORM_ERRORS):
                yield from self.read_document(file, findings, passed_over)
        tell(passed_over, findings)

    def read_document(
        self, file: Ref, findings: Findings, passed_over: Counter[str]
    ) -> Iterator[Drawing]:
        """The drawings of one document.

        Args:
            file: The document.
            findings: Gets what the source reports.
            passed_over: Counts what is no object, by what it is.
        """
        raise NotImplementedError

    def document(self, file: Ref) -> Any:
        """The content of a document of JSON."""
        return parse_json(self.files.text(file.name))
