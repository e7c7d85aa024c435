"""Part: users, the signatures of their requests, and what each user may do."""
