"""Package list only; everything else is in pyproject.toml (see docs/decisions/0006)."""

from setuptools import find_packages, setup

MAPPED = ("extensions", "policies", "prompts")
core = find_packages(include=["policyengine", "policyengine.*"])
mapped = find_packages(include=[pattern for name in MAPPED for pattern in (name, f"{name}.*")])
setup(packages=core + [f"policyengine.{name}" for name in mapped])
