"""Tools: what writes the files of docs/ that follow from the code."""
