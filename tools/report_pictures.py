"""Takes the pictures of docs/report.md: parts of a report page, in a headless browser.

    python -m gpuload report shards -o report.html
    python tools/report_pictures.py report.html docs/images

Needs playwright, and chromium or google-chrome.
"""

import argparse
import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

_WIDTH, _HEIGHT = 1120, 1100
_MOST_BYTES = 300_000


def take(page: Page, section: str) -> Image.Image:
    """What is seen of a page after a jump to a section."""
    page.evaluate(f"document.getElementById({section!r}).scrollIntoView()")
    page.wait_for_timeout(200)
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def save(picture: Image.Image, path: Path) -> None:
    """As PNG with as many colours as fit into 300 kB."""
    picture.save(path, optimize=True)
    for colors in (256, 128, 64):
        if path.stat().st_size <= _MOST_BYTES:
            break
        palette = picture.quantize(colors)
        picture.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path, help="a page that `python -m gpuload report` made")
    parser.add_argument("folder", type=Path, help="where the pictures go")
    args = parser.parse_args(argv)
    browser_path = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    if browser_path is None:
        print("neither chromium nor google-chrome is installed", file=sys.stderr)
        return 2
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for name, scheme, section in (("overview", "light", "overview"), ("extremes", "dark", "extremes")):
            context = browser.new_context(
                viewport={"width": _WIDTH, "height": _HEIGHT}, color_scheme=scheme, reduced_motion="reduce"
            )
            page = context.new_page()
            page.goto(args.page.absolute().as_uri())
            save(take(page, section), args.folder / f"report-{name}.png")
            context.close()
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
