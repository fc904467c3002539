"""Tools: what writes the pages that follow from the code or from measurements."""
