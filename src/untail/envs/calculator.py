"""A calculator: a turn that ends in <calc>12*34</calc> gets the result for a reply; any other is the last.

Invariant: nothing is executed. An expression is parsed, every node of it is checked, and numbers are bounded in size,
so that no expression takes long. What cannot be computed gets a reply that says why.
"""

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

from untail.config import PositiveInt
from untail.envs.base import ENVIRONMENTS, Environment, Turn

OPEN, CLOSE = "<calc>", "</calc>"
MOST_BITS = 512  # of an integer, at any point of a computation
OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


@ENVIRONMENTS.register("calculator")
class Calculator(Environment):
    class Config(Environment.Config):
        longest: PositiveInt = 200  # characters of an expression

    config: Config
    stop_strings = (CLOSE,)

    async def reply(self, turn: Turn) -> str | None:
        text = turn.text.rstrip()
        begin = text.rfind(OPEN)
        if begin < 0 or not text.endswith(CLOSE):
            return None
        expression = text[begin + len(OPEN) : -len(CLOSE)].strip()
        if len(expression) > self.config.longest:
            return f"error: longer than {self.config.longest} characters"
        try:
            return calculate(expression)
        except (ValueError, ArithmeticError) as error:
            return f"error: {error}"


def calculate(expression: str) -> str:
    """The value as text. Raises ValueError or ArithmeticError, with a reason."""
    try:
        tree = ast.parse(expression, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ValueError("not an expression") from None
    value = _value(tree.body)
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _value(node: ast.AST) -> int | float:
    match node:
        case ast.Constant(value=value) if type(value) in (int, float):
            return _bounded(value)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            pair = _value(left), _value(right)
            if isinstance(op, ast.Pow):
                _refuse_large_power(*pair)
            return _bounded(OPERATORS[type(op)](*pair))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
            return _bounded(OPERATORS[type(op)](_value(operand)))
    raise ValueError("only numbers, + - * / // % ** and brackets are known")


def _refuse_large_power(base: int | float, exponent: int | float) -> None:
    if isinstance(base, int) and abs(exponent) * max(1, base.bit_length()) > MOST_BITS:
        raise ValueError("the number is too large")


def _bounded(value: Any) -> int | float:
    if isinstance(value, complex):
        raise ValueError("the result is not a real number")
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise ValueError("the number is too large")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("the number is too large")
    return value
