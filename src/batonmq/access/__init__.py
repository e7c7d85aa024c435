"""How a command line says how it reaches a cluster: options for TLS and credentials."""
