"""Which changes are made: a selection of cosmic-ray's operators, and a few that it lacks.

Of cosmic-ray's replacements of one operator by another, one or two are taken for each: `+` becomes `-`, and not also
`*`, `/`, `//`, `%`, `**`, `<<`, `>>`, `|`, `&` and `^`, which the same tests find.
"""

import ast
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import parso
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Example, Operator
from cosmic_ray.operators.provider import OperatorProvider

_BINARY = (
    "Add_Sub Sub_Add Mul_FloorDiv Div_Mul FloorDiv_Mul Mod_FloorDiv Pow_Mul RShift_LShift LShift_RShift BitOr_BitAnd "
    "BitAnd_BitOr BitXor_BitOr"
)
_COMPARISON = "Lt_LtE LtE_Lt Gt_GtE GtE_Gt Eq_NotEq NotEq_Eq Is_IsNot IsNot_Is"
_OTHERS = (
    "ReplaceUnaryOperator_Delete_USub ReplaceUnaryOperator_Delete_Invert ReplaceUnaryOperator_Delete_Not AddNot "
    "ReplaceTrueWithFalse ReplaceFalseWithTrue ReplaceAndWithOr ReplaceOrWithAnd ReplaceBreakWithContinue "
    "ReplaceContinueWithBreak ExceptionReplacer NumberReplacer RemoveDecorator ZeroIterationForLoop"
)

_BOUNDS = {"min", "max", "minimum", "maximum", "clip"}


class KeepOneArgument(Operator):
    """`max(a, b)` becomes `a` or `b`; the same for min and for NumPy's minimum, maximum and clip."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        return iter([(node.start_pos, node.end_pos) for _ in self._arguments(node)])

    def mutate(self, node: Any, index: int) -> Any:
        return parso.parse(f" ({self._arguments(node)[index].get_code().strip()})")

    @staticmethod
    def _arguments(node: Any) -> Sequence[Any]:
        if node.type not in ("atom_expr", "power") or node.children[-1].type != "trailer":
            return ()
        called, trailer = node.children[-2], node.children[-1]
        name = called.children[-1] if called.type == "trailer" else called
        given = trailer.children[1]
        if trailer.children[0].value != "(" or getattr(name, "value", "") not in _BOUNDS or given.type != "arglist":
            return ()
        return [one for one in given.children[::2] if one.type != "argument"]

    @classmethod
    def examples(cls) -> Sequence[Example]:
        return (Example("x = max(a, b)", "x = (a)"), Example("x = np.minimum(a, b)", "x = (b)", occurrence=1))


class DropKeyword(Operator):
    """A call loses one of its keyword arguments."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        return iter([(node.children[at].start_pos, node.children[at].end_pos) for at in self._keywords(node)])

    def mutate(self, node: Any, index: int) -> Any:
        at = self._keywords(node)[index]
        del node.children[max(at - 1, 0) if node.type == "arglist" else at : at + 1]
        return node

    @staticmethod
    def _keywords(node: Any) -> Sequence[int]:
        if node.type not in ("arglist", "trailer"):
            return ()
        children = enumerate(node.children)
        return [at for at, one in children if one.type == "argument" and getattr(one.children[1], "value", "") == "="]

    @classmethod
    def examples(cls) -> Sequence[Example]:
        return (Example("f(a, b=1)", "f(a)"), Example("f(b=1)", "f()"))


class DropOperand(Operator):
    """`a and b` becomes `a` or `b`; the same for `or`."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        if node.type in ("and_test", "or_test"):
            for _ in node.children[::2]:
                yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        left = [one for at, one in enumerate(node.children[::2]) if at != index]
        word = f" {node.children[1].value} "
        return parso.parse(f" ({word.join(one.get_code().strip() for one in left)})")

    @classmethod
    def examples(cls) -> Sequence[Example]:
        return (Example("x = a and b", "x = (b)"),)


class DropStatement(Operator):
    """A call whose result is not used, an assignment to a part or with an operator, `raise` or `del` becomes `pass`."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        if node.type == "simple_stmt" and self._acts(node.children[0]):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        old = node.children[0]
        node.children[0] = parso.parse(old.get_first_leaf().prefix + "pass")
        return node

    @staticmethod
    def _acts(statement: Any) -> bool:
        if statement.type == "expr_stmt":
            target = statement.children[0]
            operator = statement.children[1]
            return target.type == "atom_expr" or (operator.type == "operator" and len(operator.value) > 1)
        return statement.type in ("atom_expr", "power", "raise_stmt", "del_stmt")

    @classmethod
    def examples(cls) -> Sequence[Example]:
        return (Example("f(x)\n", "pass\n"), Example("x += 1\n", "pass\n"))


def _operators() -> dict[str, Operator]:
    provided = OperatorProvider()
    names = [f"ReplaceBinaryOperator_{name}" for name in _BINARY.split()]
    names += [f"ReplaceComparisonOperator_{name}" for name in _COMPARISON.split()] + _OTHERS.split()
    own = (KeepOneArgument, DropKeyword, DropOperand, DropStatement)
    return {name: provided[name]() for name in names} | {one.__name__: one() for one in own}


OPERATORS = _operators()


@dataclass(frozen=True)
class Mutant:
    """One change of one module: occurrence number `occurrence` of what an operator changes."""

    module: str  # path from the top of the repository
    operator: str
    occurrence: int
    line: int

    def rank(self, source: str) -> str:
        """Decides which mutants a sample of them takes: a pure function of the module's source and the change."""
        return hashlib.sha256(f"{source}\0{self.operator}\0{self.occurrence}".encode()).hexdigest()[:16]

    def apply(self, source: str) -> str:
        """The changed module."""
        try:
            return str(mutate_code(source, OPERATORS[self.operator], self.occurrence))
        except AttributeError:  # ExceptionReplacer knows no dotted names
            return source


def find_mutants(module: str, source: str) -> list[Mutant]:
    """All mutants of a module, by operator and place."""
    nodes = list(ast_nodes(get_ast(source)))
    found = []
    for name, operator in OPERATORS.items():
        lines = [place[0][0] for node in nodes for place in operator.mutation_positions(node)]
        found += [Mutant(module, name, number, line) for number, line in enumerate(lines)]
    return found


class _Bare(ast.NodeTransformer):
    """Leaves of a module what decides its behaviour: no annotations, and one spelling of a negated comparison."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        # A dataclass that is not frozen differs only for code that mypy refuses.
        node.decorator_list = [one.func if isinstance(one, ast.Call) else one for one in node.decorator_list]
        return self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        inner = node.operand
        if isinstance(node.op, ast.Not) and isinstance(inner, ast.Compare) and type(inner.ops[0]) in _OPPOSITE:
            inner.ops = [_OPPOSITE[type(inner.ops[0])]()]
            return self.generic_visit(inner)
        return self.generic_visit(node)


_OPPOSITE: dict[type, Any] = {ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is}


def behaviour(source: str) -> str | None:
    """What decides the behaviour of a module, to compare it with; None if it is no Python."""
    try:
        compile(source, "", "exec")
        return ast.dump(_Bare().visit(ast.parse(source)))
    except SyntaxError:
        return None
