"""What the model is told about a Python function, and what the function is given."""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal, Optional, TypedDict

import jsonschema_rs
import msgspec
import pytest

from policyengine import Agent, Engine, call, say
from policyengine.providers.scripted import ScriptedModel
from policyengine.script import Script
from policyengine.signatures import description_of, signature_of
from policyengine.toolset import as_tools


@dataclass
class Point:
    x: int
    y: int = 0


class Box(msgspec.Struct):
    corner: Point
    label: str = ""


class Options(TypedDict, total=False):
    deep: bool


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Odd:
    pass


def properties(function: Any) -> dict[str, Any]:
    return signature_of(function, "f").schema["properties"]


def test_plain_hints_become_schemas_and_are_not_converted():
    def f(
        a: str,
        b: int = 3,
        c: float | None = None,
        d: Literal["x", "y"] = "x",
        e: Optional[list[str]] = None,  # noqa: UP045 - as many write it
        g: dict[str, int] = {},  # noqa: B006
        h: Options = {},  # noqa: B006
        i: Any = None,
        j=1,
        k: Odd = None,
    ): ...

    made = signature_of(f, "f")
    found = made.schema["properties"]
    assert made.schema["required"] == ["a"]
    assert made.converted == {}
    assert found["a"] == {"type": "string"}
    assert found["b"] == {"type": "integer", "default": 3}
    assert {kind["type"] for kind in found["c"]["anyOf"]} == {"number", "null"}
    assert found["d"] == {"enum": ["x", "y"], "default": "x"}
    assert found["i"] == found["k"] == {}
    assert found["j"] == {"default": 1}
    assert made.schema["additionalProperties"] is False
    jsonschema_rs.validator_for(made.schema)


def test_descriptions_come_from_annotations_and_docstrings():
    def google(
        a: Annotated[int, msgspec.Meta(ge=1, description="At least one.")], b: Annotated[str, "What."], c: str, d=0
    ):
        """Do it.

        And more of it.

        Args:
            a: not this.
            c (str): The third,
                which is long.
            d: The last.

        Returns:
            c: nothing.
        """

    found = properties(google)
    assert [found[name]["description"] for name in "abcd"] == [
        "At least one.",
        "What.",
        "The third, which is long.",
        "The last.",
    ]
    assert found["a"]["minimum"] == 1
    assert description_of(google) == "Do it.\n\nAnd more of it."

    def sphinx(a, b: int):
        """Do it.

        :param a: The first.
        :param int b: The second.
        :return: nothing
        """

    assert [item["description"] for item in properties(sphinx).values()] == ["The first.", "The second."]
    assert description_of(sphinx) == "Do it."


def given(function: Any, **arguments: Any) -> Any:
    """Return the text that the model reads when it calls a function."""
    model = ScriptedModel(Script("t", (call("f", arguments), say("done"))))
    outcome = Agent(Engine(), model, {"f": function}).run("t")
    return next(message.text for message in outcome.messages if message.role == "tool")


def test_rich_arguments_arrive_as_the_objects_that_were_asked_for():
    def f(box: Box, colour: Colour = Colour.RED, day: date | None = None, points: list[Point] = ()) -> str:
        assert isinstance(box, Box)
        assert isinstance(box.corner, Point)
        return f"{box.corner.x} {colour.name} {day and day.year} {[point.y for point in points]}"

    schema = signature_of(f, "f").schema
    assert set(schema["$defs"]) == {"Box", "Point", "Colour"}
    validator = jsonschema_rs.validator_for(schema)
    arguments = {"box": {"corner": {"x": 1}}, "colour": "blue", "day": "2030-01-02", "points": [{"x": 1, "y": 5}]}
    assert validator.is_valid(arguments)
    assert not validator.is_valid({"box": {"corner": {"x": "one"}}})
    assert given(f, **arguments) == "1 BLUE 2030 [5]"
    assert given(f, box={"corner": {"x": 2}}) == "2 RED None []"


def test_arguments_that_do_not_fit_are_a_typed_result_and_the_function_does_not_run():
    ran = []

    def f(point: Point) -> str:
        ran.append(point)
        return "ran"

    (tool,) = as_tools({"f": f})
    result = tool.function(point={"x": "one"})
    assert (result.status, result.error.code, result.error.retryable) == ("error", "invalid_arguments", False)
    assert "argument 'point'" in result.text
    assert "$.x" in result.text
    assert ran == []


def test_asynchronous_functions_are_converted_for_as_well():
    async def f(point: Point) -> int:
        return point.x

    (tool,) = as_tools({"f": f})
    assert tool.is_async
    assert asyncio.run(tool.function(point={"x": 4})) == 4
    assert asyncio.run(tool.function(point={})).error.code == "invalid_arguments"
    assert given(f, point={"x": 4}) == "4"


def test_objects_and_methods_have_hints_too():
    class Look:
        """Look."""

        def __call__(self, place: Annotated[str, "Where."]) -> str:
            return place

        def near(self, point: Point) -> int:
            return point.x

    (tool,) = as_tools([Look()])
    assert tool.spec.parameters["properties"] == {"place": {"type": "string", "description": "Where."}}
    (method,) = as_tools([Look().near])
    assert method.function(point={"x": 3}) == 3


def test_pydantic_models_are_known_by_their_methods():
    pydantic = pytest.importorskip("pydantic")

    class Inner(pydantic.BaseModel):
        n: int

    class Outer(pydantic.BaseModel):
        inner: Inner
        name: str = pydantic.Field(description="Whose.")

    def f(outer: Outer, many: list[Inner] = (), one: Annotated[int, pydantic.Field(description="One.")] = 1) -> str:
        return f"{type(outer).__name__} {outer.inner.n} {[inner.n for inner in many]}"

    f.__annotations__ = {
        "outer": Outer,
        "many": list[Inner],
        "one": Annotated[int, pydantic.Field(description="One.")],
    }
    schema = signature_of(f, "f").schema
    validator = jsonschema_rs.validator_for(schema)
    arguments = {"outer": {"inner": {"n": 1}, "name": "x"}, "many": [{"n": 2}]}
    assert validator.is_valid(arguments)
    assert not validator.is_valid({"outer": {"inner": {"n": "x"}, "name": "x"}})
    assert schema["properties"]["one"]["description"] == "One."
    assert given(f, **arguments) == "Outer 1 [2]"
    (tool,) = as_tools({"f": f})
    assert tool.function(outer={}).error.code == "invalid_arguments"
