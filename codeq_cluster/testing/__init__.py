"""Testing: never imported by production code.

`codeq_cluster.testing.pytest` is for programs that use codeq-cluster. The fakes, models and
simulators beside it belong to this repository and may change with any release.
"""
