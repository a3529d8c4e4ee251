"""`python -m benchmarks`: see `speed`."""

import sys

from benchmarks.speed import main

if __name__ == "__main__":
    sys.exit(main())
