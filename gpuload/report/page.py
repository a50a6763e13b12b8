"""The page: the facts of a report as one HTML file without anything from elsewhere."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from rich.filesize import decimal

from gpuload.report.duplicates import MOST_SHOWN
from gpuload.report.samples import Thumbnails
from gpuload.report.statistics import in_short

_FOLDER = Path(__file__).parent / "page"
_CLASS_BYTES = 900_000  # of the names and counts of classes, without their thumbnails
# What each page and each file of facts begins with.
PAGE_MARK, FACTS_MARK = b'<meta name="generator" content="gpuload ', b'{\n "made_by": "gpuload report"'


def render(facts: dict[str, Any], thumbnails: Thumbnails, title: str) -> str:
    """The page, at most 5 MB. Every text of the facts is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count": "{:,}".format,
        "short": in_short,
        "filesize": decimal,
        "shares": _shares,
        "highest": _highest,
    }
    script = (_FOLDER / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("page.html").render(
        facts=facts,
        title=title,
        uris=thumbnails.uris,
        sections=_sections(facts),
        most_groups=MOST_SHOWN,
        style=Markup((_FOLDER / "style.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=f"sha256-{digest}",
        data=_for_script(_data(facts, thumbnails)),
    )


def facts_as_json(facts: dict[str, Any]) -> str:
    """The facts without their pictures."""
    marked = {"made_by": "gpuload report", **_without_pictures(facts)}
    return json.dumps(marked, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _sections(facts: dict[str, Any]) -> list[tuple[str, str]]:
    sections = [("overview", "At a glance"), ("training", "Training")]
    if facts["classes"]:
        sections.append(("classes", "Classes"))
    return [
        *sections,
        ("images", "Images"),
        ("extremes", "Unlike the others"),
        ("duplicates", "Duplicates"),
        ("rejected", "Left out"),
        ("mixing", "Mixing"),
    ]


def _data(facts: dict[str, Any], thumbnails: Thumbnails) -> dict[str, Any]:
    """What the page's script needs: the tables of classes, cut where they would make the page too large."""
    left = _CLASS_BYTES
    tables = []
    for table in facts["classes"]:
        rows: list[Any] = []
        for row in table["rows"]:
            examples = [
                (thumbnails.uris[at], e) for e in row["examples"] if (at := (e["split"], e["index"])) in thumbnails.uris
            ]
            left -= len(json.dumps([row["name"], row["counts"]])) + sum(len(json.dumps(e)) for _, e in examples)
            if left < 0:
                break
            rows.append([row["name"], row["counts"], examples])
        table["left_out"] = table["classes"] - len(rows)
        tables.append({"rows": rows})
    splits = facts["splits"]
    return {"splits": [s["name"] for s in splits], "given": {s["name"]: s["given"] for s in splits}, "tables": tables}


def _for_script(data: Any) -> Markup:
    """JSON that cannot end its script element, nor begin a comment or another element in it."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _without_pictures(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _without_pictures(entry) for name, entry in value.items() if name != "picture"}
    if isinstance(value, list | tuple):
        return [_without_pictures(entry) for entry in value]
    return value


def _shares(series: dict[str, Any]) -> list[float]:
    """Of each bin the share of a split's images."""
    total = sum(series["counts"])
    return [count / total if total else 0.0 for count in series["counts"]]


def _highest(shares: list[list[float]]) -> float:
    return max((share for split in shares for share in split), default=0.0) or 1.0
