"""Which nodes form the cluster: how it begins, and how nodes join and leave."""
