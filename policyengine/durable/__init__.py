"""Runs that outlive the process that works on them.

A driver with a store (`Agent(..., store=...)`) keeps its run at every effect; whoever comes next goes on there. Read
`record` for what is kept, `keeper` for when, `kept` for what people do with it, `lease` for whose run it is.
"""

from policyengine.durable.kept import KeptRuns
from policyengine.durable.lease import LeaseLostError, RunBusyError
from policyengine.durable.record import Answer, Asked, AskedCall, Head

__all__ = ["Answer", "Asked", "AskedCall", "Head", "KeptRuns", "LeaseLostError", "RunBusyError"]
