"""Operate: the commands for operators of a cluster, over HTTP."""
