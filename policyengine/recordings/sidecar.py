"""The set's own run ids, from an `index.csv` beside or above the recordings.

Knows: an index with the columns `id` and `file`, `file` being relative to the index (`file:N` names line N from 0).
Must not know: formats of recordings.
"""

from __future__ import annotations

import csv
from pathlib import Path

NAME = "index.csv"


class Index:
    """One `index.csv`: the ids it lists for each file."""

    def __init__(self, folder: Path, ids: dict[str, list[str]]) -> None:
        self._folder = folder
        self._ids = ids

    def id_of(self, path: Path, own: str, line: int, *, alone: bool) -> str:
        """Return the set's id of a run whose reader calls it `own`.

        `line` is the run's line in the file from 1, `alone` whether it is the file's only run.
        """
        file = path.relative_to(self._folder).as_posix()
        at_line = self._ids.get(f"{file}:{line - 1}", [])
        if len(at_line) == 1:
            return at_line[0]
        ids = self._ids.get(file, [])
        if own in ids:
            return own
        ending = [known for known in ids if known.endswith(f"#{own}")]
        if len(ending) == 1:
            return ending[0]
        return ids[0] if alone and len(ids) == 1 else own


class Indexes:
    """Finds the nearest index of a file, reading each index once."""

    def __init__(self) -> None:
        self._known: dict[Path, Index | None] = {}

    def nearest(self, path: Path) -> Index | None:
        """Return the index in the file's folder or the closest folder above it that has one."""
        folders = path.parents
        for depth, folder in enumerate(folders):
            if folder not in self._known:
                self._known[folder] = _read(folder)
            index = self._known[folder]
            if index is not None:
                for below in folders[:depth]:
                    self._known[below] = index
                return index
        return None


def _read(folder: Path) -> Index | None:
    try:
        with (folder / NAME).open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            if not {"id", "file"} <= set(rows.fieldnames or ()):
                return None
            ids: dict[str, list[str]] = {}
            for row in rows:
                if row["file"] and row["id"]:
                    ids.setdefault(row["file"], []).append(row["id"])
            return Index(folder, ids)
    except (OSError, UnicodeDecodeError, csv.Error):
        return None
