"""Write the pages that are generated from the code or from measurements: `make pages`."""

from __future__ import annotations

from docs.tools.written import ROOT, pages

for name, text in pages().items():
    (ROOT / name).write_text(text)
