"""`python -m policyengine`: the command line without its script."""

from policyengine.start import main

if __name__ == "__main__":
    main()
