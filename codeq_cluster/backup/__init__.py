"""Backups: a cluster's rows in files of their own, and a new cluster made from them."""
