"""The changes: of operators, comparisons, conditions, constants, arguments and statements."""

import ast
import hashlib
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
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

# Statements that can be left out.
_STATEMENTS = (
    ast.Expr,
    ast.Assign,
    ast.AugAssign,
    ast.Raise,
    ast.Continue,
    ast.Break,
    ast.Assert,
)
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
        return {
            "id": self.id,
            "module": self.module,
            "line": self.line,
            "before": self.before,
            "after": self.after,
        }

    def apply(self, source: str) -> str:
        """The changed module."""
        content = source.encode()
        changed = content[: self.begin] + self.text.encode() + content[self.end :]
        return changed.decode()


def find_mutants(module: str, source: str) -> list[Mutant]:
    """All mutants of a module, in the order in which a sample takes them."""
    text = _SourceText(module, source)
    mutants = {}
    for node in _code(ast.parse(source)):
        unchanged = ast.unparse(node)
        for change in _changes(node):
            changed = ast.unparse(change)
            if changed != unchanged:
                is_statement = isinstance(node, ast.stmt)
                mutant = text.mutant(node, changed if is_statement else f"({changed})")
                mutants[mutant.id] = mutant
    return [mutants[mutant_id] for mutant_id in sorted(mutants)]


class _SourceText:
    """The bytes of a module, and where its lines begin in them."""

    def __init__(self, module: str, source: str) -> None:
        self._module = module
        self._content = source.encode()
        self._hash = hashlib.sha256(self._content).hexdigest()
        self._starts = [0]
        for line in self._content.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def mutant(self, node: Any, text: str) -> Mutant:
        """The module with this text in place of a node."""
        begin = self._starts[node.lineno - 1] + node.col_offset
        end = self._starts[node.end_lineno - 1] + node.end_col_offset
        first = self._starts[node.lineno - 1]
        stop = self._starts[node.end_lineno]
        before = self._content[first:stop]
        after = self._content[first:begin] + text.encode() + self._content[end:stop]
        return Mutant(
            self._module,
            node.lineno,
            node.end_lineno,
            begin,
            end,
            text,
            " ".join(before.decode().split()),
            " ".join(after.decode().split()),
            self._hash,
        )


def _code(tree: ast.AST) -> Iterator[Any]:
    """Nodes that decide the behaviour: no annotations, docstrings, imports, lists of names, or parts of texts."""
    children: list[Any] = []
    for name, value in ast.iter_fields(tree):
        if name not in ("annotation", "returns"):
            children += value if isinstance(value, list) else [value]
    for node in children:
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
    match node:
        case ast.BinOp() | ast.BoolOp() | ast.Compare():
            yield from _swapped(node)
        case ast.UnaryOp():
            yield node.operand
        case ast.IfExp():
            yield node.body
            yield node.orelse
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.Constant(value + 1)
        case ast.Call():
            yield from _without_a_keyword(node)
        case ast.Return() if node.value is not None:
            yield ast.Return(None)
        case _ if isinstance(node, _STATEMENTS):
            yield ast.Pass()


def _swapped(node: Any) -> Iterator[ast.AST]:
    """An expression with another operator, and each operand of `and` and `or` alone."""
    changed = deepcopy(node)
    if isinstance(node, ast.Compare):
        operator = _SWAPS.get(type(node.ops[0]))
        if operator is not None:
            changed.ops[0] = operator()
            yield changed
        return
    operator = _SWAPS.get(type(node.op))
    if operator is not None:
        changed.op = operator()
        yield changed
    if isinstance(node, ast.BoolOp):
        yield from node.values


def _without_a_keyword(call: ast.Call) -> Iterator[ast.AST]:
    """A call without each of its keyword arguments."""
    for number in range(len(call.keywords)):
        shorter = deepcopy(call)
        del shorter.keywords[number]
        yield shorter
