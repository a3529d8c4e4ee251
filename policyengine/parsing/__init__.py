"""Model output -> verdict."""

from policyengine.parsing.parse import parse_chunks, parse_response
from policyengine.parsing.verdict import WARNING_KINDS, Verdict

__all__ = ["WARNING_KINDS", "Verdict", "parse_chunks", "parse_response"]
