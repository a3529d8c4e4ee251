"""How the forms of a declared text protocol are written.

Knows: what a policy says about a form, how it is described to people and models.
Must not know: how a reply is read (`forms` does that; a policy that is only loaded does without).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec


class Form(msgspec.Struct, frozen=True, omit_defaults=True):
    """One way to write a call (or the final answer) in a text protocol.

    * `tag`: `<word>...</word>` anywhere in the reply; the text between the tags is `argument`.
    * `line`: a reply that begins with `word`; the rest of the line is `argument`, and JSON below it is `payload`.
    * `call`: `word(...)`; the text between the outermost parentheses is `argument`.
    * `python`: a list of Python calls with keyword arguments; the names are those of the tools.
    * `prose`: a reply that is none of the others is the final answer.

    `tool` is the tool's name where it is not the word. `answer` makes it the final answer instead of a call.
    """

    form: Literal["tag", "line", "call", "python", "prose"]
    word: str = ""
    argument: str = "text"
    payload: str = ""
    tool: str = ""
    answer: bool = False

    @property
    def name(self) -> str:
        """The tool that is called."""
        return self.tool or self.word

    @property
    def example(self) -> str:
        """How it is written, for people and models."""
        match self.form:
            case "tag":
                return f"<{self.word}>{self.argument}</{self.word}>"
            case "line":
                return f"{self.word} {self.argument}" + (f"\n{{{self.payload} as JSON}}" if self.payload else "")
            case "call":
                return f"{self.word}({self.argument})"
            case "python":
                return "[tool(argument=value), ...]"
        return "text"


def described(forms: Sequence[Form]) -> list[str]:
    """Return how calls and answers are written, and which tool or answer each form is."""
    return [form.example + _meaning(form) for form in forms if form.form != "prose"]


def _meaning(form: Form) -> str:
    if form.answer:
        return "   (your final answer)"
    return f"   (calls {form.name})" if form.form != "python" and form.name != form.word else ""


def examples_of(forms: Sequence[Form]) -> list[str]:
    """Return how calls and answers are written, one example a form."""
    return [form.example for form in forms if form.form != "prose"]
