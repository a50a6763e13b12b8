"""Makes the description of the package out of README.md when it is built. hatchling runs it (pyproject.toml).

README's relative links lead into the repository, and those that begin with # to its headings. Neither leads anywhere on
the page of a package index, and there is no public address of the repository that they could be made absolute with. So
they become plain text there. Once there is an address, they should become links to it, and the address an entry of
`[project.urls]`.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE = r"\((?!https?://)[^)\s]+\)"


def without_relative_links(text: str) -> str:
    """Markdown without the images and links that are not absolute; the text of the links stays."""
    text = re.sub(r"<picture>.*?</picture>\n*", "", text, flags=re.DOTALL)
    text = re.sub(rf"!\[[^\]]*\]{_RELATIVE}\n*", "", text)
    return re.sub(rf"\[([^\]]+)\]{_RELATIVE}", r"\1", text)


class Description(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = without_relative_links((Path(self.root) / "README.md").read_text())
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
