"""What answers requests: the scripted model, and models behind the SDKs of providers."""

from typing import TYPE_CHECKING

from policyengine.lazy import lazily

if TYPE_CHECKING:
    from policyengine.providers.config import Fallback, Provider
    from policyengine.providers.registry import connect, known_protocols

__all__ = ["Fallback", "Provider", "connect", "known_protocols"]

__getattr__ = lazily(
    __name__, {"Fallback": "config", "Provider": "config", "connect": "registry", "known_protocols": "registry"}
)
