"""Installed packages and drop-in folders, made in a temporary folder."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import pytest


class Site:
    """A folder on the import path, with as many distributions as a test installs into it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def install(
        self,
        distribution: str,
        entry_points: dict[str, str],
        version: str = "1.0",
        *,
        requires: Sequence[str] = (),
        **modules: str,
    ) -> Path:
        """Write the metadata and the modules of a distribution, as an installer would; return the metadata's folder."""
        self.path.mkdir(exist_ok=True)
        info = self.path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\nSummary: Some guards.\n{needs}"
        )
        lines = "".join(f"{name} = {target}\n" for name, target in entry_points.items())
        (info / "entry_points.txt").write_text(f"[policyengine.extensions]\n{lines}")
        for module, source in modules.items():
            (self.path / f"{module}.py").write_text(dedent(source))
        return info


@pytest.fixture
def sites(tmp_path, monkeypatch):
    """Return a maker of folders that come first on the import path; their modules are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def make(name: str = "site") -> Site:
        monkeypatch.syspath_prepend(tmp_path / name)
        return Site(tmp_path / name)

    yield make
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def site(sites):
    """Return one such folder."""
    return sites()


@pytest.fixture
def extension_source():
    """Return a maker of the source text of a minimal extension."""

    def make(name: str, cls: str = "Guard") -> str:
        return (
            "from policyengine.extension import Extension\n"
            "from policyengine.hooks import hookimpl\n\n\n"
            f"class {cls}(Extension):\n"
            f"    name = {name!r}\n\n"
            "    @hookimpl\n"
            "    def after_iteration(self, run, iteration):\n"
            "        return None\n"
        )

    return make
