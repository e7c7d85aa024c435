"""Part: configuration, figures and clean-up for administrators."""
