"""Messages as bytes: the stored record, the wire batch, properties and ids."""
