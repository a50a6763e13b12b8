"""SECURITY.md: each promise about sets, servers and caches names a test that exists."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_sentence_has_a_test() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    section = text.partition("### A set, a server, a cache\n")[2].partition("\n## ")[0]
    promises = re.split(r"\n- ", section)[1:]
    assert len(promises) >= 10
    for promise in promises:
        named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", promise)
        assert named, promise
        for file, test in named:
            tree = ast.parse((ROOT / file).read_text())
            there = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
            assert not test or test in there, (file, test)
