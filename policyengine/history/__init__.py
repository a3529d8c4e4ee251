"""The messages of a conversation: how they are built, whether a provider accepts them, where they may be cut.

Knows: nothing of its own; the modules do. Must not know: guards, phases, who decides.
"""
