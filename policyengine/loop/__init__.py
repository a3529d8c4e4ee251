"""Our loop, without I/O: what follows from what, in the order in which a response travels.

`advance` takes an event and returns an effect. On the way a response goes from `reading` to `arguments` to `batch`, and
with the end of the round to `iteration`, which sends the next request (`requests`). Aside from that stand what is done
about failed requests (`recovery`) and long histories (`compaction`), the steps of a plan (`steps`), requests for
anything but the next response (`auxiliary`), and `ending`.
Modules that would need each other return a `Goto` instead, and `advance` goes there.
"""
