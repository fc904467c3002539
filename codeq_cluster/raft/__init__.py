"""PySyncObj, held from outside: the only package that touches it."""
