"""Part: registration with the name servers."""
