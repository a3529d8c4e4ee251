"""`python -P -m policyengine.hook`: the verb `hook` without the command line around it.

Without `-P` the working directory comes first where modules are looked for, and an agent can write files there.
"""

import os
import sys

if not sys.flags.safe_path and sys.path[:1] in ([""], [os.getcwd()]):
    del sys.path[0]

from policyengine.hook.entry import main

if __name__ == "__main__":
    main()
