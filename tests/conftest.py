"""What all tests need: the folder `benchmarks`, and examples that may take as long as a busy machine makes them."""

import sys
from pathlib import Path

from hypothesis import settings

# `benchmarks` is no part of the package. At the end, so that nothing that is installed is hidden by the checkout.
sys.path.append(str(Path(__file__).parents[1]))

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
