"""The page of a report in a browser: nothing of a set is run, filters work, nothing overflows, axe finds nothing."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from painted import pack_hostile
from report_sets import CLASSES, EVIL, make_report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
playwright_api = pytest.importorskip("playwright.sync_api")

WIDTHS = (400, 1400)
PATIENCE_MS = 250_000  # with a browser on a busy machine


@pytest.fixture(scope="module")
def reports(split_report: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    pages = {"splits": split_report, "evil": make_report(pack_hostile(folder / "evil", EVIL, EVIL.replace("/", "")))}
    for name, (_, page) in pages.items():
        (folder / f"{name}.html").write_text(page, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in pages}


@pytest.fixture(scope="module")  # while Playwright's loop runs in this thread, asyncio.run refuses to
def browser() -> Iterator[Any]:
    if BROWSER is None:
        pytest.skip("needs chromium or google-chrome on the PATH (apt install chromium)")
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"], timeout=PATIENCE_MS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Any]:
    """Opens a page from disk, and fails at the end where it wrote to the console, failed or asked for anything."""
    said: list[str] = []
    contexts = []

    def open_page(path: Path, width: int = 1400, scheme: str = "light") -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append("a dialog"))
        page.on("request", lambda request: said.append(request.url[:80]))
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [text for text in said if not re.match("file:|data:", text)] == []


@pytest.mark.parametrize(("name", "scheme"), [("splits", "light"), ("splits", "dark"), ("evil", "light")])
def test_axe_finds_nothing_and_nothing_overflows(
    reports: dict[str, Path], open_page: Any, name: str, scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = open_page(reports[name], 1400, scheme)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") == width
        wide = "(e) => !e.closest('nav ul, main [tabindex], svg, .strip') && e.getBoundingClientRect().right > innerWidth + 1"
        beyond = f"[...document.querySelectorAll('main *')].filter({wide}).map(e => e.outerHTML.slice(0, 80))"
        assert page.evaluate(beyond) == []
    assert [violation["id"] for violation in axe.run(page).response["violations"]] == []


def test_texts_of_a_set_are_only_text(reports: dict[str, Path], open_page: Any) -> None:
    page = open_page(reports["evil"])
    assert page.evaluate("window.hacked") is None
    assert page.locator("img[src]:not([src^='data:'])").count() == 0
    assert page.locator("script").count() == 2
    assert page.locator(".classes .name").first.text_content().startswith(EVIL)
    page.locator(".shot").first.click()
    assert EVIL[:20] in page.locator("dialog").inner_text()
    page.keyboard.press("Escape")
    page.locator("summary").first.click()
    assert page.evaluate("window.hacked") is None
    assert EVIL not in reports["evil"].read_text(encoding="utf-8")
    assert "49" not in page.locator(".classes .name").first.text_content()


@pytest.mark.parametrize("key", ["--output=x", "a\x1b[201~\x03", "a\nb", "a\u202eb"])
def test_a_key_that_is_no_argument_is_replaced_by_a_number(reports: dict[str, Path], open_page: Any, key: str) -> None:
    page = open_page(reports["splits"])
    sample = {"split": "train", "key": key, "index": 17, "width": 1, "height": 1, "bytes": 1}
    said = page.evaluate("sample => { open(sample, null); return command; }", sample)
    assert said.startswith("python -m gpuload show ") and said.endswith("/train 17")


def test_the_list_of_classes(reports: dict[str, Path], open_page: Any) -> None:
    page = open_page(reports["splits"])
    card = page.locator("[data-table='0']")
    names = card.locator(".classes .name")
    assert names.count() == 40
    card.get_by_role("button", name=f"Show more of {CLASSES}").click()
    assert names.count() == CLASSES and card.locator(".more").is_hidden()
    card.get_by_label("Search").fill("Class 00")
    assert names.count() == 10 and card.get_by_role("status").inner_text() == f"10 of {CLASSES} match"
    card.get_by_label("Order").select_option("name")
    assert names.all_inner_texts() == [f"class {n:03d}" for n in range(10)]
    card.get_by_label("Search").fill("")
    card.get_by_label("only those that a split lacks").check()
    assert card.get_by_role("status").inner_text() == f"{CLASSES - 10} of {CLASSES} match"
    card.get_by_label("Order").select_option("least")
    texts = card.locator(".numbers").all_inner_texts()
    numbers = [sum(map(int, re.findall(r"(?:train|val|test) (\d+)", text))) for text in texts]
    assert len(numbers) == 40 and numbers == sorted(numbers)
    card.get_by_label("Search").fill("nowhere")
    assert names.count() == 0


def test_more_groups_of_duplicates_are_shown(reports: dict[str, Path], open_page: Any) -> None:
    page = open_page(reports["splits"])
    shown = page.locator(".group:visible")
    assert shown.count() == 12
    page.get_by_role("button", name="Show all 13 groups").click()
    assert shown.count() == 13


def test_the_keyboard_opens_a_sample(reports: dict[str, Path], open_page: Any) -> None:
    page = open_page(reports["splits"])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.locator("#extremes .shot").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("dialog").is_visible()
    said = page.locator("dialog").inner_text()
    assert re.search(r"python -m gpuload show \S+/sets/\w+ \S+", said) and "pixels" in said
    page.keyboard.press("Escape")
    assert page.locator("dialog").is_hidden()
    assert page.evaluate("document.activeElement.className") == "shot"


def test_a_page_without_a_browser(reports: dict[str, Path]) -> None:
    """One file that names nothing to load."""
    for path in reports.values():
        text = path.read_text(encoding="utf-8")
        assert len(text.encode()) < 5_000_000 and text.startswith("<!doctype html>")
        tags = re.findall(r"<[a-z]+ [^>]*(?:src|href)=\"([^\"]{1,6})", text)
        assert tags and all(target.startswith(("data:", "#")) for target in tags)
        assert "Content-Security-Policy" in text and EVIL not in text
