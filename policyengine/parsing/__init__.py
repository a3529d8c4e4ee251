"""Model output -> verdict."""

from policyengine.parsing.forms import Form
from policyengine.parsing.guess import as_parsed, settle_guess
from policyengine.parsing.parse import Mode, parse_chunks, parse_response
from policyengine.parsing.verdict import WARNING_KINDS, Verdict

__all__ = ["WARNING_KINDS", "Form", "Mode", "Verdict", "as_parsed", "parse_chunks", "parse_response", "settle_guess"]
