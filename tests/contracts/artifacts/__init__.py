"""The promises of every artifact store, whatever it stores artifacts in."""
