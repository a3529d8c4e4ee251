"""Find and read the files of a policy: the policy, what it extends, its overlays.

Knows: shipped policies, relative files, headers. Must not know: what the settings in a file mean, how layers merge.

A file can only reach files in the directory of the policy that is loaded (or in `root`), symbolic links resolved.
A file that is reached twice is one layer, at its first place.
"""

from __future__ import annotations

import hashlib
import os
from importlib.resources import files as package_files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from policyengine.errors import ConfigError
from policyengine.policy.environment import hide_defaults
from policyengine.policy.folders import below
from policyengine.policy.json5text import read_json5
from policyengine.policy.nodes import Document, Node, Sources, mapping
from policyengine.policy.problems import Position, Problem
from policyengine.policy.schema import OVERLAY_HEADER, POLICY_HEADER, Schema
from policyengine.policy.text import MAX_BYTES
from policyengine.policy.validate import validate
from policyengine.policy.validator import trusted
from policyengine.policy.wording import suggestion
from policyengine.policy.yamltext import YamlLoader, read_yaml

Kind = Literal["Policy", "Overlay"]
SUFFIXES = (".yaml", ".yml", ".json5", ".json")
MAX_FILES = 64
_HEADERS: dict[Kind, Schema] = {"Policy": POLICY_HEADER, "Overlay": OVERLAY_HEADER}


class LayerFile(msgspec.Struct, frozen=True):
    """One file: its header fields, its settings, and where relative paths in it start (`None`: nowhere)."""

    file: str
    kind: Kind
    header: dict[str, Any]
    root: Node
    settings: Node
    folder: Path | None = None


class _Place(msgspec.Struct, frozen=True):
    """Where a file is: `key` tells files apart, `file` is its name in positions, `path` is `None` if shipped."""

    key: str
    file: str
    path: Path | None = None


def is_path(source: str | Path) -> bool:
    """Return whether a policy source names a file: it has a slash or a suffix, and is no shipped policy in a folder.

    Whether a file of that name exists does not matter: one called `default` in the working directory must not take
    the place of the shipped policy, nor `peers/openhands` that of another one; `./peers/openhands` is always a file.
    """
    if isinstance(source, Path):
        return True
    if Path(source).suffix:
        return True
    return ("/" in source or os.sep in source) and source not in shipped_policies()


def shipped_policies(folder: Traversable | None = None) -> dict[str, Traversable]:
    """Return every shipped policy by name; `folder` is searched instead of the package's own.

    The name of one in a folder has a slash: `peers/openhands`.
    """
    if folder is None:
        try:
            folder = package_files("policyengine.policies")
        except ModuleNotFoundError:
            return {}
    found: dict[str, Traversable] = {}
    for entry in folder.iterdir():
        if entry.name.endswith(".yaml") and entry.is_file():
            found[entry.name.removesuffix(".yaml")] = entry
        elif entry.is_dir():
            found |= {f"{entry.name}/{name}": inner for name, inner in shipped_policies(entry).items()}
    return dict(sorted(found.items()))


