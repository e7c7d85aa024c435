"""Sends, coded as fast as Python can: what a request says, and the frame that answers it.

The fields are declared in `headers/broker/send.py`; these codecs take their names from there.
"""
