"""Tools: generators of the pages made from the code or from measurements."""
