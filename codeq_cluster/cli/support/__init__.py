"""Support: what commands share: the cluster they ask, what they print, how they end."""
