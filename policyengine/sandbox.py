"""Compile and run one message template within bounds.

Knows: jinja2, and which of its constructs a message may use.
Must not know: where templates come from, what they are for, policies.

jinja2's own sandbox keeps a template away from Python objects but not from time and memory (`'a' * 10**9`, nested
loops). So a template is parsed first and accepted only if it consists of the few constructs listed here. None of
them can multiply anything: there are no calls, no assignments, no loops inside loops, loops run over given values
only, and the one arithmetic operator is `-`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_SOURCE = 16_000
"""Longest template, in characters."""

_MAX_DEPTH = 40
_MAX_LOOPS = 8
_MAX_JOINED = 10_000
_MAX_WORK = 100
"""How many filters, and how many parts of `~`, a template may have: each may copy a whole value in every turn."""

_ALLOWED = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.Name, nodes.Const, nodes.Getattr, nodes.Getitem),
    *(nodes.If, nodes.For, nodes.CondExpr, nodes.And, nodes.Or, nodes.Not, nodes.Compare, nodes.Operand),
    *(nodes.Filter, nodes.Test, nodes.Concat, nodes.Sub, nodes.Tuple, nodes.List),
)
_LOOP_FACTS = frozenset({"index", "index0", "first", "last", "length"})
_RESERVED = frozenset({"self", "super", "caller", "varargs", "kwargs"})


class TemplateFault(Exception):
    """A template cannot be used. `line` counts from 1; 0 if unknown."""

    def __init__(self, message: str, line: int = 0) -> None:
        self.message = message
        self.line = line
        super().__init__(message)


class _Environment(ImmutableSandboxedEnvironment):
    """An environment in which an attribute is an entry of a mapping and nothing else."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return `obj[attribute]` of a mapping, or one of the harmless facts about a loop."""
        if isinstance(obj, Mapping) and attribute in obj:
            return obj[attribute]
        if isinstance(obj, LoopContext) and attribute in _LOOP_FACTS:
            return getattr(obj, attribute)
        if isinstance(obj, jinja2.Undefined):
            return obj  # so that the error names what is missing, not what was asked of it
        return self.undefined(obj=obj, name=attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return an entry of a mapping or an item of a list."""
        if isinstance(obj, Mapping | list | tuple):
            try:
                return obj[argument]
            except (LookupError, TypeError):
                return self.undefined(obj=obj, name=argument)
        return self.undefined(obj=obj, name=argument)


def _join(value: Any, separator: str = ", ") -> str:
    if not isinstance(value, list | tuple):
        raise TemplateFault("`join` needs a list")
    between, held, size = str(separator)[:20], list[str](), 0
    for item in value:
        held.append(str(item))
        size += len(held[-1]) + len(between)
        if size > _MAX_JOINED:  # in a loop the rest would be put together again and again
            break
    return between.join(held)[:_MAX_JOINED]


def _printable(value: Any) -> Any:
    if value is None:
        raise TemplateFault("a variable without a value cannot be printed; ask for it with `if` first")
    if isinstance(value, Mapping | list | tuple):
        raise TemplateFault("a list or mapping cannot be printed as a whole; use `for` or `join`")
    return value


_FILTERS = {
    "join": _join,
    "length": len,
    "lower": lambda value: str(value).lower(),
    "upper": lambda value: str(value).upper(),
    "trim": lambda value: str(value).strip(),
}
_TESTS = ("defined", "undefined", "none", "number", "string", "true", "false")


def _environment() -> _Environment:
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printable,
        cache_size=0,
    )
    environment.globals = {}
    environment.filters = dict(_FILTERS)
    environment.tests = {name: environment.tests[name] for name in _TESTS}
    return environment


_ENVIRONMENT = _environment()


def compile_template(source: str, name: str) -> jinja2.Template:
    """Return a template that is known to stay within bounds.

    Raises:
        TemplateFault: it has a syntax error or uses what a message may not use.
    """
    if len(source) > MAX_SOURCE:
        raise TemplateFault(f"longer than {MAX_SOURCE} characters")
    try:
        tree = _ENVIRONMENT.parse(source)
        _check_constructs(tree)
        code = _ENVIRONMENT.compile(tree, name, name)
        return jinja2.Template.from_code(_ENVIRONMENT, code, {})
    except jinja2.TemplateSyntaxError as error:
        raise TemplateFault(error.message or "syntax error", error.lineno) from error
    except jinja2.TemplateError as error:  # a constant expression that has no value, found while it is compiled
        raise TemplateFault(str(error)[:300] or type(error).__name__) from error
    except (RecursionError, MemoryError, SyntaxError, TypeError, ValueError, OverflowError) as error:
        raise TemplateFault(f"too complicated ({type(error).__name__})") from error


def _check_constructs(tree: nodes.Template) -> None:
    loops = filters = parts = 0
    todo: list[tuple[nodes.Node, int, bool]] = [(tree, 0, False)]
    while todo:
        node, depth, in_loop = todo.pop()
        _check_node(node, depth, in_loop)
        filters += isinstance(node, nodes.Filter)
        parts += len(node.nodes) if isinstance(node, nodes.Concat) else 0
        if isinstance(node, nodes.For):
            loops += 1
            in_loop = True
        todo.extend((child, depth + 1, in_loop) for child in node.iter_child_nodes())
    if filters > _MAX_WORK or parts > _MAX_WORK:
        raise TemplateFault(f"more than {_MAX_WORK} filters, or parts joined by `~`")
    if loops > _MAX_LOOPS:
        raise TemplateFault(f"more than {_MAX_LOOPS} loops")


def _check_node(node: nodes.Node, depth: int, in_loop: bool) -> None:
    if not isinstance(node, _ALLOWED):
        raise TemplateFault(f"`{type(node).__name__}` is not allowed in a message template", node.lineno)
    if depth > _MAX_DEPTH:
        raise TemplateFault("nested too deeply", node.lineno)
    if isinstance(node, nodes.For) and (in_loop or node.recursive):
        raise TemplateFault("a loop inside a loop is not allowed", node.lineno)
    if isinstance(node, nodes.For) and not isinstance(node.iter, nodes.Name | nodes.Getattr | nodes.Getitem):
        raise TemplateFault("a loop must run over a variable", node.lineno)
    if isinstance(node, nodes.Name) and node.name in _RESERVED:
        raise TemplateFault(f"{node.name!r} is not allowed in a message template", node.lineno)
    if isinstance(node, nodes.Filter) and node.name not in _FILTERS:
        raise TemplateFault(f"no filter {node.name!r} (filters are: {', '.join(_FILTERS)})", node.lineno)
    if isinstance(node, nodes.Test) and node.name not in _TESTS:
        raise TemplateFault(f"no test {node.name!r} (tests are: {', '.join(_TESTS)})", node.lineno)
    if isinstance(node, nodes.Const) and isinstance(node.value, int | float) and not abs(node.value) <= 10**18:
        raise TemplateFault("a number that is too large", node.lineno)


def render_template(template: jinja2.Template, values: Mapping[str, Any], limit: int) -> tuple[str, bool]:
    """Return the text, cut after `limit` characters, and whether it was cut.

    Raises:
        TemplateFault: a variable is missing, or an expression cannot be evaluated with these values.
    """
    try:
        text = "".join(_pieces(template, values, limit))
    except TemplateFault as error:
        raise TemplateFault(error.message, error.line or _line(error, template)) from error
    except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
        raise TemplateFault(str(error)[:300] or type(error).__name__, _line(error, template)) from error
    return text[:limit], len(text) > limit


def _pieces(template: jinja2.Template, values: Mapping[str, Any], limit: int) -> Iterator[str]:
    """Yield the pieces of the output until there is more of it than `limit`."""
    room = limit
    for piece in template.generate(dict(values)):
        yield piece
        room -= len(piece)
        if room < 0:
            return


def _line(error: BaseException, template: jinja2.Template) -> int:
    """Return the line of the template at which an error was raised; jinja2 puts it into the traceback."""
    line = 0
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == template.filename:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
