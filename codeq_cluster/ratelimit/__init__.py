"""How often a tenant may ask, counted once for the whole cluster."""
