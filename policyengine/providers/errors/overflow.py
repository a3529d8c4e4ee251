"""Overflow that no error reports: the server cut the prompt, or left no room for an answer.

Knows: that `classify_response` sees it. Must not know: how.
"""

from __future__ import annotations

from policyengine.messages import ModelResponse, ProviderError
from policyengine.providers.errors.remedies import REMEDIES
from policyengine.responses import classify_response, prompt_tokens

INFERRED = ("prompt_cut", "window_full")
"""Reasons that follow from numbers and estimates; any other was said by the provider."""


def find_silent_overflow(
    response: ModelResponse, *, estimated_prompt_tokens: int | None = None, context_window: int | None = None
) -> ProviderError | None:
    """Return the overflow that a response with status 200 hides, or `None`.

    That is a response to far fewer prompt tokens than were sent, or an empty one that ended at a length limit because
    the prompt filled the window.

    Args:
        response: the response.
        estimated_prompt_tokens: the caller's own count of the request; without it a cut cannot be seen.
        context_window: the window of the model in tokens, where it is known.
    """
    seen = classify_response(
        response, estimated_prompt_tokens=estimated_prompt_tokens, context_window=context_window, max_retries=0
    )
    if seen.verdict != "context_overflow":
        return None
    return ProviderError(
        code="context_overflow",
        message=seen.reason,
        status=200,
        retry_same_request=False,
        remedies=REMEDIES["context_overflow"],
        tokens=estimated_prompt_tokens if seen.reason == "prompt_cut" else prompt_tokens(response),
        limit=context_window,
    )
