"""Compiles the kernels, and makes the description of the package out of README.md, when it is built. hatchling runs it
(pyproject.toml).

A wheel holds the libraries of one architecture (tools/build_kernels.py), and serves every Python. An editable install
has them beside their sources.

README's relative links lead into the repository, and those that begin with # to its headings. Neither leads anywhere on
the page of a package index, and there is no public address of the repository that they could be made absolute with. So
they become plain text there. Once there is an address, they should become links to it, and the address an entry of
`[project.urls]`.
"""

import re
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

sys.path.insert(0, str(Path(__file__).parent))
import build_kernels

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


class Kernels(BuildHookInterface[Any]):
    """Compiles the kernels for a wheel; a source distribution has the sources."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        architecture = build_kernels.architecture()
        build_kernels.build(architecture)
        sources = build_kernels.load_sources()
        libraries = [
            target.file.relative_to(self.root)
            for target in sources.targets_of(architecture)
        ]
        build_data["artifacts"] += [f"/{library}" for library in libraries]
        glibc = sources.GLIBC.replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = (
            f"py3-none-manylinux_{glibc}_{architecture}.manylinux2014_{architecture}"
        )
