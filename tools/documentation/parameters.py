"""An extension of griffe for the reference in docs/: shows the fields of classes whose signature griffe does not know.

Their docstrings list arguments under `Args:`, which griffe would look for in a signature. So they are shown as
attributes. mkdocs.yml names it.
"""

import re
from typing import Any

import griffe


class ParametersExtension(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Renames the section where a NamedTuple, or a dataclass made by `checks.settings`, is documented."""
        if obj.docstring is None or not isinstance(obj, griffe.Class):
            return
        try:
            has_signature = any(
                parameter.name != "self" for parameter in obj.parameters
            )
        except (AttributeError, KeyError):
            has_signature = False
        if not has_signature:
            obj.docstring.value = re.sub(
                r"^Args:$", "Attributes:", obj.docstring.value, flags=re.MULTILINE
            )