class Reader:
    """Reads files into layers, lowest first, and keeps every problem found on the way."""

    def __init__(
        self, loader: YamlLoader = "auto", *, root: Path | None = None, shipped: Traversable | None = None
    ) -> None:
        self._loader: YamlLoader = loader
        self._root = root
        self._shipped_folder = shipped
        self._shipped: dict[str, Traversable] | None = None
        self._seen: set[str] = set()
        self._active: list[_Place] = []
        self._digest = hashlib.sha256()
        self.layers: list[LayerFile] = []
        self.files: list[str] = []
        self.tried: list[str] = []
        self.sources = Sources()
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []

    @property
    def digest(self) -> str:
        """SHA-256 over names and contents of everything read so far."""
        return self._digest.hexdigest()

    def policy(self, source: str | Path) -> LayerFile | None:
        """Read a policy by file or shipped name, with all it extends; return its own layer."""
        if is_path(source):
            path = Path(source)
            self._root = self._root or path.parent
            return self._visit(_Place(_real(path), str(source), path), None)
        place = self._named(str(source), Position(str(source)), None)
        return self._visit(place, None) if place else None

    def text(self, content: bytes, name: str, folder: Path | None = None) -> LayerFile | None:
        """Read a policy given as text, with all it extends; `folder` is where its relative paths start."""
        self._root = self._root or folder
        place = _Place(_real(folder / name) if folder else name, name, folder / name if folder else None)
        return self._take(place, content)

    def overlay(self, path: Path) -> LayerFile | None:
        """Read an overlay."""
        place = _Place(_real(path), str(path), path)
        content = self._content(place, None)
        return None if content is None else self._take(place, content, "Overlay")

    def inside(self, path: Path, layer: LayerFile) -> bool:
        """Return whether a path lies where files of this policy may be; an overlay also has its own directory."""
        roots = [self._root, layer.folder if layer.kind == "Overlay" else None]
        return any(root is not None and Path(_real(path)).is_relative_to(_real(root)) for root in roots)

    def prompts(self, folder: Path, name: str) -> None:
        """Add the prompt templates of a directory to the digest and to the list of files."""
        for path in (path for path in below(folder, "*.txt") if path.is_file()):
            relative = path.relative_to(folder).as_posix()
            content = self._content(_Place(str(path), str(path), path), None)
            if content is not None:
                self._record(f"{name}/{relative}", str(path), content)

    def variable(self, name: str, text: str | None) -> None:
        """Add an environment variable to the digest: with another text it is another policy."""
        for part in (f"$env {name}", "" if text is None else f"={text}"):
            content = part.encode("utf-8", "surrogatepass")
            self._digest.update(len(content).to_bytes(8, "big"))
            self._digest.update(content)

    def look_for(self, path: Path | None) -> None:
        """Note a file or directory that is looked for, whether it exists or not (see `ConfigError.tried`)."""
        if path is not None and "\0" not in str(path):
            self.tried.append(str(path))

    def _record(self, name: str, file: str, content: bytes) -> None:
        for part in (name.encode("utf-8", "surrogateescape"), content):
            self._digest.update(len(part).to_bytes(8, "big"))
            self._digest.update(part)
        self.files.append(file)

    def _digest_name(self, place: _Place) -> str:
        """Return a name that is the same wherever the directory of the policy is."""
        if place.path is None or self._root is None:
            return place.file
        resolved, root = Path(_real(place.path)), _real(self._root)
        return resolved.relative_to(root).as_posix() if resolved.is_relative_to(root) else place.path.name

    def _visit(self, place: _Place, entry: Node | None) -> LayerFile | None:
        if place.key in [active.key for active in self._active]:
            assert entry is not None
            names = [active.file for active in self._active]
            chain = " -> ".join([*names[[active.key for active in self._active].index(place.key) :], place.file])
            self._at(entry, "M304", f"the policy extends itself: {chain}")
            return None
        if place.key in self._seen:
            return None
        if len(self._seen) >= MAX_FILES:
            if entry is not None:
                self._at(entry, "M313", f"more than {MAX_FILES} files")
            return None
        content = self._content(place, entry)
        return None if content is None else self._take(place, content)

    def _content(self, place: _Place, entry: Node | None) -> bytes | None:
        """Return the bytes of a file, at most one more than is accepted."""
        self.look_for(place.path)
        try:
            if place.path is None:
                return self._catalogue()[place.key.removeprefix("policy:")].read_bytes()
            if not place.path.is_file():
                exists = place.path.exists()
                reason = "not a regular file" if exists else "there is no such file"
                if place.path.is_dir():
                    self._unreadable(place, entry, "it is a directory", exists, _inside(place.path, place.file))
                else:
                    self._unreadable(place, entry, reason, exists)
                return None
            with place.path.open("rb") as stream:
                return stream.read(MAX_BYTES + 1)
        except OSError as error:
            self._unreadable(place, entry, error.strerror or type(error).__name__, True)
        except ValueError as error:
            self._unreadable(place, entry, str(error), True)
        return None

    def _unreadable(self, place: _Place, entry: Node | None, reason: str, exists: bool, help: str = "") -> None:
        message = f"{place.file} cannot be read: {reason}"
        if entry is None:
            self.problems.append(self.sources.problem("E802", message, Position(place.file), help=help))
        else:
            self._at(entry, "E802" if exists else "M302", message, help)

    def _at(self, node: Node, code: str, message: str, help: str = "") -> None:
        self.problems.append(self.sources.at_value(code, message, node, ("extends",), help=help))

    def _take(self, place: _Place, content: bytes, kind: Kind = "Policy") -> LayerFile | None:
        self._seen.add(place.key)
        self._record(self._digest_name(place), place.file, content)
        document = self._document(place, content)
        if document is None:
            return None
        folder = place.path.parent if place.path else None
        layer = self._layer(document, place.file, kind, folder)
        if layer is None:
            return None
        self._active.append(place)
        for entry in _entries(layer.root.get("extends")):
            parent = self._parent(str(entry.data), entry, layer)
            if parent is not None:
                self._visit(parent, entry)
        self._active.pop()
        self.layers.append(layer)
        return layer

    def _document(self, place: _Place, content: bytes) -> Document | None:
        try:
            if place.file.endswith((".json5", ".json")):
                document = read_json5(content, place.file)
            else:
                document = read_yaml(content, place.file, loader=self._loader)
        except ConfigError as error:
            self.problems += error.problems
            return None
        hide_defaults(document.root, document.source)
        self.sources.add(document.source)
        self.warnings += document.warnings
        return document

    def _layer(self, document: Document, file: str, kind: Kind, folder: Path | None) -> LayerFile | None:
        schema, fields = _HEADERS[kind], document.root.fields
        header = mapping({key: fields[key] for key in schema if key in fields}, document.root)
        found = validate(schema, header, self.sources, prepared=trusted(schema))
        other = _HEADERS["Policy" if kind == "Overlay" else "Overlay"]
        if any(problem.path == "kind" for problem in found):
            advice = _other_kind(document.root.data, kind, file) if not self._active else _NOT_BELOW
            found = [problem for problem in found if problem.path in ("apiVersion", "kind")]
            if header.data.get("kind") in tuple(_HEADERS):
                found = [replace(item, help=advice) if item.path == "kind" else item for item in found]
        else:
            for key in [key for key in other if key not in schema and key in fields]:
                message = f"`{key}` has no place in a file of kind {kind}"
                found.append(self.sources.at_key("M311", message, fields[key], (key,), help="remove it"))
        self.problems += found
        if found:
            return None
        rest = {key: child for key, child in fields.items() if key not in schema}
        return LayerFile(file, kind, header.data, document.root, mapping(rest, document.root), folder)

    def _parent(self, name: str, entry: Node, layer: LayerFile) -> _Place | None:
        plain = "/" not in name and "\\" not in name and not name.endswith(SUFFIXES)
        if plain or not is_path(name):
            return self._named(name, entry.at, entry)
        if layer.folder is None:
            self._at(entry, "M303", "only a policy file can extend files; here only shipped policies have names")
            return None
        path = layer.folder / name
        if Path(name).is_absolute() or "\0" in name or not self.inside(path, layer):
            advice = "extend files in the same directory or below, by their relative path"
            self._at(entry, "M303", f"{name} lies outside the directory of the policy that is loaded", advice)
            return None
        return _Place(_real(path), os.path.normpath(os.path.join(os.path.dirname(layer.file), name)), path)

    def _catalogue(self) -> dict[str, Traversable]:
        if self._shipped is None:
            self._shipped = shipped_policies(self._shipped_folder)
        return self._shipped

    def _named(self, name: str, at: Position, entry: Node | None) -> _Place | None:
        if name in self._catalogue():
            return _Place(f"policy:{name}", f"policy:{name}")
        message = f"there is no shipped policy {name!r}"
        advice = suggestion(name, [known for known in self._catalogue() if "/" not in known], "shipped")
        if entry is None:
            if os.path.isfile(name):
                advice = f"a file without a suffix is named with a slash: ./{name}"
            elif os.path.isdir(name):
                advice = f"{name} is a directory; {_inside(Path(name), f'./{name}')}"
            self.problems.append(self.sources.problem("M301", message, at, help=advice))
        else:
            self._at(entry, "M301", message, advice)
        return None


