"""Testing: never imported by production code.

`codeq_cluster.testing.pytest` is for programs that use codeq-cluster; the fakes, models and the
simulator beside it are this repository's own and may change with any release.
"""
