"""Where shards live, who leads them, and how a write reaches its leader."""
