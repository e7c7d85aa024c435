"""Request and response headers, one struct each, by who answers them."""
