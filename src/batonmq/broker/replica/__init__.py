"""Part: who decides this broker's role, and how it follows."""
