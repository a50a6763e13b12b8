"""Puts the files of changes/ into CHANGELOG.md.

    python tools/changelog.py            # shows the changelog with them
    python tools/changelog.py --write    # writes it, and removes the files

A file is changes/SECTION.NAME.md; its lines go to the top of that section of "Unreleased", made if there is none.

Exit codes: 0; 2 if a file is not as changes/README.md asks.
"""

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHANGELOG = ROOT / "CHANGELOG.md"
CHANGES = ROOT / "changes"
_NAME = re.compile(r"([a-z]+(?:-[a-z]+)*)\.[\w-]+\.md")
_UNRELEASED = "## Unreleased\n"


class ChangeError(Exception):
    """A file of changes/ is not as its README asks."""


def fragments(folder: Path) -> list[tuple[Path, str]]:
    """Each file with its section's slug, in the order of their names.

    Raises:
        ChangeError: a file has another name, or does not begin with "- ".
    """
    found = []
    for path in sorted(folder.glob("*")):
        if path.name == "README.md":
            continue
        name = _NAME.fullmatch(path.name)
        if name is None:
            raise ChangeError(f"{path}: expected a name such as packing.zip-names.md")
        if not path.read_text().startswith("- "):
            raise ChangeError(f"{path}: expected lines that begin with '- '")
        found.append((path, name[1]))
    return found


def with_change(text: str, slug: str, lines: str) -> str:
    """The changelog with these lines at the top of a section of "Unreleased"."""
    start = text.index(_UNRELEASED) + len(_UNRELEASED)
    release = text.find("\n## ", start)
    end = len(text) if release < 0 else release
    for heading in re.finditer(r"^### (.+)\n", text[start:end], re.M):
        if heading[1].lower().replace(" ", "-") == slug:
            top = start + heading.end()
            return text[:top] + lines + text[top:]
    title = slug.replace("-", " ").capitalize()
    section = f"\n### {title}\n{lines}"
    return text[:end].rstrip("\n") + "\n" + section + text[end:]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args(argv)
    try:
        changes = fragments(CHANGES)
    except ChangeError as error:
        print(error, file=sys.stderr)
        return 2
    text = CHANGELOG.read_text()
    for path, slug in changes:
        text = with_change(text, slug, path.read_text().rstrip("\n") + "\n")
    if not args.write:
        print(text, end="")
        return 0
    CHANGELOG.write_text(text)
    for path, _ in changes:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
