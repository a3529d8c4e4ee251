"""What lies below a directory of a policy, without what is hidden.

Knows: directories. Must not know: what a file is for, what a directory means that cannot be read.
"""

from __future__ import annotations

from pathlib import Path


def below(folder: Path, pattern: str) -> list[Path]:
    """Return the paths below a directory whose names match, sorted; hidden files and directories do not count.

    The directory of a language may be a link, as in a mounted volume; `rglob` goes into no link.
    """
    found = {*folder.rglob(pattern), *folder.glob(f"*/{pattern}")}
    return sorted(path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts))
