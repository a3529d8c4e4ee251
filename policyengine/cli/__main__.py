"""`python -m policyengine.cli`: the same command without its script."""

from policyengine.cli import main

main()
