"""Boards: the source of the Grafana dashboards.

`make dashboards` writes deploy/grafana/dashboards from it.
"""
