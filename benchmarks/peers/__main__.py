"""`python -m benchmarks.peers`."""

import sys

from benchmarks.peers.report import main

if __name__ == "__main__":
    sys.exit(main())
