"""Fakes: the product's ports without disks or peers; they pass the same contracts."""
