"""Tools: they write the pages that are generated from the code or from measurements."""
