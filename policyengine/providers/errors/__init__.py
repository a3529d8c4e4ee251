"""What a failed request to a model was, and what to do about it: `classify_provider_error`."""

from policyengine.providers.errors.classify import classify_provider_error
from policyengine.providers.errors.overflow import find_silent_overflow
from policyengine.providers.errors.remedies import (
    ERROR_CLASSES,
    REMEDIES,
    RETRY_SAME_REQUEST,
    ErrorClass,
    Remedy,
)
from policyengine.providers.errors.request_id import REQUEST_ID_HEADERS, find_request_id

__all__ = [
    "ERROR_CLASSES",
    "REMEDIES",
    "REQUEST_ID_HEADERS",
    "RETRY_SAME_REQUEST",
    "ErrorClass",
    "Remedy",
    "classify_provider_error",
    "find_request_id",
    "find_silent_overflow",
]
