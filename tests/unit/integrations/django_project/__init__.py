"""A Django project as users have it: its settings alone know of the broker."""
