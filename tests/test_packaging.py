"""What is on disk is what gets shipped: source distribution and wheel hold every file of the package's folders."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "policyengine": "policyengine",
    "extensions": "policyengine/extensions",
    "policies": "policyengine/policies",
    "prompts": "policyengine/prompts",
}
"""Folder in the repository, and where it is installed."""

BESIDE = ("tests", "docs", "examples", "benchmarks")
LOOSE = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
DROPPINGS = shutil.ignore_patterns("__pycache__", "*.py[cod]", "*.egg-info", "build", "dist", "*~", ".[!c]*")


class Built:
    """The two distributions, built from a clean copy of the source tree: the wheel from the unpacked sdist."""

    def __init__(self, source: Path, sdist: Path, wheel: Path) -> None:
        self.source = source
        self.wheel = wheel
        with tarfile.open(sdist) as archive:
            names = [PurePosixPath(item.name) for item in archive.getmembers() if item.isfile()]
        self.in_sdist = {str(PurePosixPath(*name.parts[1:])) for name in names}
        with zipfile.ZipFile(wheel) as archive:
            self.in_wheel = {name for name in archive.namelist() if not name.endswith("/")}

    def on_disk(self, folder: str) -> set[str]:
        """Return every file of a folder of the copy, relative to the folder."""
        base = self.source / folder
        return {path.relative_to(base).as_posix() for path in base.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Built:
    """Build both distributions in a copy, so that nothing stale takes part and nothing is left behind."""
    base = tmp_path_factory.mktemp("packaging")
    source = base / "source"
    source.mkdir()
    for name in LOOSE:
        shutil.copy(ROOT / name, source / name)
    for folder in (*PACKAGES, *filter(lambda name: (ROOT / name).is_dir(), BESIDE), ".ci"):
        shutil.copytree(ROOT / folder, source / folder, ignore=DROPPINGS)
    before = {folder: snapshot(source / folder) for folder in PACKAGES}
    command = [sys.executable, "-m", "build", "--outdir", str(base / "out"), *isolation(), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=base)
    assert done.returncode == 0, done.stdout + done.stderr
    assert before == {folder: snapshot(source / folder) for folder in PACKAGES}
    (sdist,) = (base / "out").glob("*.tar.gz")
    (wheel,) = (base / "out").glob("*.whl")
    return Built(source, sdist, wheel)


def snapshot(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


def isolation() -> list[str]:
    """Build with the installed setuptools where it is new enough, so that nothing is downloaded."""
    try:
        major = int(importlib.metadata.version("setuptools").split(".")[0])
    except importlib.metadata.PackageNotFoundError:
        major = 0
    return ["--no-isolation"] if major >= 77 else []


def test_the_wheel_holds_exactly_the_files_of_the_four_folders(built):
    expected = {f"{target}/{name}" for folder, target in PACKAGES.items() for name in built.on_disk(folder)}
    packaged = {name for name in built.in_wheel if ".dist-info/" not in name}
    assert packaged == expected
    assert {PurePosixPath(name).suffix for name in packaged} >= {".py", ".yaml", ".txt", ".typed"}


def test_the_wheel_carries_the_licence_and_the_command(built):
    loose = {name.split(".dist-info/")[1] for name in built.in_wheel if ".dist-info/" in name}
    assert {"licenses/LICENSE", "entry_points.txt", "METADATA", "RECORD"} <= loose


def test_the_source_distribution_holds_the_packages_and_all_that_stands_beside_them(built):
    expected = {f"{folder}/{name}" for folder in (*PACKAGES, *BESIDE) for name in built.on_disk(folder)}
    assert expected | {*LOOSE, ".ci/run"} <= built.in_sdist


def test_the_unpacked_wheel_works_away_from_the_repository(built, tmp_path):
    site = tmp_path / "site"
    with zipfile.ZipFile(built.wheel) as archive:
        archive.extractall(site)
    program = (
        "import policyengine\n"
        "from importlib.resources import files\n"
        "from policyengine.plugins.registry import builtin_registry\n"
        "print(policyengine.__file__)\n"
        "print(*builtin_registry().names())\n"
        "print(*sorted(item.name for item in files('policyengine.policies').iterdir()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stderr
    place, names, policies = done.stdout.splitlines()
    assert Path(place).is_relative_to(site)
    assert "step_limit" in names.split()
    assert "default.yaml" in policies.split()
