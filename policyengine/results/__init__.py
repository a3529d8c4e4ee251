"""What a tool handed back -> one classified result, one envelope."""

from typing import TYPE_CHECKING

from policyengine.lazy import lazily

if TYPE_CHECKING:
    from policyengine.results.classify import NO_OUTPUT, Classified, as_result, classify_tool_result
    from policyengine.results.envelope import tool_result_envelope
    from policyengine.results.read import Kind

__all__ = ["NO_OUTPUT", "Classified", "Kind", "as_result", "classify_tool_result", "tool_result_envelope"]

__getattr__ = lazily(
    __name__,
    {
        "Classified": "classify",
        "Kind": "read",
        "NO_OUTPUT": "classify",
        "as_result": "classify",
        "classify_tool_result": "classify",
        "tool_result_envelope": "envelope",
    },
)
