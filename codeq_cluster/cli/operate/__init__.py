"""Operate: the commands of those who run the cluster, asked over HTTP."""
