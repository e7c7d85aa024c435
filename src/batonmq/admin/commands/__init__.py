"""One file per command; each offers `main`, which `admin/main.py` finds by its registry."""
