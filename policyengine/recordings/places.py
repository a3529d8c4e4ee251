"""Where files really are: symbolic links followed, each folder looked up once.

Knows: paths. Must not know: what is in a file.
"""

from __future__ import annotations

import os
from pathlib import Path


class Places:
    """What `Path.resolve` says, for many files of few folders, as long as no folder moves.

    Links that lead in a circle are no error here: whoever opens such a file is told.
    """

    def __init__(self) -> None:
        self._folders: dict[Path, Path] = {}

    def of(self, path: Path) -> Path:
        """Return where a file really is."""
        folder = path.parent
        if folder == path or path.name == ".." or os.path.islink(path):
            return real_place(path)
        real = self._folders.get(folder)
        if real is None:
            real = self._folders[folder] = self.of(folder)
        return real / path.name


def real_place(path: Path) -> Path:
    """Return where a file really is, as far as that can be found out; never raises `OSError`."""
    return Path(os.path.realpath(path))
