"""Write the files of docs/ that follow from the code: `make pages`."""

from __future__ import annotations

from docs.tools.written import DIRECTORY, pages

for name, text in pages().items():
    (DIRECTORY / name).write_text(text)
