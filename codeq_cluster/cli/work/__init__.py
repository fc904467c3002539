"""Work: the commands of producers, workers and admins, for a tenant's tasks."""
