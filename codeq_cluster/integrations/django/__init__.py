"""Django on this broker: a backend for Django's Tasks, and the worker that runs them.

As an application in `INSTALLED_APPS` it brings the command; `TASKS` names the backend.
"""
