"""Model output -> verdict."""

from typing import TYPE_CHECKING

from policyengine.lazy import lazily

if TYPE_CHECKING:
    from policyengine.parsing.guess import as_parsed, settle_guess
    from policyengine.parsing.notation import Form
    from policyengine.parsing.parse import Mode, parse_chunks, parse_response
    from policyengine.parsing.verdict import WARNING_KINDS, Verdict

__all__ = ["WARNING_KINDS", "Form", "Mode", "Verdict", "as_parsed", "parse_chunks", "parse_response", "settle_guess"]

__getattr__ = lazily(
    __name__,
    {
        "Form": "notation",
        "Mode": "parse",
        "Verdict": "verdict",
        "WARNING_KINDS": "verdict",
        "as_parsed": "guess",
        "parse_chunks": "parse",
        "parse_response": "parse",
        "settle_guess": "guess",
    },
)
