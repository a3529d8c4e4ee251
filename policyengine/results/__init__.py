"""What a tool handed back -> one classified result, one envelope."""

from policyengine.results.classify import NO_OUTPUT, Classified, as_result, classify_tool_result
from policyengine.results.envelope import tool_result_envelope
from policyengine.results.read import Kind

__all__ = ["NO_OUTPUT", "Classified", "Kind", "as_result", "classify_tool_result", "tool_result_envelope"]
