"""JSON bodies of requests, answers and of the files a broker keeps, as typed structs.

Field defaults are Java's, because Java's JSON leaves null members out. `protocol/json.py` reads and writes
them.
"""