_NOT_BELOW = "a policy extends policies; an overlay is given with `--overlay`"


def _other_kind(data: dict[str, Any], kind: Kind, file: str) -> str:
    """Say where a file belongs that is of the other kind than is needed."""
    if kind == "Overlay":
        return "this is a policy: give it as the policy; what lies on top of one is of kind Overlay"
    target = data.get("target")
    below = f", on top of the policy {target!r}" if isinstance(target, str) else ", on top of a policy"
    return f"this is an overlay: give it as `--overlay {file}`{below}"


def _inside(folder: Path, name: str) -> str:
    """Say how a policy in a directory is named, by one that is there."""
    try:
        names = sorted(path.name for path in folder.iterdir() if path.suffix in SUFFIXES)
    except OSError:
        names = []
    files = [name for name in names if not Path(name).stem.endswith(".test")]  # those are tests of policies
    return f"name the file in it: {os.path.join(name, files[0] if files else 'policy.yaml')}"


def _real(path: Path) -> str:
    """Return the path with symbolic links resolved; unlike `Path.resolve`, circular links are no error."""
    return os.path.realpath(path) if "\0" not in str(path) else str(path)


def _entries(node: Node | None) -> tuple[Node, ...]:
    """Return a text or a list of texts as a list of nodes."""
    if node is None:
        return ()
    return node.items if isinstance(node.children, tuple) else (node,)
