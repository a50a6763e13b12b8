"""The changes: of operators, comparisons, conditions, constants, arguments and statements."""

import ast
import hashlib
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any

# What each operator becomes.
_SWAPS: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
}

_SKIPPED = (ast.Import, ast.ImportFrom, ast.JoinedStr, ast.Global, ast.Nonlocal)


@dataclass(frozen=True)
class Mutant:
    """One change of one module: source[begin:end], bytes of UTF-8, becomes `text`.

    before, after: the lines around the change, without and with it, white space apart.
    """

    module: str  # path from the top of the repository
    line: int
    last_line: int
    begin: int
    end: int
    text: str
    before: str
    after: str
    source_hash: str

    @property
    def id(self) -> str:
        """Of this change of this source; mutants in the order of their ids are a random sample."""
        text = f"{self.source_hash} {self.begin} {self.end} {self.text}"
        return f"{self.module} {hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def about(self) -> dict[str, Any]:
        told = asdict(self)
        return {
            "id": self.id,
            **{name: told[name] for name in ("module", "line", "before", "after")},
        }

    def apply(self, source: str) -> str:
        """The changed module."""
        data = source.encode()
        return (data[: self.begin] + self.text.encode() + data[self.end :]).decode()


def find_mutants(module: str, source: str) -> list[Mutant]:
    """All mutants of a module, in the order in which a sample takes them."""
    data, source_hash = source.encode(), hashlib.sha256(source.encode()).hexdigest()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = {}
    for node in _code(ast.parse(source)):
        begin, end = (
            starts[node.lineno - 1] + node.col_offset,
            starts[node.end_lineno - 1] + node.end_col_offset,
        )
        first, stop = starts[node.lineno - 1], starts[node.end_lineno]
        for changed in _changes(node):
            text = ast.unparse(changed)
            if text != ast.unparse(node):
                text = text if isinstance(node, ast.stmt) else f"({text})"
                lines = (
                    data[first:stop],
                    data[first:begin] + text.encode() + data[end:stop],
                )
                before, after = (" ".join(one.decode().split()) for one in lines)
                mutant = Mutant(
                    module,
                    node.lineno,
                    node.end_lineno,
                    begin,
                    end,
                    text,
                    before,
                    after,
                    source_hash,
                )
                found[mutant.id] = mutant
    return [found[one] for one in sorted(found)]


def _code(tree: ast.AST) -> Iterator[Any]:
    """Nodes that decide the behaviour: no annotations, docstrings, imports, lists of names, or parts of texts."""
    children = [
        value
        for name, value in ast.iter_fields(tree)
        if name not in ("annotation", "returns")
    ]
    for node in (
        one
        for value in children
        for one in (value if isinstance(value, list) else [value])
    ):
        if not isinstance(node, ast.AST) or isinstance(node, _SKIPPED):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            continue
        if isinstance(node, ast.stmt | ast.expr):
            yield node
        yield from _code(node)


def _changes(node: Any) -> Iterator[ast.AST]:
    made = deepcopy(node)
    if isinstance(node, ast.BinOp) and type(node.op) in _SWAPS:
        made.op = _SWAPS[type(node.op)]()
        yield made
    elif isinstance(node, ast.BoolOp):
        made.op = _SWAPS[type(node.op)]()
        yield made
        yield from node.values
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPS:
        made.ops[0] = _SWAPS[type(node.ops[0])]()
        yield made
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.Call):
        for number in range(len(node.keywords)):
            shorter = deepcopy(node)
            del shorter.keywords[number]
            yield shorter
    elif isinstance(node, ast.Return) and node.value is not None:
        yield ast.Return(None)
    elif isinstance(
        node,
        ast.Expr
        | ast.Assign
        | ast.AugAssign
        | ast.Raise
        | ast.Continue
        | ast.Break
        | ast.Assert,
    ):
        yield ast.Pass()
