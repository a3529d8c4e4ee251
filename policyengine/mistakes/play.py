"""Play an example: write its files, load the policy as an engine does and look at it as `lint` does.

Knows: folders, registries, the engine. Must not know: any code, how problems are shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from policyengine.engine import Engine
from policyengine.errors import ConfigError
from policyengine.hosts.able import check_host
from policyengine.hosts.table import host_named
from policyengine.mistakes import File, Mistake
from policyengine.plugins.folder import load_file, load_module
from policyengine.plugins.found import Found, extensions_in, make_found, short_path
from policyengine.plugins.registry import Registry, Source, builtin_registry
from policyengine.policy.days import day
from policyengine.policy.lint import lint
from policyengine.policy.load import load_policy
from policyengine.policy.problems import Problem
from policyengine.policytest.read import read_suite
from policyengine.snapshot import build_snapshot


def play(mistake: Mistake, *, fixed: bool = False) -> tuple[Problem, ...]:
    """Return what loading the files of an example reports, or `lint` for its codes; with `fixed`, put in order.

    Files are named in the problems as in the example, wherever they are written.
    """
    with TemporaryDirectory() as name:
        folder = Path(name).resolve()
        _write(folder, mistake.files, mistake.encoding)
        if fixed:
            _write(folder, mistake.fixed)
        found = _load(folder, mistake)
        places = (f"{folder}/", f"{short_path(folder)}/")  # foreign code is named from the working directory
        return tuple(_without(problem, places) for problem in found)


def _write(folder: Path, files: Iterable[File], encoding: str = "utf-8") -> None:
    for file in files:
        for name, text in file.written():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode(encoding))


def _load(folder: Path, mistake: Mistake) -> tuple[Problem, ...]:
    for path in folder.glob("*.test.yaml"):
        return _read(path)
    (policy,) = folder.glob("policy.*")
    guards, packages = (sorted((folder / name).glob("*.py")) for name in ("guards", "packages"))
    overlays = sorted(folder.glob("overlay*"))
    registry = Registry(_builtins(), [*map(_drop_in, guards), *map(_package, packages)])
    try:
        if not mistake.later:
            today = day(mistake.today)
            loaded = load_policy(policy, registry=registry, overlays=overlays, env=mistake.env, today=today)
            if mistake.code.startswith("L"):
                return lint(loaded, policy, registry=registry, overlays=overlays, today=today)
            if mistake.host:
                return check_host(build_snapshot(loaded, registry), host_named(mistake.host))
            return loaded.warnings
        engine = Engine(policy, overlays=overlays, registry=registry)
    except ConfigError as error:
        return error.problems
    for file in mistake.later:
        for name, text in file.written():
            if text:
                (folder / name).write_text(text, encoding="utf-8")
            else:
                (folder / name).unlink()
    engine.reload()
    problems = engine.rejected.problems if engine.rejected else ()
    return tuple(problem for problem in problems if isinstance(problem, Problem))


def _read(tests: Path) -> tuple[Problem, ...]:
    try:
        return read_suite(tests).engine.snapshot.policy.warnings
    except ConfigError as error:
        return error.problems


@cache
def _builtins() -> tuple[Found, ...]:
    return builtin_registry().all()


def _drop_in(path: Path) -> Source:
    return Source(short_path(path), partial(load_file, path))


def _package(path: Path) -> Source:
    name, _, version = path.stem.rpartition("-")
    return Source(name, partial(_from_package, path, name, version), "acme.spend", name)


def _from_package(path: Path, name: str, version: str) -> tuple[Found, ...]:
    return tuple(make_found(cls, name, version) for cls in extensions_in(load_module(path)))


def _without(problem: Problem, places: Iterable[str]) -> Problem:
    def cut(text: str) -> str:
        for place in places:
            text = text.replace(place, "")
        return text

    position = msgspec.structs.replace(problem.position, file=cut(problem.position.file))
    texts = {name: cut(getattr(problem, name)) for name in ("message", "help", "note")}
    return msgspec.structs.replace(problem, position=position, **texts)
