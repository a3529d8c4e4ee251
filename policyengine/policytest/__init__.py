"""Tests of policies, written as data: `kind: PolicyTest` (docs/cli.md, `policyengine test`)."""
