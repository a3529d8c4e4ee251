"""Recorded runs as data: one typed form, one reader per source format.

What a reader of another package needs is here, and stays under these names.
"""

from typing import TYPE_CHECKING

from policyengine.lazy import lazily

if TYPE_CHECKING:
    from policyengine.recordings.conversation import Failure, Pairing, RawCall, events, raw_call
    from policyengine.recordings.model import (
        Document,
        Event,
        ModelSaid,
        Recording,
        ShapeError,
        Skipped,
        ToolAnswered,
        Unreadable,
        UserSaid,
        ending,
        mapping,
        sequence,
        string,
    )
    from policyengine.recordings.readers import GROUP, READERS, Reader, installed_readers, read_recordings

__all__ = [
    "GROUP",
    "READERS",
    "Document",
    "Event",
    "Failure",
    "ModelSaid",
    "Pairing",
    "RawCall",
    "Reader",
    "Recording",
    "ShapeError",
    "Skipped",
    "ToolAnswered",
    "Unreadable",
    "UserSaid",
    "ending",
    "events",
    "installed_readers",
    "mapping",
    "raw_call",
    "read_recordings",
    "sequence",
    "string",
]

__getattr__ = lazily(
    __name__,
    {
        **dict.fromkeys(("GROUP", "READERS", "Reader", "installed_readers", "read_recordings"), "readers"),
        **dict.fromkeys(("Failure", "Pairing", "RawCall", "events", "raw_call"), "conversation"),
        **dict.fromkeys(("Document", "Event", "Recording", "ShapeError", "Skipped", "Unreadable"), "model"),
        **dict.fromkeys(("ModelSaid", "ToolAnswered", "UserSaid"), "model"),
        **dict.fromkeys(("ending", "mapping", "sequence", "string"), "model"),
    },
)
