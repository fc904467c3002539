"""Work: the commands of producers, workers and admins, who have a tenant's tasks in hand."""
