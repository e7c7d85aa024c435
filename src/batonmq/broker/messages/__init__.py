"""Part: sends, acknowledgements, pulls and long polling."""
