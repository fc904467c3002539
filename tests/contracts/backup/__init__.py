"""The promises of every backup target, whatever it stores backups in."""
