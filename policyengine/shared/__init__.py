"""Budgets and breakers that many processes share.

What a rule counts together with other runs is a `Pool`; a `Ledger` keeps the counts in a store. Deciding code asks no
store: before a request or a batch of calls the driver reserves what the run `needs`, and reports the `Grant`s as an
event. A journal holds them, so a replay decides the same without any store.
"""
