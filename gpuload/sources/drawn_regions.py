"""Regions of VGG's VIA, in its JSON and its CSV: shapes with attributes, one of which is the class."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpuload.errors import SourceError, some_of
from gpuload.sources.shapes import Shape, box_of, ellipse, polygon

Entry = Mapping[str, Any]


def attribute_of(title: str, attributes: Entry, wanted: str) -> str:
    """The class among the attributes of a shape: the one that the user named, else the only one.

    Raises:
        SourceError: there are several.
    """
    if not wanted and len(attributes) > 1:
        names = some_of(sorted(attributes))
        raise SourceError(
            f"{title}: its shapes have the attributes {names}. Which is the class? Give --option attribute=NAME"
        )
    value = attributes[wanted] if wanted else next(iter(attributes.values()), "object")
    if isinstance(value, dict):  # boxes that are ticked
        value = next((name for name, is_ticked in value.items() if is_ticked), "")
    return str(value)


def via_shape(label: str, form: Entry) -> Shape | str:
    """Points and lines have no area."""
    name = form["name"]
    if name == "rect":
        return box_of(label, form["x"], form["y"], form["width"], form["height"])
    if name == "polygon":
        points = zip(form["all_points_x"], form["all_points_y"], strict=True)
        return polygon(label, list(points))
    if name == "circle":
        return ellipse(label, (form["cx"], form["cy"]), (form["r"], form["r"]))
    if name == "ellipse":
        degrees = float(np.degrees(form.get("theta") or 0))
        return ellipse(
            label, (form["cx"], form["cy"]), (form["rx"], form["ry"]), degrees
        )
    return str(name)
