"""How a route declares its bodies, parameters and answers, for the check and for the document."""
