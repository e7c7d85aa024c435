"""The look of all plots: colours and matplotlib's settings."""

from __future__ import annotations

from typing import Any, Final

BLUE, RED, GREEN, GREY = "#2b6cb0", "#c53030", "#2f855a", "#718096"
STYLE: Final[dict[Any, Any]] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "svg.fonttype": "none",
}
"""For ``matplotlib.rc_context``."""
