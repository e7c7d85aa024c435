"""Options of command lines for reaching a cluster: TLS and credentials."""
