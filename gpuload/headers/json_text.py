"""JSON from untrusted files: the only error is ValueError."""

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """As `json.loads`.

    Raises:
        ValueError: it is not JSON, not in a UTF encoding, or nested more deeply than Python's parser goes.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its lists or objects are nested too deeply") from None
