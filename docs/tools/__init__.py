"""Tools: they write the pages that follow from the code or from measurements."""
