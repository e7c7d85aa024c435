"""Part: queue locks of orderly consumers, which a majority of the broker set grants."""
