"""What a policy is made of on disk, and one fingerprint over all of it.

Knows: files, directories, their contents. Must not know: what a file means, when to look, what to do about a change.

Only contents count. A file that is touched, renamed away and back, or written anew with the same bytes is the same.
The names that editors leave behind (`policy.yaml~`, `.policy.yaml.swp`, `4913`, `.#policy.yaml`, `..data`) never get
into a fingerprint: files are looked up by name, and directories list only `*.txt` or `*.py` without a leading dot.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from policyengine.errors import ExtensionError
from policyengine.plugins.folder import folder_digest
from policyengine.policy.folders import below
from policyengine.policy.model import Policy
from policyengine.policy.text import MAX_BYTES

SHIPPED = "policy:"
"""How the name of a shipped policy starts in `Policy.files`; it has no file that is edited."""


class Disk:
    """The files of one policy.

    `sources` are the policy and its overlays, `folders` the drop-in folders of extensions. What else belongs to it is
    known once it was loaded: see `learn` and `look_for`.
    """

    def __init__(self, sources: Iterable[Path] = (), folders: Iterable[Path] = ()) -> None:
        self.sources = tuple(sources)
        self.folders = tuple(folders)
        self._parts: frozenset[Path] = frozenset(self.sources)

    def __bool__(self) -> bool:
        return bool(self.sources or self.folders)

    @property
    def parts(self) -> frozenset[Path]:
        """The files and directories that are looked at, drop-in folders excluded."""
        return self._parts

    def learn(self, policy: Policy) -> None:
        """Remember which files and directories a loaded policy was read from."""
        if self.sources:
            files = (Path(file) for file in policy.files if not file.startswith(SHIPPED))
            self._parts = frozenset((*self.sources, *files, *map(Path, policy.prompts)))

    def look_for(self, paths: Iterable[str]) -> None:
        """Remember what a policy that could not be loaded asked for too: where it is missing, it may come."""
        if self.sources:
            self._parts |= frozenset(map(Path, paths))

    def vanished(self) -> tuple[Path, ...]:
        """Return the policy or overlay files that do not exist."""
        return tuple(path for path in self.sources if _is_gone(path))

    def texts(self) -> dict[Path, bytes]:
        """Return the contents of the files that are policies or overlays."""
        paths = (path for path in self._parts if path.suffix != ".txt" and os.path.isfile(path))
        return {path: content for path in sorted(paths) if (content := _bytes(path)) is not None}

    def fingerprint(self, parts: frozenset[Path] | None = None) -> str:
        """Return the SHA-256 over the names and contents of everything the policy is made of.

        `parts` are other files and directories than those that are known now; drop-in folders count in any case.
        """
        digest = hashlib.sha256()
        for path in sorted(self._parts if parts is None else parts):
            for name, content in _contents(path):
                for part in (os.fsencode(name), content):
                    digest.update(len(part).to_bytes(8, "big"))
                    digest.update(part)
        for folder in self.folders:
            digest.update(code_digest((folder,)).encode("ascii"))
        return digest.hexdigest()

    def directories(self) -> frozenset[Path]:
        """Return the existing directories in which a change may concern the policy.

        Symbolic links are looked at from both ends: a link that is replaced changes its own directory, a file that is
        edited in place changes the directory it really is in.
        """
        found: set[Path] = set()
        for path in (*self._parts, *self.folders):
            if os.path.isdir(path):
                found |= {path, *_directories(path)}
            found |= {path.parent, Path(os.path.realpath(path)).parent}
        return frozenset(Path(os.path.abspath(path)) for path in found if os.path.isdir(path))


def code_digest(folders: Iterable[Path]) -> str:
    """Return the SHA-256 over all files of drop-in folders, also where one cannot be listed; empty without a folder."""
    try:
        return folder_digest(folders)
    except ExtensionError as error:
        return hashlib.sha256(str(error).encode("utf-8", "surrogateescape")).hexdigest()


def with_code(policy: Policy, code: str) -> Policy:
    """Return the policy with a digest that covers the code of drop-in folders too (`code`: see `code_digest`)."""
    if not code:
        return policy
    digest = hashlib.sha256(f"{policy.digest} {code}".encode()).hexdigest()
    return msgspec.structs.replace(policy, digest=digest)


def _is_gone(path: Path) -> bool:
    """Whether a path leads nowhere; one that may not be looked at is still there."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        return False
    return False


# `os.path` answers no where `Path` raises (a directory that may not be entered): looking must never fail.


def _contents(path: Path) -> Iterator[tuple[str, bytes]]:
    yield str(path), _content(path)
    if os.path.isdir(path):
        for template in _templates(path):
            yield str(template), _content(template)


def _content(path: Path) -> bytes:
    """Return the hash of a file, or why there is none. Only a regular file is opened: a pipe would block."""
    if not os.path.isfile(path):
        if os.path.isdir(path):
            return b"directory"
        return b"no regular file" if os.path.exists(path) else b"absent"
    content = _bytes(path)
    return b"unreadable" if content is None else hashlib.sha256(content).digest()


def _bytes(path: Path) -> bytes | None:
    try:
        with path.open("rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except OSError:
        return None


def _templates(directory: Path) -> list[Path]:
    return [path for path in _below(directory, "*.txt") if os.path.isfile(path)]


def _directories(directory: Path) -> list[Path]:
    return [path for path in _below(directory, "*") if os.path.isdir(path)]


def _below(directory: Path, pattern: str) -> list[Path]:
    try:
        return below(directory, pattern)
    except OSError:  # it is being removed
        return []
